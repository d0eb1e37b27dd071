package pool

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

func wait(mine bool, needs ...PoolNeed) *Waiting { return &Waiting{Needs: needs, Mine: mine} }

func TestAdmit(t *testing.T) {
	one := func(n int) PoolNeed { return PoolNeed{Pool: 0, N: n} }
	two := func(n int) PoolNeed { return PoolNeed{Pool: 1, N: n} }
	reserving := func(w *Waiting) *Waiting { w.Reserve = true; return w }
	yielded := func(w *Waiting) *Waiting { w.Yielded = true; return w }
	for name, tc := range map[string]struct {
		capacities []Capacity
		line       []*Waiting
		want       Decision
	}{
		"an empty line": {capacities: []Capacity{{Limit: 1, Open: true}}},
		"first come, first served": {
			capacities: []Capacity{{Limit: 2, Open: true}},
			line:       []*Waiting{wait(true, one(1)), wait(false, one(1)), wait(true, one(1))},
			want:       Decision{Grants: []int{0}, Fits: []int{1}},
		},
		"others that fit pass one that does not": {
			capacities: []Capacity{{Limit: 3, Used: 2, Open: true}},
			line:       []*Waiting{wait(true, one(2)), wait(true, one(1))},
			want:       Decision{Grants: []int{1}},
		},
		"but not one that reserves": {
			capacities: []Capacity{{Limit: 3, Used: 2, Open: true}},
			line:       []*Waiting{reserving(wait(true, one(2))), wait(true, one(1))},
		},
		"a second one that reserves keeps nothing": {
			capacities: []Capacity{{Limit: 9, Used: 5, Open: true}},
			line:       []*Waiting{reserving(wait(true, one(5))), reserving(wait(true, one(6))), wait(true, one(1))},
		},
		"all or none of several pools": {
			capacities: []Capacity{{Limit: 1, Open: true}, {Limit: 1, Used: 1, Open: true}},
			line:       []*Waiting{wait(true, one(1), two(1)), wait(true, one(1))},
			want:       Decision{Grants: []int{1}},
		},
		"a reservation keeps slots in all its pools": {
			capacities: []Capacity{{Limit: 1, Open: true}, {Limit: 1, Used: 1, Open: true}},
			line:       []*Waiting{reserving(wait(true, one(1), two(1))), wait(true, one(1))},
		},
		"paused pools grant nothing and reserve nothing": {
			capacities: []Capacity{{Limit: 1, Open: true}, {Limit: 1}},
			line:       []*Waiting{reserving(wait(true, one(1), two(1))), wait(true, one(1))},
			want:       Decision{Grants: []int{1}},
		},
		"what can never fit keeps nobody": {
			capacities: []Capacity{{Limit: 2, Used: 1, Open: true}},
			line:       []*Waiting{reserving(wait(true, one(3))), wait(true, one(1))},
			want:       Decision{Grants: []int{1}},
		},
		"a silent head of the line does not block": {
			capacities: []Capacity{{Limit: 1, Open: true}},
			line:       []*Waiting{yielded(wait(false, one(1))), wait(true, one(1))},
			want:       Decision{Grants: []int{1}},
		},
		"above a lowered limit nobody gets in": {
			capacities: []Capacity{{Limit: 2, Used: 5, Open: true}},
			line:       []*Waiting{wait(true, one(1))},
		},
		"unlimited pools always have free slots": {
			capacities: []Capacity{{Limit: Unlimited, Used: 1 << 30, Open: true}},
			line:       []*Waiting{wait(true, one(MaxLimit))},
			want:       Decision{Grants: []int{0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Admit(tc.capacities, tc.line)
			got.Free, got.Reserved = nil, nil // see Space
			if diff := cmp.Diff(tc.want, got); diff != "" {
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

func drawWaiters(t *rapid.T, capacities int) []*Waiting {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Waiting {
		w := &Waiting{
			Mine:    rapid.Bool().Draw(t, "mine"),
			Reserve: rapid.Bool().Draw(t, "reserve"),
			Yielded: rapid.IntRange(0, 9).Draw(t, "yielded") == 0,
		}
		for r := range capacities {
			if rapid.Bool().Draw(t, "in") {
				w.Needs = append(w.Needs, PoolNeed{Pool: r, N: rapid.IntRange(1, 6).Draw(t, "n")})
			}
		}
		if len(w.Needs) == 0 {
			w.Needs = []PoolNeed{{Pool: 0, N: 1}}
		}
		return w
	}), 0, 12).Draw(t, "line")
}

// clone copies what Admit is given, to see whether it leaves it alone.
func clone(capacities []Capacity, waiters []*Waiting) ([]Capacity, []*Waiting) {
	l := make([]*Waiting, len(waiters))
	for i, w := range waiters {
		c := *w
		c.Needs = slices.Clone(w.Needs)
		l[i] = &c
	}
	return slices.Clone(capacities), l
}

func TestAdmitNeverExceedsALimitAndLeavesItsInputAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		waiters := drawWaiters(t, len(capacities))
		r, l := clone(capacities, waiters)
		d := Admit(capacities, waiters)
		if !reflect.DeepEqual(r, capacities) || !reflect.DeepEqual(l, waiters) {
			t.Fatal("the input was changed")
		}
		for _, i := range merge(d.Grants, d.Fits) {
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

func TestAllHostsDecideTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		waiters := drawWaiters(t, len(capacities))
		_, mirrored := clone(capacities, waiters)
		for _, w := range mirrored {
			w.Mine = !w.Mine // the other host's sight
		}
		a, b := Admit(capacities, waiters), Admit(capacities, mirrored)
		if !slices.Equal(a.Grants, b.Fits) || !slices.Equal(a.Fits, b.Grants) {
			t.Fatalf("one host decides %+v, the other %+v", a, b)
		}
	})
}

func TestWithoutReservationsNothingThatFitsIsLeftBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := drawCapacities(t)
		waiters := drawWaiters(t, len(capacities))
		for _, w := range waiters {
			w.Reserve, w.Yielded = false, false
		}
		d := Admit(capacities, waiters)
		in := merge(d.Grants, d.Fits)
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
		w.Reserve, w.Yielded, w.Mine = true, false, true
		if !possible(capacities, w) {
			return
		}
		var held []*Waiting // granted in the course of this
		for round := 0; ; round++ {
			waiters := append([]*Waiting{w}, drawWaiters(t, len(capacities))...)
			d := Admit(capacities, waiters)
			for _, i := range merge(d.Grants, d.Fits) {
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

func TestOrderSortsAsItsTextDoes(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) Order {
		return Order{
			Priority: rapid.IntRange(MinPriority, MaxPriority).Draw(t, "priority"),
			Since:    rapid.Int64Range(0, 1<<62).Draw(t, "since"),
			Claim:    rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,20}`).Draw(t, "claim"),
			By:       rapid.Uint32().Draw(t, "by"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		byText := 0
		switch {
		case a.String() < b.String():
			byText = -1
		case a.String() > b.String():
			byText = 1
		}
		if a.Compare(b) != byText {
			t.Fatalf("%q and %q", a, b)
		}
		if got, err := ParseOrder(a.String()); err != nil || got != a {
			t.Fatalf("%q reads as %+v, %v", a, got, err)
		}
	})
}

func TestWhoGivesRetainedSlotsBack(t *testing.T) {
	const retain = 100 * time.Millisecond
	type used = map[store.LeaseID]int
	lacks := func(lease store.LeaseID, n int, since time.Duration) lacking {
		return lacking{lease: lease, n: n, since: since}
	}
	tests := map[string]struct {
		used   used
		waits  []lacking
		urgent bool
		keep   map[string]int
		next   time.Duration
	}{
		"none is late":                         {used{1: 8}, []lacking{lacks(2, 1, 24*time.Millisecond), lacks(2, 1, 0)}, false, nil, time.Millisecond},
		"one has all":                          {used{1: 8}, []lacking{lacks(2, 9, 25*time.Millisecond)}, true, map[string]int{"1": 4}, 75 * time.Millisecond},
		"one has all, and less is lacking":     {used{1: 8}, []lacking{lacks(2, 1, 25*time.Millisecond)}, true, map[string]int{"1": 7}, 75 * time.Millisecond},
		"those with the most give back":        {used{1: 5, 2: 2, 3: 1}, []lacking{lacks(4, 2, 25*time.Millisecond)}, true, map[string]int{"1": 3}, 75 * time.Millisecond},
		"several have the most":                {used{1: 4, 2: 4}, []lacking{lacks(3, 2, 25*time.Millisecond)}, true, map[string]int{"1": 3, "2": 3}, 75 * time.Millisecond},
		"an equal share":                       {used{1: 4, 2: 4}, []lacking{lacks(2, 3, 49*time.Millisecond)}, false, nil, time.Millisecond},
		"an equal share, for half of the time": {used{1: 4, 2: 4}, []lacking{lacks(2, 3, 50*time.Millisecond)}, true, map[string]int{"2": 1}, 50 * time.Millisecond},
		"a part of a share":                    {used{1: 6, 2: 2}, []lacking{lacks(2, 3, 25*time.Millisecond)}, true, map[string]int{"1": 5, "2": 0}, 75 * time.Millisecond},
		"more instances than slots":            {used{1: 1, 2: 1}, []lacking{lacks(3, 1, 25*time.Millisecond)}, true, map[string]int{"1": 0}, 75 * time.Millisecond},
		"for the whole time":                   {used{1: 4, 2: 4}, []lacking{lacks(3, 1, 100*time.Millisecond)}, true, nil, 0},
		"it reserves":                          {used{1: 4, 2: 4}, []lacking{lacks(3, 1, 0), {lease: 3, n: 5, reserve: true}}, true, nil, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			urgent, keep, next := keeps(test.used, test.waits, 8, retain)
			if urgent != test.urgent || !cmp.Equal(keep, test.keep) || next != test.next {
				t.Errorf("%t, %v, again in %s", urgent, keep, next)
			}
		})
	}
}

func TestSlotsAreTakenFromThoseWithTheMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.MapOfN(rapid.Int64Range(1, 9), rapid.IntRange(0, 9), 1, 6).Draw(t, "of")
		n := rapid.IntRange(0, 40).Draw(t, "n")
		want, got := map[store.LeaseID]int{}, map[store.LeaseID]int{}
		for id, used := range of {
			want[store.LeaseID(id)], got[store.LeaseID(id)] = used, used
		}
		for range n { // one by one
			most := slices.SortedFunc(maps.Keys(want), func(a, b store.LeaseID) int { return want[b] - want[a] })[0]
			want[most] = max(0, want[most]-1)
		}
		takeFromMost(got, n)
		if a, b := slices.Sorted(maps.Values(got)), slices.Sorted(maps.Values(want)); !slices.Equal(a, b) {
			t.Fatalf("of %v, %d are taken: %v are left, want %v", of, n, a, b)
		}
	})
}
