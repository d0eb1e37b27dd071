package coordinator

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// genFanned draws a run in progress with small steps, in any state that a history can
// bring them to.
func genFanned(number int) *rapid.Generator[Fanned] {
	return rapid.Custom(func(t *rapid.T) Fanned {
		names := []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "steps")]
		var specs []step.Spec
		for i, name := range names {
			s := fan(name, rapid.IntRange(0, 6).Draw(t, "items"), rapid.IntRange(0, 3).Draw(t, "window"))
			if at := rapid.SampledFrom([]int{0, 0, 0, -2, -1, 0, 1}).Draw(t, "not before"); at != 0 {
				s.NotBefore = run.InstantOf(planNow.Add(time.Duration(at) * time.Minute))
			}
			s.Retries = rapid.IntRange(0, 1).Draw(t, "retries")
			s.OnFailure = rapid.SampledFrom([]step.OnFailure{step.Fail, step.Finish}).Draw(t, "on failure")
			for _, before := range names[:i] {
				if rapid.Bool().Draw(t, "needs") {
					s.Needs = append(s.Needs, before)
				}
			}
			specs = append(specs, s)
		}
		g, err := step.NewGraph(specs)
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("r%d", number)
		f := newFanout(id, g)
		rev := int64(10)
		for n := range f.steps {
			for index := range f.steps[n].cells {
				for _, rec := range genHistory.Draw(t, "history") {
					rev++
					seen := planNow.Add(rapid.SampledFrom([]time.Duration{-time.Minute, -time.Minute, time.Millisecond}).Draw(t, "seen"))
					f.take(&step.Instance{StepID: store.StepID{Run: id, Step: f.steps[n].Name, Index: index}, Record: rec, Revision: rev}, seen)
				}
			}
		}
		r := &run.Run{ID: id, Created: int64(number + 1)}
		r.QueuedAt = planNow.Add(time.Duration(number-3) * time.Minute)
		r.Status = rapid.SampledFrom([]run.Status{run.Running, run.Running, run.NotStarted}).Draw(t, "run")
		r.Revision = rapid.SampledFrom([]int64{1, 1, 1, stepsKnownAt, stepsKnownAt + 1}).Draw(t, "revision")
		r.MaxConcurrentSteps = rapid.SampledFrom([]int{0, 0, 1, 4}).Draw(t, "most")
		r.MaxStepsPerTick = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "per tick")
		return Fanned{r, f}
	})
}

// stepsKnownAt is what drawn snapshots know steps at.
const stepsKnownAt = 1000

// genHistory draws what an instance goes through: none that was never published. One that
// has failed or was canceled may be requested again, and go all of it once more.
var genHistory = rapid.Custom(func(t *rapid.T) (all []step.Record) {
	rec := func(status step.Status) step.Record {
		return step.Record{Status: status, Attempt: 1, Executor: &run.Executor{Host: "x"}}
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "retries") {
		bad := rapid.SampledFrom([]step.Status{step.Failed, step.Canceled}).Draw(t, "ended")
		all = append(all, rec(bad), step.Record{Status: step.Requested})
	}
	switch status := rapid.SampledFrom([]step.Status{
		"", "", "", step.Requested, step.Scheduled, step.Running, step.Succeeded, step.Succeeded, step.Failed, step.Canceled,
	}).Draw(t, "status"); status {
	case "":
	case step.Requested:
		last := rec(status)
		last.Pause = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "pause")
		all = append(all, last)
	default:
		all = append(all, rec(status))
	}
	return all
})

var genSteps = rapid.Custom(func(t *rapid.T) *StepSnapshot {
	s := &StepSnapshot{Now: planNow, At: stepsKnownAt, Tick: time.Second, Most: rapid.SampledFrom([]int{3, 100}).Draw(t, "most")}
	alive := map[string]bool{}
	for n := range rapid.IntRange(1, 3).Draw(t, "runs") {
		f := genFanned(n).Draw(t, "run")
		s.Runs = append(s.Runs, f)
		for i := range f.Fan.steps {
			for index := range f.Fan.steps[i].running {
				alive[fmt.Sprint(f.Run.ID, i, index)] = rapid.Bool().Draw(t, "alive")
			}
		}
	}
	s.Alive = func(id store.StepID, _ step.Record, _ int64) bool {
		for _, f := range s.Runs {
			if f.Run.ID == id.Run {
				return alive[fmt.Sprint(id.Run, f.Fan.names[id.Step], id.Index)]
			}
		}
		return false
	}
	return s
})

// statusIn is the status of an instance, by its cell.
func (f Fanned) statusIn(n, index int) step.Status {
	return step.Statuses[f.Fan.steps[n].cells[index].status]
}

// due reports whether an instance may be published, whatever limits there are.
func (s *StepSnapshot) due(f Fanned, n, index int) bool {
	st := &f.Fan.steps[n]
	a, again := st.running[index]
	paused := again && a.rec.Pause > 0 && s.Now.Before(a.seen.Add(a.rec.Pause))
	return f.statusIn(n, index) == step.Requested && !paused && !st.NotBefore.After(s.Now)
}

