package pool

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// drawView draws pools with slots in them as claims, other limits and other
// layouts have left them: also beyond a capacity, and in groups that are no more.
func drawView(t *rapid.T) *view {
	v := newView(store.NewKeys("/b/"))
	for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "pools")] {
		p := v.pool(name)
		p.rev = 100
		p.spec, p.specRev = DefaultSpec(), 1
		p.spec.Limit = rapid.OneOf(
			rapid.IntRange(1, 12), rapid.IntRange(45, 160), rapid.SampledFrom([]int{Unlimited, 1000, MaxLimit}),
		).Draw(t, "limit")
		p.layout = layoutOf(p.spec.Limit)
		for i := range rapid.IntRange(0, 30).Draw(t, "slots") {
			ref := slotRef{name, rapid.IntRange(0, min(p.layout.groups+1, MaxGroups-1)).Draw(t, "group"), rapid.IntRange(0, 8).Draw(t, "index")}
			v.setSlot(ref, slot{n: rapid.IntRange(1, 4).Draw(t, "n"), claim: claimKey{id: fmt.Sprint(name, i)}, rev: 2}, nil, nil)
		}
	}
	return v
}

func drawNeeds(t *rapid.T, v *view) []Need {
	slots := map[string]int{}
	for _, p := range v.order {
		if rapid.Bool().Draw(t, "wanted") || len(slots) == 0 {
			slots[p.name] = rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 200)).Draw(t, "n")
		}
	}
	return needsOf(slots)
}

// capacities is how much each group has left in the eyes of a placer.
func (pl *placer) capacities() map[groupRef]int {
	all := map[groupRef]int{}
	for _, p := range pl.view.order {
		for g := range p.layout.groups {
			all[groupRef{p, g}] = pl.freeIn(p, pl.overlay(p), g)
		}
	}
	return all
}

// placing is a placer with what it has done.
type placing struct {
	*placer
	t      *rapid.T
	taken  map[slotRef]bool // in the view or by this batch
	picked map[groupRef]int // keys, those included that were undone
}

// lacking names a pool that has too few free slots, "" if there is none.
func (pl *placing) lacking(needs []Need) string {
	for _, n := range needs {
		p := pl.view.pool(n.Pool)
		if p.spec.Limit != Unlimited && p.used+pl.overlay(p).used+n.N > p.spec.Limit {
			return n.Pool
		}
	}
	return ""
}

func (pl *placing) place(needs []Need, start uint32) []placed {
	lacking, before := pl.lacking(needs), pl.capacities()
	slots := pl.placer.place(needs, start)
	if slots == nil {
		if lacking == "" {
			pl.t.Fatalf("no place for %v, though they fit", needs)
		}
		if !maps.Equal(before, pl.capacities()) {
			pl.t.Fatalf("what did not fit has taken slots")
		}
		return nil
	}
	if lacking != "" {
		pl.t.Fatalf("%v were placed, though pool %s lacks slots", needs, lacking)
	}
	pl.check(needs, slots, before)
	return slots
}

// check checks slots that were placed.
func (pl *placing) check(needs []Need, slots []placed, before map[groupRef]int) {
	sum := map[string]int{}
	for _, s := range slots {
		sum[s.ref.pool] += s.n
		p := pl.view.pool(s.ref.pool)
		g := groupRef{p, s.ref.group}
		switch {
		case s.n < 1:
			pl.t.Fatalf("%s holds %d slots", s.ref, s.n)
		case pl.taken[s.ref]:
			pl.t.Fatalf("%s is taken twice", s.ref)
		case s.ref.index > 9+pl.picked[g]: // the view has indexes up to 8
			pl.t.Fatalf("%s is not the lowest index that is free", s.ref)
		}
		pl.taken[s.ref] = true
		pl.picked[g]++
		before[g] -= s.n
		if before[g] < 0 {
			pl.t.Fatalf("group %d of pool %s holds %d more than its capacity", s.ref.group, p.name, -before[g])
		}
	}
	for _, n := range needs {
		if sum[n.Pool] != n.N {
			pl.t.Fatalf("%v of %v were placed", sum, needs)
		}
	}
	if len(sum) != len(needs) || !maps.Equal(before, pl.capacities()) {
		pl.t.Fatalf("%v of %v were placed; free %v, want %v", sum, needs, pl.capacities(), before)
	}
}

func TestPlacesAreDistinctAndWithinTheCapacities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		pl := &placing{placer: newPlacer(v), t: t, taken: map[slotRef]bool{}, picked: map[groupRef]int{}}
		pl.othersWait = rapid.Bool().Draw(t, "others wait")
		var held []placed // in the view, and not given back
		for _, p := range v.order {
			for g, gv := range p.groups {
				for _, i := range slices.Sorted(maps.Keys(gv.slots)) {
					ref := slotRef{p.name, g, i}
					pl.taken[ref] = true
					held = append(held, placed{ref, gv.slots[i].n})
				}
			}
		}
		// A batch first gives back, and then takes.
		for range rapid.IntRange(0, len(held)).Draw(t, "given back") {
			i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
			pl.free(held[i])
			delete(pl.taken, held[i].ref)
			held = slices.Delete(held, i, i+1)
		}
		for range rapid.IntRange(1, 8).Draw(t, "claims") {
			before := pl.capacities()
			slots := pl.place(drawNeeds(t, v), rapid.Uint32().Draw(t, "start"))
			if slots == nil || rapid.IntRange(0, 3).Draw(t, "keep") > 0 {
				continue
			}
			pl.undo(slots)
			if !maps.Equal(before, pl.capacities()) {
				t.Fatal("to undo does not restore the free slots")
			}
		}
	})
}

// TestAnEmptyPoolIsServedFromFewGroups is what keeps a batch to few compares.
func TestAnEmptyPoolIsServedFromFewGroups(t *testing.T) {
	v := newView(store.NewKeys("/b/"))
	p := v.pool("db")
	p.spec, p.specRev, p.layout = DefaultSpec(), 1, layoutOf(5000)
	p.spec.Limit = 5000
	pl := newPlacer(v)
	groups := map[int]bool{}
	for range 100 {
		for _, s := range pl.place([]Need{{"db", 1}}, 17) {
			groups[s.ref.group] = true
		}
	}
	if len(groups) != 1 {
		t.Errorf("100 claims were placed into %d groups", len(groups))
	}
}

func TestWhatABatchGivesBackIsTakenInPlace(t *testing.T) {
	v := newView(store.NewKeys("/b/"))
	p := v.pool("db")
	p.spec, p.specRev, p.layout = DefaultSpec(), 1, layoutOf(200)
	p.spec.Limit = 200
	ref := slotRef{"db", 31, 2}
	v.setSlot(ref, slot{n: 1, claim: claimKey{id: "c"}, rev: 2}, nil, nil)
	pl := newPlacer(v)
	pl.free(placed{ref, 1})
	if got := pl.place([]Need{{"db", 1}}, 0); len(got) != 1 || got[0].ref != ref {
		t.Errorf("placed at %v, want %v", got, ref)
	}
}

func TestHostsBeginAtDifferentGroups(t *testing.T) {
	v := newView(store.NewKeys("/b/"))
	p := v.pool("db")
	p.spec, p.specRev, p.layout = DefaultSpec(), 1, layoutOf(50)
	p.spec.Limit = 50
	groups := map[int]bool{}
	for i := range 20 {
		groups[newPlacer(v).place([]Need{{"db", 1}}, hash(fmt.Sprint("host-", i)))[0].ref.group] = true
	}
	if len(groups) < 10 {
		t.Errorf("20 hosts begin at %d of 50 groups", len(groups))
	}
}
