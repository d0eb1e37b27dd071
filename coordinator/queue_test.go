package coordinator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
)

// checkQueue holds a queue against the runs that it should have, and what it keeps
// for plans against what it is kept from.
func checkQueue(q *Queue, l run.Limits, want []*run.Run) error {
	want = slices.SortedFunc(slices.Values(want), (*run.Run).Compare)
	if got := slices.Collect(q.All()); !slices.Equal(got, want) || q.Len() != len(want) {
		return fmt.Errorf("it has %d runs %v, want %d %v", q.Len(), ids(got), len(want), ids(want))
	}
	classes, fresh := map[int32]int{}, newClasses(l)
	for i, part := range q.parts {
		if len(part) == 0 || len(part) > partSize {
			return fmt.Errorf("part %d has %d places", i, len(part))
		}
		for _, p := range part {
			classes[p.class]++
			var met []bound
			for _, id := range q.classes.met[p.class] {
				met = append(met, q.classes.bounds.keys[id])
			}
			if should := fresh.meet(nil, p.run.Tags); !slices.Equal(met, should) {
				return fmt.Errorf("%s is of a class that meets %v, want %v", p.run.ID, met, should)
			}
			if has := p.run.Block != nil; has == (p.noted == noted{}) || has && p.noted.Value() != *p.run.Block {
				return fmt.Errorf("%s has another reason noted than %v", p.run.ID, p.run.Block)
			}
		}
	}
	bounds := map[int32]int{}
	for class, n := range classes {
		if q.classes.ids.uses[class] != n {
			return fmt.Errorf("class %d has %d uses, and %d runs", class, q.classes.ids.uses[class], n)
		}
		for _, b := range q.classes.met[class] {
			bounds[b]++
		}
	}
	for b, n := range bounds {
		if q.classes.bounds.uses[b] != n {
			return fmt.Errorf("bound %d has %d uses, and %d classes", b, q.classes.bounds.uses[b], n)
		}
	}
	if len(q.classes.ids.ids) != len(classes) || len(q.classes.bounds.ids) != len(bounds) {
		return fmt.Errorf("%d classes and %d bounds are kept, %d and %d used",
			len(q.classes.ids.ids), len(q.classes.bounds.ids), len(classes), len(bounds))
	}
	return nil
}

func TestAQueueKeepsItsRunsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, l, runs := NewQueue(), run.Limits{}, map[int]*run.Run{}
		tags := rapid.SliceOfN(genTags, 5, 5).Draw(t, "tags")
		// Whole stretches at once: parts are to be split, merged and emptied.
		stretch := func(t *rapid.T) []int {
			from, n, step := rapid.IntRange(0, 3000).Draw(t, "from"), rapid.IntRange(1, 900).Draw(t, "n"), rapid.IntRange(1, 7).Draw(t, "step")
			all := make([]int, n)
			for i := range all {
				all[i] = from + i*step
			}
			return all
		}
		made := func(i int) *run.Run {
			// Every second one shares its revision with the one before it.
			return &run.Run{ID: fmt.Sprintf("r%05d", i), Created: int64(i / 2), Record: run.Record{
				Spec: run.Spec{Tags: tags[i%5], Priority: i * 7919 % 3},
			}}
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				for _, i := range stretch(t) {
					r := made(i)
					if runs[i] != nil { // a newer record
						b := run.RunLimitBlock(i, i)
						r.Block = &b
					}
					q.Insert(r)
					runs[i] = r
				}
			},
			"remove": func(t *rapid.T) {
				for _, i := range stretch(t) {
					if was := q.Remove(made(i)); was != (runs[i] != nil) {
						t.Fatalf("%d was there: %v", i, was)
					}
					delete(runs, i)
				}
			},
			"prepare": func(t *rapid.T) {
				l = genLimits.Draw(t, "limits")
				q.Prepare(l)
			},
			"": func(t *rapid.T) {
				want := []*run.Run{}
				for _, r := range runs {
					want = append(want, r)
				}
				if err := checkQueue(q, l, want); err != nil {
					t.Fatal(err)
				}
				slices.SortFunc(want, (*run.Run).Compare)
				if got := slices.Collect(q.All()); !slices.Equal(got, want) {
					t.Fatalf("the queue has %d runs, or another order, want %d", len(got), len(want))
				}
			},
		})
	})
}

func TestARunThatIsNotQueuedIsNotRemoved(t *testing.T) {
	q := NewQueue()
	a, b := tagged("a"), tagged("b")
	a.Created, b.Created = 1, 2
	if q.Remove(a) {
		t.Error("it was removed from an empty queue")
	}
	q.Insert(a)
	if q.Remove(b) || q.Len() != 1 {
		t.Error("another run was removed")
	}
}

func TestADrainedQueueKeepsNothing(t *testing.T) {
	q := NewQueue()
	q.Prepare(limited(t, 1, "tenant=*=1"))
	var runs []*run.Run
	for i := range 5000 {
		r := tagged(fmt.Sprintf("r%d tenant=%d", i, i))
		r.Created = int64(i)
		runs = append(runs, r)
		q.Insert(r)
	}
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	for i, r := range runs {
		if !q.Remove(r) {
			t.Fatalf("%s was not there", r.ID)
		}
		if most := 1 + 5*(len(runs)-i)/partSize; len(q.parts) > most {
			t.Fatalf("%d runs are in %d parts", q.Len(), len(q.parts))
		}
	}
	l := limited(t, 1, "tenant=*=1")
	if err := checkQueue(q, l, nil); err != nil || len(q.parts) != 0 {
		t.Errorf("%d parts are left: %v", len(q.parts), err)
	}
	// Numbers are given again.
	again := tagged("again tenant=x")
	q.Insert(again)
	if err := checkQueue(q, l, []*run.Run{again}); err != nil || q.classes.size() > 5000 || q.classes.bounds.size() > 5000 {
		t.Errorf("%d classes, %d bounds: %v", q.classes.size(), q.classes.bounds.size(), err)
	}
}

func TestOtherNumbersOfLimitsLeaveAQueueAsItIs(t *testing.T) {
	q := NewQueue()
	q.Prepare(limited(t, 1, "env=prod=1", "tenant=*=1"))
	before := q.classes
	if q.Prepare(limited(t, 2, "env=prod=5", "tenant=*=7")); q.classes != before {
		t.Error("it was prepared again")
	}
	if q.Prepare(limited(t, 2, "env=prod=5", "tenant=7")); q.classes == before {
		t.Error("it was not prepared")
	}
}
