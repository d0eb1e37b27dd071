package coordinator

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

const (
	// maxBlocks bounds the reasons that one tick writes, maxDue the runs that join the
	// queue, and maxForgotten the runs that it deletes: the rest follows in the next.
	maxBlocks    = 1024
	maxDue       = 1024
	maxForgotten = 256
	// storingFor is how long a run may take to be submitted.
	storingFor = time.Hour
	// sweepEvery is how often runs to forget are looked for.
	sweepEvery = time.Minute
)

// tick plans over one snapshot, and carries the plan out in chunks.
func (l *leader) tick(ctx context.Context, now time.Time) error {
	l.begun = time.Now()
	s := l.state.snapshot(now)
	s.StartTimeout = l.cfg.StartTimeout
	if l.pools != nil {
		l.pools.look(ctx, s)
		s.Hold = l.pools.settling(now)
	}
	l.deadline = time.Time{}
	plan := s.Plan()
	planned := time.Now()
	l.metrics.plan(l.begun, planned, plan)
	l.me.Tick = &run.Tick{
		At: stamp(now), Number: l.number(), Queued: l.state.queue.Len(), Progress: len(l.state.progress),
		Blocked: len(plan.Blocks),
	}
	err := l.apply(ctx, plan, now)
	if err == nil && !l.open && now.Sub(l.told) >= tellEvery {
		err = l.write(ctx, &chunk{})
	}
	l.metrics.applied(planned, time.Now())
	l.metrics.state(l.state)
	for _, r := range plan.Admit {
		if r := l.state.progress[r.ID]; r != nil {
			l.state.waits(r, now) // from now on
		}
	}
	l.deadline = sooner(l.deadline, plan.NextDeadline)
	if s.Hold {
		l.deadline = sooner(l.deadline, now.Add(l.cfg.TickInterval))
	}
	if own := now.Add(l.cfg.StartTimeout); len(plan.Admit) > 0 && (l.deadline.IsZero() || own.Before(l.deadline)) {
		l.deadline = own // of those that were just admitted
	}
	// There may be more reasons, and what was lost or has joined the queue may be admitted.
	l.dirty = l.dirty || len(plan.Blocks) == maxBlocks || len(plan.Lost)+len(plan.Expired)+len(plan.Back)+len(plan.Due) > 0
	return err
}

func (l *leader) number() int64 {
	if l.me.Tick == nil {
		return 1
	}
	return l.me.Tick.Number + 1
}

// apply carries a plan out: what frees room first.
func (l *leader) apply(ctx context.Context, p Plan, now time.Time) error {
	var items []item
	for _, r := range slices.Concat(p.Lost, p.Expired) {
		it, err := l.change(ctx, r, func(rec run.Record) (run.Record, run.Event) { return rec.Lose(now) })
		if err != nil {
			return err
		}
		reason := "gone"
		if r.Status == run.NotStarted {
			reason = "launch"
		}
		it.done = func() {
			l.metrics.lost.WithLabelValues(reason).Inc()
			l.me.Tick.Lost++
		}
		if r.Executor != nil {
			it.cmps = append(it.cmps, store.CreateEquals(l.cfg.Keys.ActiveRun(r.Executor.Host, r.ID), 0))
		}
		items = append(items, it)
	}
	for _, r := range p.Back {
		it, err := l.change(ctx, r, func(rec run.Record) (run.Record, run.Event) { return rec.TakeBack(now) })
		if err != nil {
			return err
		}
		it.done = func() { l.metrics.lost.WithLabelValues("slots").Inc() }
		items = append(items, it)
	}
	for _, d := range p.Due {
		it, err := l.change(ctx, d.Run, func(rec run.Record) (run.Record, run.Event) { return rec.Join(d.Behind, now) })
		if err != nil {
			return err
		}
		items = append(items, it)
	}
	if err := l.send(ctx, nil, items); err != nil {
		return err
	}

	items = nil
	plain, gated := split(p.Admit)
	for _, r := range plain {
		it, err := l.change(ctx, r, func(rec run.Record) (run.Record, run.Event) { return rec.Admit("", now) })
		if err != nil {
			return err
		}
		it.done = func() {
			l.metrics.admitted.Inc()
			l.me.Tick.Admitted++
		}
		items = append(items, it)
	}
	limits := []*pb.Compare{store.ModEquals(l.cfg.Keys.Limits(), l.state.limitsRev)}
	if err := l.send(ctx, limits, items); err != nil {
		return err
	}
	// Steps come first: they wait for nobody's slots, and for no trouble with them.
	if err := l.dispatch(ctx, now); err != nil {
		return err
	}
	if len(gated) > 0 && l.after == 0 {
		if err := l.bridge(ctx, gated, now); err != nil {
			return err
		}
		if l.open {
			return nil // what comes next waits for the door
		}
	}

	items = nil
	for _, r := range l.forgettable(now) {
		items = append(items, l.forget(r))
	}
	if err := l.send(ctx, nil, items); err != nil {
		return err
	}

	items = nil
	for _, b := range p.Blocks {
		it := l.block(b, now)
		it.done = func() { l.metrics.blocked.WithLabelValues(string(b.Block.Kind)).Inc() }
		items = append(items, it)
	}
	return l.send(ctx, nil, items)
}

