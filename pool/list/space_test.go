package list

import (
	"maps"
	"slices"
	"testing"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

func TestSpaceIsWhatWaitersLeave(t *testing.T) {
	for name, c := range map[string]struct {
		make func(w byHand)
		free int
	}{
		"no waiter":                 {func(byHand) {}, 8},
		"one that fits":             {func(w byHand) { w.waits("w", "one", db(3)) }, 5},
		"one that does not":         {func(w byHand) { w.waits("w", "one", db(9)) }, 8},
		"one that reserves":         {func(w byHand) { w.waits("w", "one", db(9), reserves) }, 0},
		"one that never fits":       {func(w byHand) { w.waits("w", "one", db(11), reserves) }, 8},
		"one that is short in gpu":  {func(w byHand) { w.waits("w", "one", map[string]int{"db": 3, "gpu": 1}) }, 8},
		"one whose owner is passed": {func(w byHand) { w.waits("w", "one", db(3)); w.passed("one") }, 8},
		"an offer":                  {func(w byHand) { w.offers("one", 0, w.waits("w", "one", db(3))) }, 5},
		"an offer to one that is passed": {func(w byHand) {
			w.offers("one", 0, w.waits("w", "one", db(3)))
			w.passed("one")
		}, 5},
		"an offer to one that is not first": {func(w byHand) {
			w.waits("v", "one", db(9), priority(1), reserves)
			w.offers("one", 0, w.waits("w", "one", db(3)))
		}, -4},
		"an offer to none":        {func(w byHand) { w.offers("one", 0, wire.DemandRef{Pool: "db", Name: 7, Created: 3}) }, 8},
		"a worker without word":   {func(w byHand) { w.waits("w", "one", db(1), steps(5)) }, 8},
		"a worker that is full":   {func(w byHand) { w.waits("w", "one", db(1), steps(5)); w.places("one", 0) }, 8},
		"a worker with places":    {func(w byHand) { w.waits("w", "one", db(2), steps(5)); w.places("one", 3) }, 2},
		"a worker with few steps": {func(w byHand) { w.waits("w", "one", db(2), steps(2)); w.places("one", 3) }, 4},
		"a worker with offers": {func(w byHand) {
			ref := w.waits("w", "one", db(1), steps(5))
			w.places("one", 3)
			w.offers("one", 0, ref, ref)
		}, 5},
		"a worker with steps in use": {func(w byHand) {
			w.waits("w", "one", map[string]int{"db": 2, "gpu": 1}, steps(1), reserves)
			w.places("one", 3)
		}, 8},
		"a worker with other claims": {func(w byHand) { w.waits("w", "one", db(2), steps(1), reserves); w.places("one", 3) }, 6},
		"a worker with two demands": {func(w byHand) {
			w.waits("v", "one", db(9), steps(2))
			w.waits("w", "one", db(1), steps(2))
			w.waits("x", "one", db(2), steps(2))
			w.places("one", 3)
		}, 4},
		"a worker that reserves": {func(w byHand) { w.waits("w", "one", db(3), steps(5), reserves); w.places("one", 3) }, -1},
	} {
		w := newByHand(t)
		w.spec("db", 10)
		w.spec("gpu", 1)
		w.hold("a", "one", map[string]int{"db": 2, "gpu": 1})
		c.make(w)
		space := w.state().Space()
		if n := free(space, "db"); n != max(0, c.free) {
			t.Errorf("%s: %d slots are free, want %d", name, n, c.free)
		}
	}
}

// What fits into the space is what Admit grants to new claims behind the waiters, one after the other, with the slots that
// some of them reserve.
func TestSpaceIsWhatAdmitLeaves(t *testing.T) {
	t.Parallel()
	fitted, refused := 0, 0
	for seed := range uint64(300) {
		w := newWorld(seed).run(70)
		for key := range w.kvs { // what is offered is not an order of Admit
			if o, err := w.keys.OfferKey(key); err == nil && !o.Passed() {
				delete(w.kvs, key)
			}
		}
		s := w.state()
		names := worldPools[:3]
		var capacities []admit.Capacity
		for _, name := range names {
			p := s.brief(name)
			capacities = append(capacities, admit.Capacity{Limit: p.Limit, Used: p.Claimed, Open: !p.Paused})
		}
		waiter := func(needs map[string]int, reserve bool) *admit.Waiter {
			one := &admit.Waiter{Reserve: reserve, Mine: true}
			for name, n := range needs {
				one.Needs = append(one.Needs, admit.Need{Pool: slices.Index(names, name), N: n})
			}
			return one
		}
		var all []*admit.Waiter
		fits := func(w *admit.Waiter) bool {
			all = append(all, w)
			grants := admit.Admit(capacities, all).Grants
			return slices.Contains(grants, len(all)-1)
		}
		used := map[instance]int{}
		for _, q := range s.waiting() {
			n := 1
			if q.Steps > 0 {
				n = min(q.Steps-w.inUse(q), s.places[q.by]-used[q.by])
			}
			for range n {
				if s.passed(q.by) || !fits(waiter(q.Pools, q.Reserve)) {
					break
				}
				if q.Steps > 0 {
					used[q.by]++
				}
			}
		}
		first, space := len(all), s.Space()
		var want []int
		for i := range 5 {
			needs, reserve := w.needs(), w.IntN(3) == 0
			all = append(all, waiter(needs, reserve))
			switch {
			case space.Fits(needs):
				want = append(want, first+i)
				space.Take(needs)
			case reserve:
				space.Reserve(needs)
			}
		}
		var got []int
		for _, i := range admit.Admit(capacities, all).Grants {
			if i >= first {
				got = append(got, i)
			}
		}
		if fitted, refused = fitted+len(want), refused+5-len(want); !slices.Equal(got, want) {
			t.Fatalf("seed %d: Admit grants %v, of the space are %v", seed, got, want)
		}
	}
	if t.Logf("%d claims fitted, %d did not", fitted, refused); min(fitted, refused) < 200 {
		t.Error("too few")
	}
}

// inUse counts the claims that are like the demand of a worker.
func (w *world) inUse(q *waiter) (n int) {
	for _, m := range w.claims {
		if h := m.req.Holder; h.Host == q.by.host && h.Instance == q.by.name && maps.Equal(m.req.Slots, q.Pools) && m.req.Priority == q.Priority {
			n++
		}
	}
	return n
}

// A worker that would take many steps in a pool with few slots is no work.
func TestSpaceIsBounded(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 5)
	w.spec("many", pool.Unlimited)
	for i := range 500 {
		host := "h" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		w.waits("w"+host, host, map[string]int{"db": 1, "many": 1}, steps(10_000))
		w.places(host, 10_000)
	}
	s := w.state()
	if n := testing.AllocsPerRun(1, func() { s.Space() }); n > 5000 {
		t.Errorf("%v allocations", n)
	}
}
