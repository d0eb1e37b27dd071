//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// leaseLeft asks etcd how long a lease still lives if it is not renewed any more. The lease can't
// end earlier than that time after the request.
func leaseLeft(t testing.TB, b store.Backend, id int64) (asked time.Time, left time.Duration) {
	t.Helper()
	asked = time.Now()
	left, err := b.TimeToLive(t.Context(), store.LeaseID(id))
	if err != nil {
		t.Fatalf("the lease of a host that is just dead: %v", err)
	}
	return asked, left
}

func TestTheSlotsOfAKilledHostComeBackAfterItsLeaseAndNotBefore(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	backend := embedtest.Client(t, srv)
	end := &ends{key: numberKey(keys, "db", 0), at: make(chan time.Time, 10)}
	w := watch(t, backend, func(w *witness) { w.onEvent = end.note })
	c := open(t, []string{srv.Endpoint()}, "alive")
	spec(t, []*instance.Client{c}, "db", 1, short)
	dead := startHost(t, hostPart{Endpoints: []string{srv.Endpoint()}, Host: "dead"})
	was := dead.claim("killed", instance.Slots{"db": 1})
	next := begin(t, t.Context(), c, "next", instance.Slots{"db": 1})
	w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	dead.kill()
	asked, left := leaseLeft(t, backend, was.Lease)
	got := next.granted()
	if took := (<-end.at).Sub(asked); took < left {
		t.Errorf("the slot was free after %s, and the lease had %s left", took, left)
	}
	if got.Fence() <= was.Fence {
		t.Errorf("fence %d after %d", got.Fence(), was.Fence)
	}
	if _, err := backend.TimeToLive(t.Context(), store.LeaseID(was.Lease)); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Errorf("the slot is free and the lease is not gone: %v", err)
	}
	w.look(func(h *History) {
		if x := h.Hold("killed"); x.To == 0 || x.To >= got.Fence().Revision() {
			t.Errorf("the old claim ended at %d, the new one began at %d", x.To, got.Fence())
		}
	})
	release(t, got)
}

// A host that is stopped for longer than its lease is notified that its claims are lost before it
// acts on them again, and no other claim gets its slots before the lease has ended.
func TestAHostThatStoodStillLongerThanItsLeaseLosesItsClaimsBeforeItActs(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	backend := embedtest.Client(t, srv)
	end := &ends{key: numberKey(keys, "db", 0), at: make(chan time.Time, 10)}
	w := watch(t, backend, func(w *witness) { w.onEvent = end.note })
	c := open(t, []string{srv.Endpoint()}, "alive")
	spec(t, []*instance.Client{c}, "db", 1, short)
	still := startHost(t, hostPart{Endpoints: []string{srv.Endpoint()}, Host: "still"})
	was := still.claim("stopped", instance.Slots{"db": 1})
	still.tell(order{Do: "act", ID: "stopped"})
	still.hear("acted", "stopped")
	next := begin(t, t.Context(), c, "next", instance.Slots{"db": 1})
	w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })

	still.freeze()
	asked, left := leaseLeft(t, backend, was.Lease)
	still.tell(order{Do: "act", ID: "stopped"}) // the first thing that it finds when it wakes
	got := next.granted()
	if took := (<-end.at).Sub(asked); took < left {
		t.Errorf("the slot was free after %s, and the lease had %s left", took, left)
	}
	still.thaw()
	still.hear("not acted", "stopped")
	if r := still.hear("ended", "stopped"); r.Code != "claim_lost" {
		t.Errorf("it got %s: %s", r.Code, r.Error)
	}
	// It is a host like any other again.
	release(t, got)
	still.claim("again", instance.Slots{"db": 1})
}

