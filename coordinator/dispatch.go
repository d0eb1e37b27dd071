package coordinator

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"context"
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

const (
	// maxPublish bounds the step instances that one plan publishes, and those that it
	// withdraws, so that no tick takes long. The next plan continues.
	maxPublish = 1024
	// graphWait is how long the steps of a run in progress may be missing. They are written
	// before the run is queued.
	graphWait = time.Minute
)

// StepSnapshot is the input of a [StepPlan].
type StepSnapshot struct {
	Now time.Time
	// At is the revision at which the steps are known.
	At int64
	// Runs are the runs in progress with steps, in the order of the queue.
	Runs []Fanned
	// Ended are the ended runs with instances in flight.
	Ended []Fanned
	// Blind are the runs in progress whose steps are unknown.
	Blind []Blind
	// Alive reports whether the executor of a running instance may live.
	Alive func(id store.StepID, rec step.Record, revision int64) bool
	// Tick is the period of max_steps_per_tick.
	Tick time.Duration
	// Most bounds the instances that the plan publishes, and those that it withdraws.
	Most int
}

// Blind is a run whose steps are unknown.
type Blind struct {
	Run *run.Run
	// Unreadable is why they cannot be read; nil if they are missing.
	Unreadable error
	// Since is when that was first known.
	Since time.Time
}

// Fanned is a run with its step instances.
type Fanned struct {
	Run *run.Run
	Fan *fanout
}

// StepPlan is the decision on a [StepSnapshot].
type StepPlan struct {
	// Lost are running instances whose executor is gone.
	Lost []Dispatch
	// Stopped are the running instances of ended runs whose executor is gone.
	Stopped []Dispatch
	// Withdraw are the published instances of ended runs.
	Withdraw []Dispatch
	// Publish are the instances to publish for workers, in order.
	Publish []Dispatch
	// Begin are the admitted runs that begin.
	Begin []*run.Run
	// End are the runs that have ended.
	End []RunEnd
	// Behind is the revision at which the steps must be known to decide whether a run has
	// ended; 0 if they are.
	Behind int64
	// More states that there is more to publish or to withdraw than Most.
	More bool
	// NextDeadline is when the next retry or step is due, when a run that has reached its
	// max_steps_per_tick may publish again, or when a run whose steps are missing fails;
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

// ID returns the id of the instance.
func (d *Dispatch) ID() store.StepID {
	return store.StepID{Run: d.Run.ID, Step: d.Fan.steps[d.Step].Name, Index: d.Index}
}

// Plan decides which step instances are published. It is pure: it reads only the snapshot,
// and changes nothing. An instance whose executor is gone is lost in the same plan, and
// counts until that is written.
//
// For each run, in order:
//  1. If an instance has failed for good in a step that fails its run, the run has failed.
//     If no instance can start any more and none is in flight, the run has ended. A run
//     that was just admitted begins before it ends.
//  2. Steps whose needs have succeeded are published, in the order of the graph: of each
//     step the instances with the lowest index, as many as its window allows (concurrency
//     minus those in flight) and the run's max_concurrent_steps and max_steps_per_tick. The
//     instances of a step with not_before are published when that is due, and use no
//     window before. In their queue they have the place of a run that is submitted then.
//
// A run that seems to have ended, but whose record is newer than the known steps, stays as
// it is: failed instances may have been requested again.
//
// Of an ended run, nothing is published: published instances are withdrawn, and running
// ones have ended when their worker reports it, or is gone. A run whose steps are unknown
// fails: at once if they cannot be read, after a while if they are missing.
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
			if ended { // it ends in the next plan
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

// gone returns the running instances of a run whose executors are gone.
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
		p.End = append(p.End, RunEnd{b.Run, run.Failed, fmt.Sprintf("its steps cannot be read: %v", b.Unreadable)})
	case !s.Now.Before(at):
		p.End = append(p.End, RunEnd{b.Run, run.Failed, "its steps are missing"})
	default:
		p.NextDeadline = sooner(p.NextDeadline, at)
	}
}

// end returns how a run has ended, and whether it has.
func (f Fanned) end() (RunEnd, bool) {
	switch {
	case f.Fan.hopeless > 0:
		return f.endFailing()
	case f.Fan.open > 0:
		return RunEnd{}, false
	}
	return RunEnd{f.Run, run.Succeeded, ""}, true
}

