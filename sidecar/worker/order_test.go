package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// mixed is a run of eight steps without needs, of which the odd ones have slots of a pool.
func mixed(pool string) (specs []step.Spec) {
	for i := range 8 {
		s := fan(fmt.Sprint("s", i), 0, 0, others)
		if i%2 == 1 {
			from(pool, 1)(&s)
		}
		specs = append(specs, s)
	}
	return specs
}

// published waits until so many instances of a step, or one, can be taken.
func (y *yard) published(id string) {
	y.t.Helper()
	eventually(y.t, id+" is published", func() bool { return y.status(id) == step.Scheduled })
}

// startedIn returns the names of the steps that were started, in order.
func (s *stage) startedIn(run string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, id := range s.seen {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(id, run+"/"), "/000000"))
	}
	return strings.Join(all, " ")
}

// A full worker takes steps in one order, whether or not they need slots of a pool that has some.
func TestStepsWithFreeSlotsAreNotPassedOnAFullWorker(t *testing.T) {
	for _, limit := range []int{1, 4} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			y, s := newYard(t), newStage()
			s.auto = true
			y.pool("db", limit)
			y.submit("r", mixed("db")...)
			y.published("r/s7/000000")
			w := y.worker("a", "", 1, s)
			defer w.close(t)
			y.is("r", run.Succeeded)
			if got, want := s.startedIn("r"), "s0 s1 s2 s3 s4 s5 s6 s7"; got != want {
				t.Errorf("the steps were started in the order %s, want %s", got, want)
			}
		})
	}
}

// submitAt submits a run of a priority.
func (y *yard) submitAt(priority int, id string, specs ...step.Spec) {
	y.t.Helper()
	g, err := step.NewGraph(specs)
	if err == nil {
		_, _, err = y.step.Submit(y.t.Context(), y.runs, id, run.Spec{Priority: priority}, g)
	}
	if err != nil {
		y.t.Fatal(err)
	}
}

func TestAnUrgentStepWithFreeSlotsIsNotPassedOnAFullWorker(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 1)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("first", fan("m", 1, 0))
	s.runs(t, "first/m/000000")
	y.submit("low", fan("m", 20, 0))
	y.published("low/m/000019")
	y.submitAt(900, "high", fan("m", 2, 0, from("db", 1)))
	y.published("high/m/000001")
	w.sees(t, 22)
	s.mu.Lock()
	s.auto = true
	s.mu.Unlock()
	s.end("first/m/000000", succeeded)
	y.is("low", run.Succeeded)
	if got, want := strings.Join(s.seen[1:3], " "), "high/m/000000 high/m/000001"; got != want {
		t.Errorf("started next were %s, want %s", got, want)
	}
}

// sees waits until a worker knows of so many published instances that no worker has taken.
func (c *crew) sees(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the worker sees %d instances", n), func() bool {
		seen := 0
		c.do(t, func() {
			for _, q := range c.queues {
				seen += len(q.of)
			}
		})
		return seen == n
	})
}

// Of two workers, both take the urgent steps first, whichever worker they are nearer to. A claim that has lost a race for slots
// that are free waits for a moment, so that one urgent step is late in 5 of 100 tries: it must not be so each time.
func TestUrgentStepsWithFreeSlotsAreNotPassedOnSeveralWorkers(t *testing.T) {
	t.Parallel()
	for range 4 {
		started := startedByTwo(t)
		if !slices.ContainsFunc(started, func(id string) bool { return !strings.HasPrefix(id, "high/") }) {
			return
		}
		t.Logf("started next were %s, want the four of run high", strings.Join(started, ", "))
	}
	t.Error("an urgent step was passed each time")
}

// startedByTwo returns the four steps that two workers start first when they end their steps, of a run with four urgent steps and
// one with many others.
func startedByTwo(t *testing.T) []string {
	t.Helper()
	y, s := newYard(t), newStage()
	y.pool("db", 4)
	crews := []*crew{y.worker("a", "", 1, s), y.worker("b", "", 1, s)}
	for _, w := range crews {
		defer w.close(t)
	}
	y.submit("first", fan("m", 2, 0))
	s.runs(t, "first/m/000000", "first/m/000001")
	y.submit("low", fan("m", 20, 0))
	y.published("low/m/000019")
	y.submitAt(900, "high", fan("m", 4, 0, from("db", 1)))
	y.published("high/m/000003")
	for _, w := range crews {
		w.sees(t, 24)
	}
	s.mu.Lock()
	s.auto = true
	s.mu.Unlock()
	s.end("first/m/000000", succeeded)
	s.end("first/m/000001", succeeded)
	y.is("low", run.Succeeded)
	return s.seen[2:6]
}

