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
	fanned := l.steps.fanned(l.state.progress)
	ended := l.unpublished()
	if len(fanned)+len(ended) == 0 {
		return nil
	}
	sn := StepSnapshot{Now: now, Runs: fanned, Alive: l.steps.alive(l.state.activeAt), Tick: l.cfg.TickInterval, Most: maxPublish}
	plan := sn.Plan()
	var items []item
	for i := range plan.Lost {
		items = append(items, l.lostStep(&plan.Lost[i], now))
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
	for i := range ended {
		items = append(items, l.withdrawn(&ended[i], now))
	}
	l.deadline = sooner(l.deadline, plan.NextDeadline)
	// What was lost may be published again, and what has ended is to be withdrawn.
	l.dirty = l.dirty || plan.More || len(plan.Lost)+len(plan.End)+len(plan.Begin) > 0
	return l.send(ctx, nil, items)
}

// stepItem writes the state of an instance under a compare of the one before.
func (l *leader) stepItem(d *Dispatch, rec step.Record, metric func()) item {
	id, key := d.ID(), l.cfg.Keys.Step(d.ID())
	return item{
		cmps: []*pb.Compare{store.ModEquals(key, d.Revision)},
		ops:  []*pb.RequestOp{store.Put(key, rec.Encode(), 0)},
		made: func(rev int64) {
			d.Fan.take(&step.Instance{StepID: id, Record: rec, Revision: rev}, time.Now())
			if metric != nil {
				metric()
			}
		},
	}
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
		Retries: st.Retries, Backoff: time.Duration(st.Backoff), ScheduledAt: rec.ScheduledAt,
	}
	it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.Canceled(r.ID), 0))
	it.ops = append(it.ops, store.Put(l.readyKey(d), ready.Encode(), 0))
	return it
}

// readyKey is where an instance stands once it is published.
func (l *leader) readyKey(d *Dispatch) string {
	r := d.Run
	return l.cfg.Keys.Ready(d.Fan.steps[d.Step].Queue) + step.OrderOf(r.Priority, r.Created, d.Step, d.Index, r.ID)
}

// lostStep takes an instance from an executor who is gone.
func (l *leader) lostStep(d *Dispatch, now time.Time) item {
	st := &d.Fan.steps[d.Step]
	rec := d.Rec.Lose(st.policy(), now)
	it := l.stepItem(d, rec, func() { l.metrics.lost.WithLabelValues("step").Inc() })
	it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.ActiveStep(d.Rec.Executor.Host, d.ID()), 0))
	return it
}

// unpublished are the instances that are published still though their runs have ended:
// no worker takes them any more.
func (l *leader) unpublished() []Dispatch {
	var all []Dispatch
	for id, f := range l.steps.fans {
		r := l.state.ended[id]
		if r == nil {
			continue
		}
		if f.inFlight == 0 {
			if r.Status == run.Succeeded {
				delete(l.steps.fans, id) // nothing more happens to it; others may be retried
			}
			continue
		}
		for n := range f.steps {
			st := &f.steps[n]
			for index := range st.cells {
				if c := st.cells[index]; c.is(step.Scheduled) {
					all = append(all, Dispatch{
						Fanned: Fanned{r, f}, Step: n, Index: index, Revision: c.rev,
						Rec: step.Record{Status: step.Scheduled, Attempt: int(c.attempt)},
					})
				}
			}
		}
	}
	return all
}

// withdrawn takes an instance out of its queue that nobody may take any more.
func (l *leader) withdrawn(d *Dispatch, now time.Time) item {
	it := l.stepItem(d, d.Rec.Cancel(now), nil)
	it.ops = append(it.ops, store.Delete(l.readyKey(d)))
	return it
}