// endFailing is end for a run with a step that can never succeed.
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
		// It never starts if a step that it needs, directly or not, has failed.
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

// failure states what has failed in a step.
func (s *fanStep) failure() string {
	switch n := s.failed + s.canceled; {
	case s.Count == 1:
		return fmt.Sprintf("step '%s' has failed", s.Name)
	default:
		return fmt.Sprintf("step '%s' has failed: %d of %d", s.Name, n, s.Count)
	}
}

// free returns what a bound leaves; otherwise without a bound.
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

// placeAt returns the place in their queue of instances that become due: after the runs
// that were submitted before. It is 0 without a due time.
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

// dispatch is the part of a tick for steps: it plans, and applies the plan in chunks.
func (l *leader) dispatch(ctx context.Context, now time.Time) error {
	fanned, blind := l.steps.fanned(l.state, now)
	ended := l.steps.stopping(l.state.ended)
	if len(fanned)+len(blind)+len(ended) == 0 {
		return nil
	}
	sn := StepSnapshot{
		Now: now, At: l.steps.at, Runs: fanned, Ended: ended, Blind: blind,
		Alive: l.steps.alive(l.state.activeAt), Tick: l.cfg.TickInterval, Most: maxPublish,
	}
	plan := sn.Plan()
	var items []item
	for i := range plan.Lost {
		it, err := l.lostStep(ctx, &plan.Lost[i], now)
		if err != nil {
			return err
		}
		items = append(items, it)
	}
	for _, e := range plan.End {
		it, err := l.change(ctx, e.Run, func(rec run.Record) (run.Record, run.Event) { return rec.End(e.Status, e.Why, now) })
		if err != nil {
			return err
		}
		if e.Status == run.Failed { // stops its running instances
			it.ops = append(it.ops, store.Put(l.cfg.Keys.Canceled(e.Run.ID), run.CanceledValue, 0))
		}
		items = append(items, it)
	}
	for _, r := range plan.Begin {
		it, err := l.change(ctx, r, func(rec run.Record) (run.Record, run.Event) { return rec.Begin(now) })
		if err != nil {
			return err
		}
		items = append(items, it)
	}
	for i := range plan.Publish {
		items = append(items, l.published(&plan.Publish[i], now))
	}
	for i := range plan.Stopped {
		it, err := l.stopped(ctx, &plan.Stopped[i], now)
		if err != nil {
			return err
		}
		items = append(items, it)
	}
	for i := range plan.Withdraw {
		items = append(items, l.withdrawn(&plan.Withdraw[i], now))
	}
	l.deadline = sooner(l.deadline, plan.NextDeadline)
	// Lost instances may be published again, and those of ended runs are withdrawn.
	l.dirty = l.dirty || plan.More || len(plan.Lost)+len(plan.End)+len(plan.Begin) > 0
	if err := l.send(ctx, nil, items); err != nil {
		return err
	}
	l.after = max(l.after, plan.Behind)
	return nil
}

// stepItem returns the change of an instance under a compare of its revision.
func (l *leader) stepItem(d *Dispatch, rec step.Record, metric func()) item {
	key := l.cfg.Keys.Step(d.ID())
	return item{
		cmps: []*pb.Compare{store.ModEquals(key, d.Revision)},
		ops:  []*pb.RequestOp{store.Put(key, rec.Encode(), 0)},
		made: func(rev int64, _ *pb.TxnResponse) {
			d.take(rec, rev)
			if metric != nil {
				metric()
			}
		},
	}
}

// take applies the new record of the instance.
func (d *Dispatch) take(rec step.Record, rev int64) {
	d.Fan.take(&step.Instance{StepID: d.ID(), Record: rec, Revision: rev}, time.Now())
}