// doneSlow reports whether all instances of a step have succeeded.
func (f Fanned) doneSlow(n int) bool {
	for index := range f.Fan.steps[n].cells {
		if f.statusIn(n, index) != step.Succeeded {
			return false
		}
	}
	return true
}

// checkDispatch holds a plan against the rules, slowly.
func checkDispatch(s *StepSnapshot, p StepPlan) error {
	published := map[string]bool{}
	for _, d := range p.Publish {
		published[fmt.Sprint(d.Run.ID, d.Step, d.Index)] = true
	}
	if len(p.Publish) > s.Most || len(published) != len(p.Publish) {
		return fmt.Errorf("%d are published, %d of them different", len(p.Publish), len(published))
	}
	for _, f := range s.Runs {
		ends := slices.ContainsFunc(p.End, func(e RunEnd) bool { return e.Run == f.Run })
		inRun, ofRun := 0, 0
		for n := range f.Fan.steps {
			st := &f.Fan.steps[n]
			ready := true
			for _, need := range st.Needs {
				ready = ready && f.doneSlow(need)
			}
			inStep, ofStep, passed := 0, 0, false
			for index := range st.cells {
				is := published[fmt.Sprint(f.Run.ID, n, index)]
				switch {
				case is && (!ready || ends || f.over() || !s.due(f, n, index)):
					return fmt.Errorf("%s/%s[%d] must not go", f.Run.ID, st.Name, index)
				case is && passed:
					return fmt.Errorf("%s/%s[%d] goes before one with a lower index", f.Run.ID, st.Name, index)
				case is:
					ofStep++
					if err := s.checkPlace(f, n, index, p); err != nil {
						return err
					}
				case s.due(f, n, index):
					passed = true
				}
				if f.statusIn(n, index).InFlight() {
					inStep++
				}
			}
			if st.Concurrency > 0 && ofStep > 0 && inStep+ofStep > st.Concurrency {
				return fmt.Errorf("%s/%s: %d and %d are above its window", f.Run.ID, st.Name, inStep, ofStep)
			}
			inRun, ofRun = inRun+inStep, ofRun+ofStep
		}
		if m := f.Run.MaxConcurrentSteps; m > 0 && ofRun > 0 && inRun+ofRun > m {
			return fmt.Errorf("%s: %d and %d are above its cap", f.Run.ID, inRun, ofRun)
		}
		if m := f.Run.MaxStepsPerTick; m > 0 && ofRun > m {
			return fmt.Errorf("%s: %d in a tick", f.Run.ID, ofRun)
		}
		if err := s.checkLeftSteps(f, p, published, ends, inRun, ofRun); err != nil {
			return err
		}
	}
	return nil
}

// checkPlace: an instance that had to wait for a time is queued behind the runs that were
// there by then, and any other at the place of its run.
func (s *StepSnapshot) checkPlace(f Fanned, n, index int, p StepPlan) error {
	want := int64(0)
	if at := f.Fan.steps[n].NotBefore; !at.IsZero() {
		want = f.Run.Created
		for _, o := range s.Runs {
			if !o.Run.QueuedAt.After(at.Time) {
				want = max(want, o.Run.Created)
			}
		}
	}
	for _, d := range p.Publish {
		if d.Run == f.Run && d.Step == n && d.Index == index && d.Rec.Place != want {
			return fmt.Errorf("%s/%d[%d] is published in place %d, want %d", f.Run.ID, n, index, d.Rec.Place, want)
		}
	}
	return nil
}

// ended reports whether nothing more happens to any instance of a step.
func (f Fanned) ended(n int) bool {
	for index := range f.Fan.steps[n].cells {
		if !f.statusIn(n, index).Ended() {
			return false
		}
	}
	return true
}

// checkLeftSteps: nothing is left that may go, and runs end when nothing can happen to
// them any more, if that is known.
func (s *StepSnapshot) checkLeftSteps(f Fanned, p StepPlan, published map[string]bool, ends bool, inRun, ofRun int) error {
	over, known := f.over(), f.Run.Revision <= s.At
	begins := slices.Contains(p.Begin, f.Run)
	switch {
	case ends != (known && over && f.Run.Status == run.Running):
		return fmt.Errorf("%s ends: %v; nothing can happen to it: %v; its steps are known: %v", f.Run.ID, ends, over, known)
	case begins != (f.Run.Status == run.NotStarted && (known || !over)):
		return fmt.Errorf("%s, which is %s, begins: %v", f.Run.ID, f.Run.Status, begins)
	case over && !known && p.Behind < f.Run.Revision:
		return fmt.Errorf("%s may have ended, and is not checked again", f.Run.ID)
	case over:
		return nil
	}
	for n := range f.Fan.steps {
		st := &f.Fan.steps[n]
		ready := true
		for _, need := range st.Needs {
			ready = ready && f.doneSlow(need)
		}
		if late := st.NotBefore.After(s.Now) && !f.ended(n); ready && late && (p.NextDeadline.IsZero() || p.NextDeadline.After(st.NotBefore.Time)) {
			return fmt.Errorf("%s/%s is due at %s, and the next check is at %s", f.Run.ID, st.Name, st.NotBefore, p.NextDeadline)
		}
		inStep := 0
		for index := range st.cells {
			if f.statusIn(n, index).InFlight() || published[fmt.Sprint(f.Run.ID, n, index)] {
				inStep++
			}
		}
		for index := range st.cells {
			full := len(p.Publish) == s.Most ||
				st.Concurrency > 0 && inStep >= st.Concurrency ||
				f.Run.MaxConcurrentSteps > 0 && inRun+ofRun >= f.Run.MaxConcurrentSteps ||
				f.Run.MaxStepsPerTick > 0 && ofRun >= f.Run.MaxStepsPerTick
			if ready && !full && s.due(f, n, index) && !published[fmt.Sprint(f.Run.ID, n, index)] {
				return fmt.Errorf("%s/%s[%d] may go, and does not", f.Run.ID, st.Name, index)
			}
		}
	}
	return nil
}

