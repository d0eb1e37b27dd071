package list

import (
	"slices"
	"testing"

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
		"an offer to none": {func(w byHand) { w.offers("one", 0, wire.DemandRef{Pool: "db", Name: 7, Created: 3}) }, 8},
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

// What fits into the space is what a walk grants to new claims behind the waiters, one after the other, with the slots that
// some of them reserve.
func TestSpaceIsWhatAdmitLeaves(t *testing.T) {
	t.Parallel()
	fitted, refused := 0, 0
	for seed := range uint64(300) {
		w := newWorld(seed).run(70)
		for key := range w.kvs { // what is offered is not an order of a walk
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
			one := &admit.Waiter{Reserve: reserve}
			for name, n := range needs {
				one.Needs = append(one.Needs, admit.Need{Pool: slices.Index(names, name), N: n})
			}
			return one
		}
		k := admit.NewWalk(capacities)
		for _, q := range s.waiting() {
			if !s.passed(q.by) {
				k.Next(waiter(q.Pools, q.Reserve))
			}
		}
		space := s.Space()
		var want, got []int
		for i := range 5 {
			needs, reserve := w.needs(), w.IntN(3) == 0
			if k.Next(waiter(needs, reserve)) == admit.Fit {
				got = append(got, i)
			}
			switch {
			case space.Fits(needs):
				want = append(want, i)
				space.Take(needs)
			case reserve:
				space.Reserve(needs)
			}
		}
		if fitted, refused = fitted+len(want), refused+5-len(want); !slices.Equal(got, want) {
			t.Fatalf("seed %d: a walk grants %v, of the space are %v", seed, got, want)
		}
	}
	if t.Logf("%d claims fitted, %d did not", fitted, refused); min(fitted, refused) < 200 {
		t.Error("too few")
	}
}