// published publishes an instance.
func (l *leader) published(d *Dispatch, now time.Time) item {
	rec := d.Rec.Publish(now)
	it := l.stepItem(d, rec, func() {
		d.Fan.pace(now, l.cfg.TickInterval)
		l.metrics.published.Inc()
	})
	st, r := &d.Fan.steps[d.Step], d.Run
	ready := step.Ready{
		Run: r.ID, Step: st.Name, Index: d.Index, Number: st.first + d.Index, Priority: r.Priority,
		Attempt: rec.Attempt, Pools: st.Pools, Task: st.Task, External: st.External,
		Retries: st.Retries, Backoff: time.Duration(st.Backoff), ScheduledAt: rec.ScheduledAt, Place: rec.Place,
		SubmittedBy: r.SubmittedBy, Traceparent: r.Traceparent, Tracestate: r.Tracestate,
	}
	it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.Canceled(r.ID), 0))
	it.ops = append(it.ops, store.Put(l.readyKey(d), ready.Encode(), 0))
	return it
}

// readyKey returns the key of a published instance.
func (l *leader) readyKey(d *Dispatch) string {
	return l.cfg.Keys.Ready(d.Fan.steps[d.Step].Queue) + step.OrderIn(d.Run, d.Rec.Place, d.Step, d.Index)
}

// lostStep takes an instance from an executor that is gone. If it may be tried again but
// has a cancel mark, it is canceled instead. The mark is deleted in any case.
func (l *leader) lostStep(ctx context.Context, d *Dispatch, now time.Time) (item, error) {
	id, key, mark := d.ID(), l.cfg.Keys.Step(d.ID()), l.cfg.Keys.CanceledStep(d.ID())
	lost := func() { l.metrics.lost.WithLabelValues("step").Inc() }
	rec := d.Rec.Lose(d.Fan.steps[d.Step].policy(), now)
	it := l.stepItem(d, rec, lost)
	it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.ActiveStep(d.Rec.Executor.Host, id), 0))
	event, err := l.stepEvent(ctx, d, rec, now)
	if err != nil {
		return item{}, err
	}
	if rec.Status.Ended() {
		it.ops = append(append(it.ops, store.Delete(mark)), event...)
		return it, nil
	}
	canceled := rec.Cancel(now)
	canceledEvent, err := l.stepEvent(ctx, d, canceled, now)
	if err != nil {
		return item{}, err
	}
	it.ops = []*pb.RequestOp{store.Nest(&pb.TxnRequest{
		Compare: []*pb.Compare{store.Present(mark)},
		Success: append([]*pb.RequestOp{store.Put(key, canceled.Encode(), 0), store.Delete(mark)}, canceledEvent...),
		Failure: append([]*pb.RequestOp{store.Put(key, rec.Encode(), 0)}, event...),
	})}
	it.made = func(rev int64, answer *pb.TxnResponse) {
		if answer.Responses[0].GetResponseTxn().Succeeded {
			d.take(canceled, rev)
		} else {
			d.take(rec, rev)
		}
		lost()
	}
	return it, nil
}

// stepEvent returns the write of the event of a record, if the instance has events.
func (l *leader) stepEvent(ctx context.Context, d *Dispatch, rec step.Record, now time.Time) ([]*pb.RequestOp, error) {
	i := step.Instance{StepID: d.ID(), Record: rec}
	event := i.Event(now)
	if !step.HasEvent(l.journal, d.Run.ID, d.Fan.steps[d.Step].first+d.Index, event) {
		return nil, nil
	}
	op, err := l.journal.Op(ctx, d.Run.ID, event)
	return []*pb.RequestOp{op}, err
}

// stopped ends an instance of an ended run whose executor is gone.
func (l *leader) stopped(ctx context.Context, d *Dispatch, now time.Time) (item, error) {
	rec := d.Rec.Lose(step.Policy{}, now).Cancel(now)
	event, err := l.stepEvent(ctx, d, rec, now)
	it := l.stepItem(d, rec, func() { l.metrics.lost.WithLabelValues("step").Inc() })
	it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.ActiveStep(d.Rec.Executor.Host, d.ID()), 0))
	it.ops = append(append(it.ops, store.Delete(l.cfg.Keys.CanceledStep(d.ID()))), event...)
	return it, err
}

// withdrawn removes an instance of an ended run from its queue. It has no event: that of
// the run is enough.
func (l *leader) withdrawn(d *Dispatch, now time.Time) item {
	it := l.stepItem(d, d.Rec.Cancel(now), nil)
	it.ops = append(it.ops, store.Delete(l.readyKey(d)), store.Delete(l.cfg.Keys.CanceledStep(d.ID())))
	return it
}
