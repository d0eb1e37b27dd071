package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// three opens three hosts on one etcd.
func three(t testing.TB, endpoints []string) []*instance.Client {
	t.Helper()
	var all []*instance.Client
	for i := range 3 {
		all = append(all, open(t, endpoints, fmt.Sprintf("host%d", i)))
	}
	return all
}

func TestALimitChangedUnderLoadIsNeverExceeded(t *testing.T) {
	srv := embedtest.New(t)
	backend := embedtest.Client(t, srv)
	w := watch(t, backend)
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 5)

	l := start(t, hosts, 8, func(round int) (instance.Slots, time.Duration) {
		return instance.Slots{"db": 1 + round%2}, time.Duration(round%4) * time.Millisecond
	})
	for range 3 {
		for _, limit := range []int{5, 2, 9} {
			spec(t, hosts, "db", limit)
			l.more(150)
			w.until("all slots are used", func(h *History) bool { return h.Peak("db", limit) == limit })
		}
	}
	l.end()
	l.granted.judge(w)
	// Claims that were granted as their requests ended are released by their engines.
	w.until("no claim is left", func(h *History) bool { return h.Held() == 0 && h.Used("db") == 0 })
}

func TestALoweredLimitDrainsBeforeItAdmits(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 5)
	var held []*instance.Claim
	for i := range 5 {
		held = append(held, claim(t, hosts[i%3], fmt.Sprintf("held%d", i), instance.Slots{"db": 1}))
	}
	spec(t, hosts, "db", 2)
	var line []*pending
	for i := range 12 {
		line = append(line, begin(t, t.Context(), hosts[i%3], fmt.Sprintf("wait%02d", i), instance.Slots{"db": 1}))
	}
	w.until("all wait", func(h *History) bool { return len(h.Waiting()) == 12 })

	// Three go, and two are left: as many as there may be. One more has to go for
	// each that comes.
	for i := range 3 {
		release(t, held[i])
	}
	w.look(func(h *History) {
		if h.Used("db") != 2 || len(h.Waiting()) != 12 {
			t.Errorf("%d slots are used and %d claims wait", h.Used("db"), len(h.Waiting()))
		}
	})
	release(t, held[3])
	w.until("the first that waits is granted", func(h *History) bool { return len(h.Waiting()) == 11 && h.Used("db") == 2 })

	// Seven more are woken by the raise, and by nothing else: there is no polling.
	spec(t, hosts, "db", 9)
	w.until("the raise is used", func(h *History) bool { return h.Used("db") == 9 && len(h.Waiting()) == 4 })
	spec(t, hosts, "db", 13)
	for _, p := range line {
		release(t, p.granted())
	}
	release(t, held[4])
}

func TestAClosedAPausedAndADeletedPoolAdmitNobody(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	line := []*pending{
		begin(t, ctx, hosts[0], "one", instance.Slots{"db": 1}),
		begin(t, ctx, hosts[1], "two", instance.Slots{"db": 1}),
	}
	w.until("both wait", func(h *History) bool { return len(h.Waiting()) == 2 })
	if _, err := hosts[2].Operator().PausePool(ctx, "db", true); err != nil {
		t.Fatal(err)
	}
	spec(t, hosts, "db", 1)
	w.look(func(h *History) {
		if len(h.Waiting()) != 2 || h.Held() != 0 {
			t.Errorf("%d wait and %d hold", len(h.Waiting()), h.Held())
		}
	})
	if _, err := hosts[2].Operator().PausePool(ctx, "db", false); err != nil {
		t.Fatal(err)
	}
	w.until("one is in", func(h *History) bool { return h.Held() == 1 && len(h.Waiting()) == 1 })
	if err := hosts[2].DeletePool(ctx, "db", nil); err != nil {
		t.Fatal(err)
	}
	in, out := line[0], line[1]
	w.look(func(h *History) {
		if h.Hold(in.id) == nil {
			in, out = out, in
		}
	})
	out.refused("pool_not_found")
	release(t, in.granted())
}
