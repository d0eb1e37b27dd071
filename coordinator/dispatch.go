package coordinator

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

const (
	// maxPublish bounds the step instances that one plan publishes, and those that it
	// withdraws: the rest follows in the next, so that no tick takes long.
	maxPublish = 1024
	// graphWait is how long the steps of a run in progress may not be there. They are
	// written before it is queued, so that only hands in etcd can bring them back.
	graphWait = time.Minute
)

// StepSnapshot is all that the dispatch of steps is planned from.
type StepSnapshot struct {
	Now time.Time
	// At is the revision that steps are known at.
	At int64
	// Runs have steps, and are in progress, in the order of the queue; each with its
	// instances.
	Runs []Fanned
	// Ended are runs that have ended while some of their instances were in flight.
	Ended []Fanned
	// Blind are runs in progress whose steps nobody knows.
	Blind []Blind
	// Alive tells whether the executor of a running instance may be there.
	Alive func(id store.StepID, rec step.Record, revision int64) bool
	// Tick is the time for which max_steps_per_tick counts.
	Tick time.Duration
	// Most is how many instances the plan publishes at most, and withdraws.
	Most int
}

// Blind is a run whose steps nobody knows.
type Blind struct {
	Run *run.Run
	// Unreadable is why they can't be read; nil if they are not there.
	Unreadable error
	// Since is when that was first seen.
	Since time.Time
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
	// Stopped are running instances of ended runs whose executor is gone.
	Stopped []Dispatch
	// Withdraw are published instances of ended runs: nobody takes them any more.
	Withdraw []Dispatch
	// Publish are the instances that workers may take from now on, in order.
	Publish []Dispatch
	// Begin are admitted runs that begin to run.
	Begin []*run.Run
	// End are runs that have come to their end.
	End []RunEnd
	// Behind is the revision that steps must be known at to tell whether a run has come
	// to its end; 0 if they are.
	Behind int64
	// More tells that there was more to publish or to withdraw than a plan does.
	More bool
	// NextDeadline is when the next retry or step is due, or a run may publish again that has
	// published as much as it may in a tick, or a run fails whose steps are not there;
	// zero if there is none.
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
//     failed. If no instance can go any more and none is in flight, it has ended. One
//     that was just admitted begins before it ends.
//  2. Steps go whose needs have succeeded, in the order of the graph: of each the
//     instances with the lowest index, as many as its window leaves (concurrency less
//     those in flight), as the run's max_concurrent_steps leaves, and no more than its
//     max_steps_per_tick. Those of a step that is to wait for a time go when that has come,
//     and take no place in any window before. In their queue they stand where a run would
//     that was submitted then.
//
// A run that seems to have come to its end, and whose record is newer than what is known of
// its steps, stays as it is: what has failed of it may be requested again by now.
//
// Of a run that has ended nothing goes: what was published is withdrawn, and what runs
// has ended when its worker says so, or is gone. A run whose steps nobody knows fails: at
// once if they can't be read, after a while if they are not there.
func (s *StepSnapshot) Plan() StepPlan {
	var p StepPlan
	for _, f := range s.Runs {
		p.Lost = append(p.Lost, s.gone(f)...)
		switch end, ended := f.end(); {
		case ended && f.Run.Revision > s.At:
			p.Behind = max(p.Behind, f.Run.Revision)
			continue
		case f.Run.Status == run.NotStarted:
			p.Begin = append(p.Begin, f.Run)
			if ended { // and ends in the next plan
				continue
			}
		case ended:
			p.End = append(p.End, end)
			continue
		}
		s.publish(&p, f)
	}
	for _, f := range s.Ended {
		p.Stopped = append(p.Stopped, s.gone(f)...)
		s.withdraw(&p, f)
	}
	for _, b := range s.Blind {
		s.blind(&p, b)
	}
	return p
}

// gone are the running instances of a run whose executors are gone.
func (s *StepSnapshot) gone(f Fanned) (all []Dispatch) {
	for n := range f.Fan.steps {
		st := &f.Fan.steps[n]
		for _, index := range st.runningInOrder() {
			d := Dispatch{Fanned: f, Step: n, Index: index, Rec: st.running[index].rec, Revision: st.cells[index].rev}
			if !s.Alive(d.ID(), d.Rec, d.Revision) {
				all = append(all, d)
			}
		}
	}
	return all
}

func (s *StepSnapshot) withdraw(p *StepPlan, f Fanned) {
	for n := range f.Fan.steps {
		st := &f.Fan.steps[n]
		left := st.scheduled
		for index := 0; left > 0; index++ {
			c := st.cells[index]
			switch {
			case !c.is(step.Scheduled):
				continue
			case len(p.Withdraw) == s.Most:
				p.More = true
				return
			}
			left--
			p.Withdraw = append(p.Withdraw, Dispatch{
				Fanned: f, Step: n, Index: index, Revision: c.rev,
				Rec: step.Record{Status: step.Scheduled, Attempt: int(c.attempt), Place: st.places[index]},
			})
		}
	}
}

func (s *StepSnapshot) blind(p *StepPlan, b Blind) {
	switch at := b.Since.Add(graphWait); {
	case b.Unreadable != nil:
		p.End = append(p.End, RunEnd{b.Run, run.Failed, fmt.Sprintf("its steps can't be read: %v", b.Unreadable)})
	case !s.Now.Before(at):
		p.End = append(p.End, RunEnd{b.Run, run.Failed, "its steps are gone: nobody knows what it was to do"})
	default:
		p.NextDeadline = sooner(p.NextDeadline, at)
	}
}

// end tells whether a run has ended, and how.
func (f Fanned) end() (RunEnd, bool) {
	switch {
	case f.Fan.hopeless > 0:
		return f.endFailing()
	case f.Fan.open > 0:
		return RunEnd{}, false
	}
	return RunEnd{f.Run, run.Succeeded, ""}, true
}

// endFailing is end for a run of which a step never comes to be done.
func (f Fanned) endFailing() (RunEnd, bool) {
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
	if !ended {
		return RunEnd{}, false
	}
	return RunEnd{f.Run, run.Failed, failed.failure()}, true
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
		if st.missing > 0 {
			continue
		}
		if st.NotBefore.After(s.Now) {
			if !st.ended() {
				p.NextDeadline = sooner(p.NextDeadline, st.NotBefore.Time)
			}
			continue
		}
		place := s.placeAt(f.Run, st.NotBefore)
		window := free(st.Concurrency, st.inFlight, left)
		due := st.requested(s.Now, func(index int, rec step.Record) bool {
			if window == 0 {
				p.More = p.More || len(p.Publish) == s.Most
				if capped && left == 0 {
					p.NextDeadline = sooner(p.NextDeadline, next)
				}
				return false
			}
			p.Publish = append(p.Publish, Dispatch{Fanned: f, Step: n, Index: index, Rec: rec.At(place), Revision: st.cells[index].rev})
			window--
			left--
			return true
		})
		p.NextDeadline = sooner(p.NextDeadline, due)
	}
}

// placeAt is the place in their queue of instances that come to be due at a time: behind
// the runs that were submitted before. It is 0 of those that have no such time.
func (s *StepSnapshot) placeAt(r *run.Run, due run.Instant) int64 {
	if due.IsZero() {
		return 0
	}
	place := r.Place()
	for _, f := range s.Runs {
		if !f.Run.JoinedAt().After(due.Time) {
			place = max(place, f.Run.Place())
		}
	}
	return place
}
