package coordinator

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// dispatch is the part of a tick that is about steps: it plans, and carries the plan
// out in chunks.
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
		if e.Status == run.Failed { // what runs of it is stopped
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
	// What was lost may be published again, and what has ended is to be withdrawn.
	l.dirty = l.dirty || plan.More || len(plan.Lost)+len(plan.End)+len(plan.Begin) > 0
	if err := l.send(ctx, nil, items); err != nil {
		return err
	}
	l.after = max(l.after, plan.Behind)
	return nil
}

// stepItem writes the state of an instance under a compare of the one before.
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

// take takes the instance as it is now.
func (d *Dispatch) take(rec step.Record, rev int64) {
	d.Fan.take(&step.Instance{StepID: d.ID(), Record: rec, Revision: rev}, time.Now())
}

// published lets workers take an instance.
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
	}
	it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.Canceled(r.ID), 0))
	it.ops = append(it.ops, store.Put(l.readyKey(d), ready.Encode(), 0))
	return it
}

// readyKey is where an instance stands once it is published.
func (l *leader) readyKey(d *Dispatch) string {
	return l.cfg.Keys.Ready(d.Fan.steps[d.Step].Queue) + step.OrderIn(d.Run, d.Rec.Place, d.Step, d.Index)
}

// lostStep takes an instance from an executor who is gone. One that may be tried again
// is canceled instead if it has a mark; in any case its mark goes with it.
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

// stepEvent is the write of the event that an instance is as a record says, if it is one
// of those that have events.
func (l *leader) stepEvent(ctx context.Context, d *Dispatch, rec step.Record, now time.Time) ([]*pb.RequestOp, error) {
	i := step.Instance{StepID: d.ID(), Record: rec}
	event := i.Event(now)
	if !step.IsTold(l.journal, d.Run.ID, d.Fan.steps[d.Step].first+d.Index, event) {
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

// withdrawn takes an instance out of its queue that nobody may take any more. It has no
// event of its own: that of its run says it of all.
func (l *leader) withdrawn(d *Dispatch, now time.Time) item {
	it := l.stepItem(d, d.Rec.Cancel(now), nil)
	it.ops = append(it.ops, store.Delete(l.readyKey(d)), store.Delete(l.cfg.Keys.CanceledStep(d.ID())))
	return it
}