// What a host gives back when it wakes is another's by then, and stays so.
func TestAReleaseThatComesTooLateHarmsNobody(t *testing.T) {
	t.Parallel()
	const claims = 20
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	c := open(t, []string{srv.Endpoint()}, "alive")
	spec(t, []*instance.Client{c}, "db", claims, short)
	still := startHost(t, hostPart{Endpoints: []string{srv.Endpoint()}, Host: "still"})
	for i := range claims {
		still.claim(fmt.Sprintf("old%d", i), instance.Slots{"db": 1})
	}
	still.freeze()
	for i := range claims {
		still.tell(order{Do: "release", ID: fmt.Sprintf("old%d", i)})
	}
	var held []*instance.Claim
	for i := range claims {
		held = append(held, claim(t, c, fmt.Sprintf("new%d", i), instance.Slots{"db": 1}))
	}
	still.thaw()
	for i := range claims {
		still.hear("released", fmt.Sprintf("old%d", i))
	}
	w.look(func(h *History) {
		if h.Used("db") != claims {
			t.Errorf("%d of %d slots are left to their holders", h.Used("db"), claims)
		}
	})
	for _, cl := range held {
		if cl.Context().Err() != nil {
			t.Errorf("%s has ended: %v", cl, cl.Err())
		}
		release(t, cl)
	}
}

// A claim that waits on a host that is killed leaves the wait queue, and lets others
// in who waited behind it.
func TestTheLineForgetsAHostThatIsKilled(t *testing.T) {
	t.Parallel()
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	c := open(t, []string{srv.Endpoint()}, "alive")
	spec(t, []*instance.Client{c}, "db", 1, reserveAfter(0))
	first := claim(t, c, "first", instance.Slots{"db": 1})
	dead := startHost(t, hostPart{Endpoints: []string{srv.Endpoint()}, Host: "dead"})
	dead.tell(order{Do: "claim", ID: "killed", Slots: instance.Slots{"db": 1}})
	w.until("the other host waits", func(h *History) bool { return h.Wait("killed") != nil })
	eventuallyReserved(t, c, "killed")
	second := begin(t, t.Context(), c, "second", instance.Slots{"db": 1})
	w.until("ours waits behind it", func(h *History) bool { return h.Wait("second") != nil })
	dead.kill()
	release(t, first)
	release(t, second.granted())
	w.until("the line is empty", func(h *History) bool { return len(h.Waiting()) == 0 })
}

// A client that hangs up leaves no waiter.
func TestAClaimThatIsCanceledLeavesTheLine(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "a", 1, reserveAfter(0))
	spec(t, hosts, "b", 1)
	first := claim(t, hosts[0], "first", instance.Slots{"a": 1})
	ctx, cancel := context.WithCancel(t.Context())
	gone := begin(t, ctx, hosts[1], "gone", instance.Slots{"a": 1, "b": 1})
	w.until("it waits", func(h *History) bool { return h.Wait("gone") != nil })
	eventuallyReserved(t, hosts[2], "gone")
	next := begin(t, t.Context(), hosts[2], "next", instance.Slots{"b": 1})
	w.until("another waits behind it", func(h *History) bool { return h.Wait("next") != nil })
	cancel()
	gone.refused("claim_canceled")
	release(t, next.granted()) // the one that has gone keeps nothing of pool b
	release(t, first)
	w.until("nothing is left", func(h *History) bool { return len(h.Waiting()) == 0 && h.Held() == 0 })
}

// A sidecar that is started while etcd is away can't take any claim over. It stops what
// the sidecar before it has recorded.
func TestASidecarStartedWithoutEtcdStopsABoundProcessBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	q := quayOn(t, embedtest.New(t).Endpoint(), 1, 6*time.Second)
	p := through(t, q.etcd)
	dir := shortDir(t)
	s := startSidecar(t, p.endpoints()[0], "one", dir)
	job := exec.Command("sh", "-c", `trap "" TERM; while :; do sleep 0.05; done`)
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = job.Wait() // that it has ended is what counts
	}()
	t.Cleanup(func() {
		_ = job.Process.Kill()
		<-ended
	})
	status, body := q.overSocket(s.Socket, http.MethodPost, "/v1/claims",
		fmt.Sprintf(`{"id":"bound","pools":{"db":1},"pid":%d}`, job.Process.Pid))
	if status != http.StatusCreated {
		t.Fatalf("%d: %s", status, body)
	}
	q.hold("bound")

	s.kill()
	p.sever()
	launchSidecar(t, nil, p.endpoints()[0], "one", dir)
	select {
	case <-ended:
	case <-q.end.at:
		t.Error("the process still runs when its lease has ended")
	}
}
