package pool

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

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