// over reports whether one has failed that fails the run, or nothing can happen any more.
func (f Fanned) over() bool {
	fails, anything := false, false
	for n := range f.Fan.steps {
		st, never := &f.Fan.steps[n], f.never(n)
		for index := range st.cells {
			status := f.statusIn(n, index)
			anything = anything || status.InFlight() || status == step.Requested && !never
			if (status == step.Failed || status == step.Canceled) && st.OnFailure == step.Fail {
				fails = true
			}
		}
	}
	return fails || !anything
}

// never reports whether a step can't go any more, because of one before it.
func (f Fanned) never(n int) bool {
	for _, need := range f.Fan.steps[n].Needs {
		for index := range f.Fan.steps[need].cells {
			if s := f.statusIn(need, index); s == step.Failed || s == step.Canceled {
				return true
			}
		}
		if f.never(need) {
			return true
		}
	}
	return false
}

func TestEveryDispatchKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSteps.Draw(t, "snapshot")
		if err := checkDispatch(s, s.Plan()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestADispatchChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSteps.Draw(t, "snapshot")
		written := func() (text string) {
			for _, f := range s.Runs {
				text += fmt.Sprintf("%+v\n%+v\n", *f.Run, *f.Fan)
			}
			return text
		}
		before := written()
		first := s.Plan()
		if after := written(); after != before {
			t.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
		if again := s.Plan(); !reflect.DeepEqual(first, again) {
			t.Fatalf("again: %+v, want %+v", again, first)
		}
	})
}

// TestSpoiledDispatchesAreCaught proves that the rules bite.
func TestSpoiledDispatchesAreCaught(t *testing.T) {
	for name, spoil := range map[string]func(*StepPlan) bool{
		"the first does not go": func(p *StepPlan) bool { return drop(&p.Publish, 0) },
		"one goes twice":        func(p *StepPlan) bool { return twice(&p.Publish) },
		"another index goes": func(p *StepPlan) bool {
			for i := range p.Publish {
				d := &p.Publish[i]
				if d.Index+1 < len(d.Fan.steps[d.Step].cells) && i == len(p.Publish)-1 {
					d.Index++
					return true
				}
			}
			return false
		},
		"one stands in another place": func(p *StepPlan) bool {
			if len(p.Publish) > 0 {
				p.Publish[0].Rec.Place++
			}
			return len(p.Publish) > 0
		},
		"a run does not end": func(p *StepPlan) bool { return drop(&p.End, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			spoiled := 0
			for seed := range 200 {
				s := genSteps.Example(seed)
				p := s.Plan()
				if !spoil(&p) {
					continue
				}
				spoiled++
				if checkDispatch(s, p) == nil {
					t.Fatalf("not noticed: %+v", p)
				}
			}
			if spoiled == 0 {
				t.Fatal("no plan could be spoiled so")
			}
		})
	}
}

// The incremental counts of the leader are those that it would get by counting again.
func TestAFanoutCountsWhatItHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := genFanned(0).Draw(t, "run").Fan
		recounted := newFanout(f.id, f.graph)
		for n := range f.steps {
			for index, c := range f.steps[n].cells {
				if c.rev == 0 {
					continue
				}
				id := store.StepID{Run: f.id, Step: f.steps[n].Name, Index: index}
				a, ok := f.steps[n].running[index]
				if !ok {
					a.rec = step.Record{Status: step.Statuses[c.status], Attempt: int(c.attempt)}
				}
				recounted.take(&step.Instance{StepID: id, Record: a.rec, Revision: c.rev}, a.seen)
			}
		}
		for n := range f.steps { // a list without anything is none
			for _, st := range []*fanStep{&f.steps[n], &recounted.steps[n]} {
				if len(st.again) == 0 {
					st.again = nil
				}
			}
		}
		if !reflect.DeepEqual(f, recounted) {
			t.Fatalf("counted as it went:\n%+v\nagain:\n%+v", f, recounted)
		}
	})
}
