package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// A claim for all slots waits among many claims for one slot each. They pass it until slots are
// reserved for it; from then on, no claim on any host passes it, and it is granted when the earlier
// claims have been released.
func TestAWideClaimIsServedAmongNarrowOnes(t *testing.T) {
	const limit = 4
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "db", limit, reserveAfter(time.Second))
	spec(t, hosts, "free", 100)

	// The anchor keeps the wide one waiting until the test has seen enough.
	anchor := claim(t, hosts[0], "anchor", instance.Slots{"db": 1})
	l := start(t, hosts, 4, func(round int) (instance.Slots, time.Duration) {
		return instance.Slots{"db": 1}, time.Duration(round%3) * time.Millisecond
	})
	l.more(50)
	wide := begin(t, t.Context(), hosts[1], "wide", instance.Slots{"db": limit})
	w.until("the wide one has its slots reserved", func(h *History) bool {
		x := h.Wait("wide")
		return x != nil && x.Reserved > 0
	})

	// A host that has seen that and then written anything else has resolved what it sent
	// before: from here on there must be no narrow grant.
	for i, c := range hosts {
		eventuallyReserved(t, c, "wide")
		release(t, claim(t, c, fmt.Sprintf("barrier%d", i), instance.Slots{"free": 1}))
	}
	since := w.now()
	w.until("the others have gone", func(h *History) bool { return h.Used("db") == 1 })
	if !wide.waiting() {
		t.Error("the wide one was served while the anchor had a slot")
	}
	release(t, anchor)
	got := wide.granted()
	for _, x := range narrow(w) {
		if x.From > since && x.From < got.Fence().Revision() {
			t.Errorf("%s came in at revision %d, between %d and %d", x.Claim, x.From, since, got.Fence().Revision())
		}
	}
	release(t, got)
	l.more(50) // the others go on
	l.end()
	l.granted.judge(w)
}

func narrow(w *witness) (all []Hold) {
	w.look(func(h *History) {
		for _, x := range h.Holds() {
			if strings.HasPrefix(x.Claim, "host") {
				all = append(all, x)
			}
		}
	})
	return all
}

// On the host of the wide claim itself not one gets in between, from the very
// revision on, but for those of the transaction that was under way then.
func TestAWideClaimIsNotPassedOnItsOwnHost(t *testing.T) {
	const limit = 4
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	c := open(t, []string{srv.Endpoint()}, "host0")
	spec(t, []*instance.Client{c}, "db", limit, reserveAfter(200*time.Millisecond))
	anchor := claim(t, c, "anchor", instance.Slots{"db": 1})
	l := start(t, []*instance.Client{c}, 8, func(int) (instance.Slots, time.Duration) { return instance.Slots{"db": 1}, 0 })
	l.more(50)
	wide := begin(t, t.Context(), c, "wide", instance.Slots{"db": limit})
	var reserved int64
	w.until("the others have gone", func(h *History) bool {
		if x := h.Wait("wide"); x != nil {
			reserved = x.Reserved
		}
		return reserved > 0 && h.Used("db") == 1
	})
	release(t, anchor)
	got := wide.granted()
	under := int64(0) // of the transaction that was under way when the reservation was put
	for _, x := range narrow(w) {
		if x.From <= reserved || x.From > got.Fence().Revision() {
			continue
		}
		if under == 0 {
			under = x.From
		}
		if x.From != under {
			t.Errorf("%s came in at revision %d, between %d and %d", x.Claim, x.From, reserved, got.Fence().Revision())
		}
	}
	release(t, got)
	l.more(50)
	l.end()
	l.granted.judge(w)
}

// With reserve_after 0 the order of a pool's line is strict, over all hosts.
func TestStrictOrderIsKeptOverHosts(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "a", 3, reserveAfter(0))
	first := claim(t, hosts[0], "first", instance.Slots{"a": 2})
	var line []*pending // no two of which fit together
	for i, n := range []int{3, 2, 2, 3, 2, 3} {
		line = append(line, lineUp(t, w, hosts, i, instance.Slots{"a": n}))
	}
	release(t, first)
	for _, p := range line {
		release(t, p.granted())
	}
	w.look(func(h *History) {
		last := int64(0)
		for i := range line {
			x := h.Hold(fmt.Sprintf("wait%d", i))
			if x.From < last {
				t.Errorf("%s was passed", x.Claim)
			}
			last = x.From
		}
	})
}

// Who is first in two lines is passed in neither, although in one of them there
// would be free slots.
func TestTheFirstOfTwoLinesIsPassedInNeither(t *testing.T) {
	srv := embedtest.New(t)
	w := watch(t, embedtest.Client(t, srv))
	hosts := three(t, []string{srv.Endpoint()})
	spec(t, hosts, "a", 2, reserveAfter(0))
	spec(t, hosts, "b", 2, reserveAfter(0))
	first := claim(t, hosts[0], "first", instance.Slots{"b": 1})
	line := []*pending{
		lineUp(t, w, hosts, 0, instance.Slots{"a": 2, "b": 2}),
		lineUp(t, w, hosts, 1, instance.Slots{"a": 1}),
		lineUp(t, w, hosts, 2, instance.Slots{"b": 1}),
	}
	release(t, first)
	both := line[0].granted()
	w.look(func(h *History) {
		for _, id := range []string{"wait1", "wait2"} {
			if x := h.Hold(id); x != nil && x.From <= both.Fence().Revision() {
				t.Errorf("%s passed", id)
			}
		}
	})
	release(t, both)
	release(t, line[1].granted())
	release(t, line[2].granted())
}

// lineUp queues a claim and returns when every host sees it there.
func lineUp(t testing.TB, w *witness, hosts []*instance.Client, i int, slots instance.Slots) *pending {
	t.Helper()
	id := fmt.Sprintf("wait%d", i)
	p := begin(t, t.Context(), hosts[i%len(hosts)], id, slots)
	w.until(id+" waits", func(h *History) bool { return h.Wait(id) != nil })
	for _, c := range hosts {
		eventuallyReserved(t, c, id)
	}
	return p
}

// eventuallyReserved waits until a client sees that slots are reserved for a waiter.
func eventuallyReserved(t testing.TB, c *instance.Client, id string) {
	t.Helper()
	eventuallySees(t, c, id, func(reserve bool) bool { return reserve })
}