// send writes items in chunks, unless one before was not carried out.
func (l *leader) send(ctx context.Context, cmps []*pb.Compare, items []item) error {
	for len(items) > 0 && l.after == 0 {
		n := first(items)
		if err := l.write(ctx, &chunk{cmps: cmps, items: items[:n]}); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// change is a transition of a run, with its event.
func (l *leader) change(ctx context.Context, r *run.Run, transition func(run.Record) (run.Record, run.Event)) (item, error) {
	rec, event := transition(r.Record)
	logged, err := l.journal.Op(ctx, r.ID, event)
	if err != nil {
		return item{}, err
	}
	it := l.record(r, rec)
	it.ops = append(it.ops, logged)
	return it, nil
}

// record is a change of a record under a compare of the one before.
func (l *leader) record(r *run.Run, rec run.Record) item {
	key := l.cfg.Keys.Run(r.ID)
	return item{
		old: r, rec: rec,
		cmps: []*pb.Compare{store.ModEquals(key, r.Revision)},
		ops:  []*pb.RequestOp{store.Put(key, rec.Encode(), 0)},
	}
}

func (l *leader) block(b Blocked, now time.Time) item {
	rec := b.Run.BlockedBy(b.Block)
	if b.Held {
		rec = rec.HeldUp(now)
	}
	return l.record(b.Run, rec)
}

// forget deletes the record of a run. What is kept of its steps goes beside the ticks:
// its graph tells that there is some. Of a run that was not even stored there may be no
// graph, and then there is little else.
func (l *leader) forget(r *run.Run) item {
	keys := l.cfg.Keys
	key := keys.Run(r.ID)
	it := item{
		old: r, gone: true,
		cmps: []*pb.Compare{store.ModEquals(key, r.Revision)},
		ops:  []*pb.RequestOp{store.Delete(key)},
	}
	if r.Steps > 0 {
		it.done = func() { l.forgotten.add(r.ID) }
	}
	return it
}

// forgettable returns runs that have ended so long ago that nobody asks for them.
func (l *leader) forgettable(now time.Time) []*run.Run {
	if now.Sub(l.swept) < sweepEvery {
		return nil
	}
	l.swept = now
	for id := range l.steps.graphs {
		if l.state.runs[id] == nil {
			l.forgotten.add(id) // if it has no record indeed
		}
	}
	var all []*run.Run
	for _, r := range l.state.storing {
		if now.Sub(r.QueuedAt) > storingFor {
			all = append(all, r) // whoever submitted it has gone
		}
	}
	for _, r := range l.state.ended {
		if now.Sub(r.EndedAt) <= l.cfg.Retention {
			continue
		}
		if all = append(all, r); len(all) == maxForgotten {
			l.swept = time.Time{} // there may be more
			l.dirty = true
			break
		}
	}
	return all
}