// A step whose slots are taken is passed, and starts before all that come behind it when they
// are free, even if they become so while the worker is full.
func TestAStepThatWasPassedIsNextWhenItsSlotsAreFree(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	one := func(n int, change ...func(*step.Spec)) step.Spec { return fan(fmt.Sprint("s", n), 0, 0, change...) }
	y.submit("r", one(0), one(1, from("db", 1)), one(2), one(3), one(4))
	s.runs(t, "r/s0/000000")
	y.published("r/s4/000000")
	w.sees(t, 4)
	s.end("r/s0/000000", succeeded)
	s.runs(t, "r/s2/000000")
	y.pool("db", 1)
	eventually(t, "the worker sees that a slot is free", func() bool {
		free, err := w.client.Prospects(t.Context(), []*pool.Request{{ID: "x", Slots: map[string]int{"db": 1}}})
		return err == nil && free[0]
	})
	s.end("r/s2/000000", succeeded)
	s.runs(t, "r/s1/000000")
	s.end("r/s1/000000", succeeded)
	s.runs(t, "r/s3/000000")
}

// A place is kept for a step that waits from when there is one. How long its slots were free on
// a full worker does not count.
func TestTheTimeOnAFullWorkerCostsAWaiterNoPlace(t *testing.T) {
	id := store.StepID{Run: "r", Step: "s"}
	w, now := &Worker{}, time.Unix(1000, 0)
	w.waiting = map[store.StepID]waiter{id: {}}
	for _, c := range []struct {
		after                 time.Duration
		free, supplied, keeps bool
	}{
		{0, true, false, true},
		{10 * longTurn, true, true, true},
		{longTurn - 1, true, true, true},
		{1, true, true, false},
		{1, false, true, false},
		{1, true, true, true},
	} {
		now = now.Add(c.after)
		if got := w.keeps(id, c.free, c.supplied, now); got != c.keeps {
			t.Errorf("%+v: a place is kept: %v", c, got)
		}
	}
}

func TestPlacesAreDealtInOrder(t *testing.T) {
	plain, slotted := candidate{free: true}, candidate{slotted: true, free: true}
	full, waits := candidate{slotted: true}, candidate{slotted: true, free: true, waits: true}
	kept := candidate{free: true, kept: true}
	for name, c := range map[string]struct {
		all  []candidate
		s    supply
		want []verdict
	}{
		"free places first":                         {[]candidate{slotted, plain, plain}, supply{free: 1, plain: 1}, []verdict{placed, joins, noPlace}},
		"with the end of its kind":                  {[]candidate{slotted, plain}, supply{plain: 1, slotted: 1}, []verdict{joins, joins}},
		"a later one does not get the place before": {[]candidate{slotted, plain}, supply{plain: 1}, []verdict{follows, noPlace}},
		"nor one with slots":                        {[]candidate{plain, slotted}, supply{slotted: 1}, []verdict{follows, noPlace}},
		"one whose slots are not free is passed":    {[]candidate{full, plain}, supply{plain: 1}, []verdict{queued, joins}},
		"a place is kept for what is about to go":   {[]candidate{waits, plain}, supply{free: 1}, []verdict{noPlace, noPlace}},
		"the engine passes no place on wrongly":     {[]candidate{slotted, waits}, supply{slotted: 1}, []verdict{follows, noPlace}},
		"others have their turn":                    {[]candidate{kept, plain}, supply{free: 1}, []verdict{noPlace, noPlace}},
		"nothing is left":                           {[]candidate{plain, full, slotted}, supply{}, []verdict{noPlace, queued, noPlace}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := deal(c.all, c.s); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// No candidate has a place while one before it has none though its slots are free; and no place
// is given twice.
func TestNoCandidatePassesAnotherWhoseSlotsAreFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []candidate
		for range rapid.IntRange(0, 12).Draw(t, "candidates") {
			c := candidate{slotted: rapid.Bool().Draw(t, "slotted"), free: true}
			if c.slotted {
				c.free, c.waits = rapid.Bool().Draw(t, "free"), rapid.Bool().Draw(t, "waits")
			}
			c.kept = !c.waits && rapid.IntRange(0, 3).Draw(t, "kept") == 0
			all = append(all, c)
		}
		draw := func(name string) int { return rapid.IntRange(0, 3).Draw(t, name) }
		s := supply{draw("free places"), draw("plain"), draw("slotted")}
		places, has := s.free+s.plain+s.slotted, 0
		given := map[verdict]int{}
		for i, v := range deal(all, s) {
			c := all[i]
			given[v]++
			switch {
			case v == queued && c.free, v > queued && (!c.free || c.waits || c.kept):
				t.Fatalf("candidate %d, %+v, has verdict %d", i, c, v)
			case v > queued && has >= places:
				t.Fatalf("candidate %d has a place though all before it have none left", i)
			case v == noPlace && c.free && !c.waits && !c.kept && has < places:
				t.Fatalf("candidate %d has no place of %d, and %d are used", i, places, has)
			}
			if c.free {
				has++
			}
		}
		if given[placed] > s.free || given[joins]+given[follows] > s.plain+s.slotted {
			t.Fatalf("places were given twice: %v of %+v", given, s)
		}
	})
}
