//go:build linux

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestAProcessRestartedWithinTheLeaseKeepsItsClaims(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	backend := embedtest.Client(t, srv)
	w := watch(t, backend)
	c := open(t, []string{srv.Endpoint()}, "other")
	spec(t, []*instance.Client{c}, "db", 3)
	spec(t, []*instance.Client{c}, "gpu", 2)
	part := hostPart{Endpoints: []string{srv.Endpoint()}, Host: "one", StateDir: t.TempDir()}
	first := startHost(t, part)
	one := first.claim("one", instance.Slots{"db": 1})
	two := first.claim("two", instance.Slots{"db": 2, "gpu": 1})
	next := begin(t, t.Context(), c, "next", instance.Slots{"db": 1})
	w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	for range 2 { // it can be done again
		first.kill()
		first = startHost(t, part)
		for _, was := range []report{one, two} {
			is := first.hear("held", was.ID)
			if is.Fence != was.Fence || is.Lease != was.Lease {
				t.Errorf("%s was %+v and is %+v", was.ID, was, is)
			}
		}
	}
	if !next.waiting() {
		t.Error("a slot was let go")
	}
	// They are renewed, acted on and given back by the process that took them
	// over.
	eventuallyActs(t, first, "one")
	eventuallyActs(t, first, "two")
	first.tell(order{Do: "release", ID: "one"})
	first.hear("released", "one")
	release(t, next.granted())
	first.tell(order{Do: "release", ID: "two"})
	first.hear("released", "two")
	w.look(func(h *History) {
		if n := len(h.Holds()); n != 3 || h.Held() != 0 {
			t.Errorf("%d claims were made, %d are held", n, h.Held())
		}
	})
}

// eventuallyActs waits until a host takes a claim that it took over for valid: from its
// first renewal on.
func eventuallyActs(t testing.TB, h *hostProcess, id string) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < deadline; pause(t.Context(), 20*time.Millisecond) {
		h.tell(order{Do: "act", ID: id})
		if h.hearOne(id, "acted", "not acted").Event == "acted" {
			return
		}
	}
	t.Fatalf("claim %s is not trusted after %s", id, deadline)
}

// A claim that waited when its process was killed is not kept: asked for again
// by its id, it is one claim still.
func TestAClaimInTheMakingIsNotHeldTwiceAfterARestart(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	c := open(t, []string{srv.Endpoint()}, "other")
	spec(t, []*instance.Client{c}, "db", 1)
	first := claim(t, c, "first", instance.Slots{"db": 1})
	part := hostPart{Endpoints: []string{srv.Endpoint()}, Host: "one", StateDir: t.TempDir()}
	p := startHost(t, part)
	p.tell(order{Do: "claim", ID: "mine", Slots: instance.Slots{"db": 1}})
	w.until("it waits", func(h *History) bool { return h.Wait("mine") != nil })
	p.kill()
	p = startHost(t, part)
	p.tell(order{Do: "claim", ID: "mine", Slots: instance.Slots{"db": 1}})
	release(t, first)
	p.hear("claimed", "mine")
	p.tell(order{Do: "release", ID: "mine"})
	p.hear("released", "mine")
	w.until("nothing is left", func(h *History) bool { return len(h.Waiting()) == 0 && h.Held() == 0 })
	w.look(func(h *History) {
		if n := len(h.Holds()); n != 2 {
			t.Errorf("%d claims were held", n)
		}
	})
}

func TestANameIsOneProcessOnly(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	watch(t, embedtest.Client(t, srv))
	c := open(t, []string{srv.Endpoint()}, "other")
	spec(t, []*instance.Client{c}, "db", 1)
	part := hostPart{Endpoints: []string{srv.Endpoint()}, Host: "one", StateDir: t.TempDir()}
	first := startHost(t, part)
	was := first.claim("mine", instance.Slots{"db": 1})

	t.Run("the same directory is refused at once", func(t *testing.T) {
		refusedAs(t, part, "host_in_use", part.StateDir)
	})
	other := part
	other.StateDir = t.TempDir()
	t.Run("another directory is refused by what etcd knows", func(t *testing.T) {
		refusedAs(t, other, "host_in_use", "one/main")
	})
	first.tell(order{Do: "act", ID: "mine"})
	first.hear("acted", "mine")
	first.kill()
	t.Run("another directory is refused while the dead one's leases live", func(t *testing.T) {
		refusedAs(t, other, "host_in_use", "start again in")
	})
	t.Run("its own directory is not", func(t *testing.T) {
		if is := startHost(t, part).hear("held", "mine"); is.Fence != was.Fence {
			t.Errorf("it has fence %d, and had %d", is.Fence, was.Fence)
		}
	})
}

func refusedAs(t *testing.T, part hostPart, code, names string) {
	t.Helper()
	r := enterHost(t, part).hear("refused", "")
	if r.Code != code || !strings.Contains(r.Error, names) {
		t.Errorf("it was refused as %s: %s", r.Code, r.Error)
	}
}
