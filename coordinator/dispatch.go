package coordinator

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// maxPublish bounds the step instances that one plan publishes: the rest follows in
// the next, so that no tick takes long.
const maxPublish = 1024

// StepSnapshot is all that the dispatch of steps is planned from.
type StepSnapshot struct {
	Now time.Time
	// Runs have steps, and are in progress, in the order of the queue; each with its
	// instances.
	Runs []Fanned
	// Alive tells whether the executor of a running instance may be there.
	Alive func(id store.StepID, rec step.Record, revision int64) bool
	// Tick is the time for which max_steps_per_tick counts.
	Tick time.Duration
	// Most is how many instances the plan publishes at most.
	Most int
}

// Fanned is a run with its step instances.
type Fanned struct {
	Run *run.Run
	Fan *fanout
}

// StepPlan is what is to be done about steps.
type StepPlan struct {
	// Lost are running instances whose executor is gone.
	Lost []Dispatch
	// Publish are the instances that workers may take from now on, in order.
	Publish []Dispatch
	// Begin are admitted runs that begin to run.
	Begin []*run.Run
	// End are runs that have come to their end.
	End []RunEnd
	// More tells that there was more to publish than a plan does.
	More bool
	// NextDeadline is when the next retry is due, or a run may publish again that has
	// published as much as it may in a tick; zero if there is none.
	NextDeadline time.Time
}

// Dispatch is one step instance in a plan.
type Dispatch struct {
	Fanned
	Step, Index int
	Rec         step.Record
	Revision    int64
}

// RunEnd is the end of a run.
type RunEnd struct {
	Run    *run.Run
	Status run.Status
	Why    string
}

// ID names the instance.
func (d *Dispatch) ID() store.StepID {
	return store.StepID{Run: d.Run.ID, Step: d.Fan.steps[d.Step].Name, Index: d.Index}
}

// Plan decides which step instances go. It is pure: it reads nothing but the snapshot,
// and changes nothing. What runs is what is seen to: an instance whose executor is
// gone is lost in the same plan, and counts until that was written.
//
// For each run, in order:
//  1. If an instance of a step has failed for good that fails its run, the run has
//     failed. If no instance can go any more and none is in flight, it has ended.
//  2. Steps go whose needs have succeeded, in the order of the graph: of each the
//     instances with the lowest index, as many as its window leaves (concurrency less
//     those in flight), as the run's max_concurrent_steps leaves, and no more than its
//     max_steps_per_tick.
func (s *StepSnapshot) Plan() StepPlan {
	var p StepPlan
	for _, f := range s.Runs {
		s.lost(&p, f)
		if end, ended := f.end(); ended {
			p.End = append(p.End, end)
			continue
		}
		if f.Run.Status == run.NotStarted {
			p.Begin = append(p.Begin, f.Run)
		}
		s.publish(&p, f)
	}
	return p
}

func (s *StepSnapshot) lost(p *StepPlan, f Fanned) {
	for n := range f.Fan.steps {
		st := &f.Fan.steps[n]
		for _, index := range st.runningInOrder() {
			d := Dispatch{Fanned: f, Step: n, Index: index, Rec: st.running[index].rec, Revision: st.cells[index].rev}
			if !s.Alive(d.ID(), d.Rec, d.Revision) {
				p.Lost = append(p.Lost, d)
			}
		}
	}
}

// end tells whether a run has ended, and how.
func (f Fanned) end() (RunEnd, bool) {
	var failed *fanStep
	ended, blocked := true, make([]bool, len(f.Fan.steps))
	for n := range f.Fan.steps {
		st := &f.Fan.steps[n]
		if st.hopeless() {
			if failed == nil {
				failed = st
			}
			if st.OnFailure == step.Fail {
				return RunEnd{f.Run, run.Failed, st.failure()}, true
			}
		}
		// It never goes if one that it needs, or that this one needs in turn, has failed.
		for _, need := range st.Needs {
			blocked[n] = blocked[n] || blocked[need] || f.Fan.steps[need].hopeless()
		}
		ended = ended && (st.ended() || blocked[n] && st.inFlight == 0)
	}
	switch {
	case !ended:
		return RunEnd{}, false
	case failed != nil:
		return RunEnd{f.Run, run.Failed, failed.failure()}, true
	}
	return RunEnd{f.Run, run.Succeeded, ""}, true
}

// failure says what has failed of a step.
func (s *fanStep) failure() string {
	switch n := s.failed + s.canceled; {
	case s.Count == 1:
		return fmt.Sprintf("step '%s' has failed", s.Name)
	default:
		return fmt.Sprintf("step '%s' has failed: %d of %d", s.Name, n, s.Count)
	}
}

// ready tells whether all that a step needs has succeeded.
func (f Fanned) ready(n int) bool {
	for _, need := range f.Fan.steps[n].Needs {
		if !f.Fan.steps[need].done() {
			return false
		}
	}
	return true
}

// free is what a bound leaves, if it is one.
func free(bound, taken, otherwise int) int {
	if bound <= 0 {
		return otherwise
	}
	return max(0, min(otherwise, bound-taken))
}

func (s *StepSnapshot) publish(p *StepPlan, f Fanned) {
	left := s.Most - len(p.Publish)
	left = free(f.Run.MaxConcurrentSteps, f.Fan.inFlight, left)
	capped := false
	count, next := f.Fan.paced(s.Now, s.Tick)
	if paced := free(f.Run.MaxStepsPerTick, count, left); paced < left {
		left, capped = paced, true
	}
	for n := range f.Fan.steps {
		st := &f.Fan.steps[n]
		if !f.ready(n) {
			continue
		}
		window := free(st.Concurrency, st.inFlight, left)
		due := st.requested(s.Now, func(index int, rec step.Record) bool {
			if window == 0 {
				p.More = p.More || len(p.Publish) == s.Most
				if capped && left == 0 {
					p.NextDeadline = sooner(p.NextDeadline, next)
				}
				return false
			}
			p.Publish = append(p.Publish, Dispatch{Fanned: f, Step: n, Index: index, Rec: rec, Revision: st.cells[index].rev})
			window--
			left--
			return true
		})
		p.NextDeadline = sooner(p.NextDeadline, due)
	}
}
