package admit

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// admitted returns the indexes of the waiters that a walk lets have their slots, in order.
func admitted(capacities []Capacity, waiters []*Waiter) (served []int) {
	k := NewWalk(capacities)
	for i, w := range waiters {
		if k.Next(w) == Fit {
			served = append(served, i)
		}
	}
	return served
}

func wait(needs ...Need) *Waiter { return &Waiter{Needs: needs} }

func TestWhoIsAdmitted(t *testing.T) {
	one := func(n int) Need { return Need{Pool: 0, N: n} }
	two := func(n int) Need { return Need{Pool: 1, N: n} }
	reserving := func(w *Waiter) *Waiter { w.Reserve = true; return w }
	for name, tc := range map[string]struct {
		capacities []Capacity
		queue      []*Waiter
		want       []int
	}{
		"an empty queue": {capacities: []Capacity{{Limit: 1, Open: true}}},
		"first come, first served": {
			capacities: []Capacity{{Limit: 2, Open: true}},
			queue:      []*Waiter{wait(one(1)), wait(one(1)), wait(one(1))},
			want:       []int{0, 1},
		},
		"others that fit pass one that does not": {
			capacities: []Capacity{{Limit: 3, Used: 2, Open: true}},
			queue:      []*Waiter{wait(one(2)), wait(one(1))},
			want:       []int{1},
		},
		"but not one that reserves": {
			capacities: []Capacity{{Limit: 3, Used: 2, Open: true}},
			queue:      []*Waiter{reserving(wait(one(2))), wait(one(1))},
		},
		"a second one that reserves keeps nothing": {
			capacities: []Capacity{{Limit: 9, Used: 5, Open: true}},
			queue:      []*Waiter{reserving(wait(one(5))), reserving(wait(one(6))), wait(one(1))},
		},
		"all or none of several pools": {
			capacities: []Capacity{{Limit: 1, Open: true}, {Limit: 1, Used: 1, Open: true}},
			queue:      []*Waiter{wait(one(1), two(1)), wait(one(1))},
			want:       []int{1},
		},
		"a reservation keeps slots in all its pools": {
			capacities: []Capacity{{Limit: 1, Open: true}, {Limit: 1, Used: 1, Open: true}},
			queue:      []*Waiter{reserving(wait(one(1), two(1))), wait(one(1))},
		},
		"paused pools grant nothing and reserve nothing": {
			capacities: []Capacity{{Limit: 1, Open: true}, {Limit: 1}},
			queue:      []*Waiter{reserving(wait(one(1), two(1))), wait(one(1))},
			want:       []int{1},
		},
		"what can never fit keeps nobody": {
			capacities: []Capacity{{Limit: 2, Used: 1, Open: true}},
			queue:      []*Waiter{reserving(wait(one(3))), wait(one(1))},
			want:       []int{1},
		},
		"above a lowered limit nobody gets in": {
			capacities: []Capacity{{Limit: 2, Used: 5, Open: true}},
			queue:      []*Waiter{wait(one(1))},
		},
		"unlimited pools always have free slots": {
			capacities: []Capacity{{Limit: Unlimited, Used: 1 << 30, Open: true}},
			queue:      []*Waiter{wait(one(1_000_000))},
			want:       []int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, admitted(tc.capacities, tc.queue)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func drawCapacities(t *rapid.T) []Capacity {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Capacity {
		return Capacity{
			Limit: rapid.IntRange(-1, 12).Draw(t, "limit"),
			Used:  rapid.IntRange(0, 14).Draw(t, "used"),
			Open:  rapid.IntRange(0, 9).Draw(t, "open") > 0,
		}
	}), 1, 4).Draw(t, "capacities")
}

func drawWaiters(t *rapid.T, capacities int) []*Waiter {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Waiter {
		w := &Waiter{Reserve: rapid.Bool().Draw(t, "reserve")}
		for r := range capacities {
			if rapid.Bool().Draw(t, "in") {
				w.Needs = append(w.Needs, Need{Pool: r, N: rapid.IntRange(1, 6).Draw(t, "n")})
			}
		}
		if len(w.Needs) == 0 {
			w.Needs = []Need{{Pool: 0, N: 1}}
		}
		return w
	}), 0, 12).Draw(t, "queue")
}

// clone copies what a walk is given, to see whether it leaves it alone.
func clone(capacities []Capacity, waiters []*Waiter) ([]Capacity, []*Waiter) {
	l := make([]*Waiter, len(waiters))
	for i, w := range waiters {
		c := *w
		c.Needs = slices.Clone(w.Needs)
		l[i] = &c
	}
	return slices.Clone(capacities), l
}

func TestAWalkNeverExceedsALimitAndLeavesItsInputAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		waiters := drawWaiters(t, len(capacities))
		r, l := clone(capacities, waiters)
		served := admitted(capacities, waiters)
		if !reflect.DeepEqual(r, capacities) || !reflect.DeepEqual(l, waiters) {
			t.Fatal("the input was changed")
		}
		for _, i := range served {
			for _, n := range waiters[i].Needs {
				r[n.Pool].Used += n.N
			}
			for _, n := range waiters[i].Needs {
				if reserved := r[n.Pool]; !reserved.Open || reserved.Limit != Unlimited && reserved.Used > reserved.Limit {
					t.Fatalf("waiter %d of %d takes more than %+v has", i, len(waiters), capacities[n.Pool])
				}
			}
		}
	})
}

func TestWithoutReservationsNothingThatFitsIsLeftBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		waiters := drawWaiters(t, len(capacities))
		for _, w := range waiters {
			w.Reserve = false
		}
		in := admitted(capacities, waiters)
		free := make([]int, len(capacities))
		for i, r := range capacities {
			free[i] = r.Limit - r.Used
			if r.Limit == Unlimited {
				free[i] = 1 << 40
			}
		}
		for _, i := range in {
			take(free, waiters[i])
		}
		for i, w := range waiters {
			if !slices.Contains(in, i) && possible(capacities, w) && fits(free, w) {
				t.Fatalf("waiter %d still fits", i)
			}
		}
	})
}

// TestTheFirstThatReservesIsNotStarved has claims come and go: whatever comes
// behind it, the first waiter that reserves and can be served is, once those
// who hold now have released.
func TestTheFirstThatReservesIsNotStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		first := drawWaiters(t, len(capacities))
		if len(first) == 0 {
			return
		}
		w := first[0]
		w.Reserve = true
		if !possible(capacities, w) {
			return
		}
		var held []*Waiter // granted in the course of this
		for round := 0; ; round++ {
			waiters := append([]*Waiter{w}, drawWaiters(t, len(capacities))...)
			served := admitted(capacities, waiters)
			for _, i := range served {
				if i == 0 {
					return
				}
				held = append(held, waiters[i])
				for _, n := range waiters[i].Needs {
					capacities[n.Pool].Used += n.N
				}
			}
			// Those who held at the beginning release, one slot a round; those
			// who came in behind hold for ever.
			freed := false
			for r := range capacities {
				came := 0
				for _, h := range held {
					for _, n := range h.Needs {
						if n.Pool == r {
							came += n.N
						}
					}
				}
				if capacities[r].Used > came {
					capacities[r].Used--
					freed = true
				}
			}
			if !freed && round > 30 {
				t.Fatalf("the first waiter %+v is passed by %d others for ever; capacities %+v", *w, len(held), capacities)
			}
		}
	})
}
