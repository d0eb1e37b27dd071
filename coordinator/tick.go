package coordinator

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
)

const (
	// maxBlocks bounds the block reasons that one tick writes, maxDue the runs that join
	// the queue, and maxDeleted the runs that it deletes. The next tick continues.
	maxBlocks  = 1024
	maxDue     = 1024
	maxDeleted = 256
	// storingFor is how long the submission of a run may take.
	storingFor = time.Hour
	// sweepEvery is how often runs to delete are searched.
	sweepEvery = time.Minute
)

// tick plans over one snapshot, and applies the plan in chunks.
func (l *leader) tick(ctx context.Context, now time.Time) error {
	l.begun = time.Now()
	s := l.state.snapshot(now)
	s.StartTimeout = l.cfg.StartTimeout
	if l.pools != nil {
		l.pools.complete(s)
		s.Hold = l.pools.starting(now)
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
	if err == nil && !l.unresolved && now.Sub(l.reported) >= reportEvery {
		err = l.write(ctx, &chunk{})
	}
	l.metrics.applied(planned, time.Now())
	l.metrics.state(l.state)
	for _, r := range plan.Admit {
		if r := l.state.progress[r.ID]; r != nil {
			l.state.waits(r, now) // starts its time
		}
	}
	l.deadline = sooner(l.deadline, plan.NextDeadline)
	if s.Hold {
		l.deadline = sooner(l.deadline, now.Add(l.cfg.TickInterval))
	}
	if own := now.Add(l.cfg.StartTimeout); len(plan.Admit) > 0 && (l.deadline.IsZero() || own.Before(l.deadline)) {
		l.deadline = own // of those that were just admitted
	}
	// There may be more block reasons, and runs that were lost or are due may be admitted.
	l.dirty = l.dirty || len(plan.Blocks) == maxBlocks || len(plan.Lost)+len(plan.Expired)+len(plan.Back)+len(plan.Due) > 0
	return err
}

func (l *leader) number() int64 {
	if l.me.Tick == nil {
		return 1
	}
	return l.me.Tick.Number + 1
}

// apply applies a plan. Changes that free capacity are first.
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
		it, err := l.change(ctx, r, func(rec run.Record) (run.Record, run.Event) { return rec.Requeue(now) })
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
			l.metrics.estimates.admitted(r.ID, now)
			l.me.Tick.Admitted++
		}
		items = append(items, it)
	}
	limits := []*pb.Compare{store.ModEquals(l.cfg.Keys.Limits(), l.state.limitsRev)}
	if err := l.send(ctx, limits, items); err != nil {
		return err
	}
	// Steps are first: they do not depend on the slots of runs.
	if err := l.dispatch(ctx, now); err != nil {
		return err
	}
	if len(gated) > 0 && l.after == 0 {
		if err := l.bridge(ctx, gated, now); err != nil {
			return err
		}
		if l.unresolved {
			return nil // the rest waits until the outcome is resolved
		}
	}

	items = nil
	for _, r := range l.deletable(now) {
		items = append(items, l.delete(r))
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
	err := l.send(ctx, nil, items)
	l.tasks.search(l.state, now)
	l.estimate(now)
	return err
}

// send writes items in chunks, until one is refused.
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

// change returns a transition of a run with its event.
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

// record returns the change of a record under a compare of its revision.
func (l *leader) record(r *run.Run, rec run.Record) item {
	key := l.cfg.Keys.Run(r.ID)
	return item{
		old: r, rec: rec,
		cmps: []*pb.Compare{store.ModEquals(key, r.Revision)},
		ops:  append([]*pb.RequestOp{store.Put(key, rec.Encode(), 0)}, run.UsageOps(l.cfg.Keys, r.ID, &r.Record, &rec)...),
	}
}

func (l *leader) block(b Blocked, now time.Time) item {
	rec := b.Run.BlockedBy(b.Block)
	if b.Held {
		rec = rec.HeldUp(now)
	}
	return l.record(b.Run, rec)
}

// delete deletes the record of a run. The keys of its steps are deleted asynchronously:
// the graph shows that there are some. A run whose submission was abandoned may have no
// graph, and then it has hardly any other key.
func (l *leader) delete(r *run.Run) item {
	keys := l.cfg.Keys
	key := keys.Run(r.ID)
	it := item{
		old: r, gone: true,
		cmps: []*pb.Compare{store.ModEquals(key, r.Revision)},
		ops:  append([]*pb.RequestOp{store.Delete(key)}, run.UsageOps(keys, r.ID, &r.Record, nil)...),
	}
	if r.Steps > 0 {
		it.done = func() { l.deleter.add(r.ID) }
	}
	return it
}

// deletable returns the runs whose retention has ended.
func (l *leader) deletable(now time.Time) []*run.Run {
	if now.Sub(l.swept) < sweepEvery {
		return nil
	}
	l.swept = now
	for id := range l.steps.graphs {
		if l.state.runs[id] == nil {
			l.deleter.add(id) // unless it has a record after all
		}
	}
	var all []*run.Run
	for _, r := range l.state.storing {
		if now.Sub(r.QueuedAt) > storingFor {
			all = append(all, r) // its submission was abandoned
		}
	}
	for _, r := range l.state.ended {
		if now.Sub(r.EndedAt) <= l.cfg.Retention {
			continue
		}
		if all = append(all, r); len(all) == maxDeleted {
			l.swept = time.Time{} // there may be more
			l.dirty = true
			break
		}
	}
	return all
}

// maxItems bounds the changes of one chunk: etcd takes 128 operations in a transaction. A
// change has two, or is one nested transaction; one operation puts the leader's key.
const maxItems = 63

// maxBytes bounds the values of a chunk; etcd's limit is 1.5 MiB for a request.
const maxBytes = 1 << 20

// item is one change of a run, independent of the others.
type item struct {
	old  *run.Run
	rec  run.Record // the new record
	gone bool       // it is deleted instead
	cmps []*pb.Compare
	ops  []*pb.RequestOp
	done func() // called when it is applied
	// made is called instead for a change that is not one of a run.
	made func(rev int64, answer *pb.TxnResponse)
}

// bytes returns the size of the values of an item.
func (it *item) bytes() (n int) {
	for _, op := range it.ops {
		n += len(op.GetRequestPut().GetValue())
	}
	return n
}

// first returns how many items the next chunk has: at least one.
func first(items []item) (n int) {
	for bytes := 0; n < min(len(items), maxItems); n++ {
		if bytes += items[n].bytes(); bytes > maxBytes && n > 0 {
			break
		}
	}
	return n
}

// chunk is one transaction of independent changes with common compares.
type chunk struct {
	cmps  []*pb.Compare
	items []item
}

// join returns the transaction of a chunk.
func (ch *chunk) join(f *election.Fence, me []byte, flat bool) *store.Joined {
	parts := make([]store.Part, len(ch.items))
	for i, it := range ch.items {
		parts[i] = store.Part{If: it.cmps, Then: it.ops}
	}
	txn := f.Write(me)
	txn.Compare = append(txn.Compare, ch.cmps...)
	return store.Join(txn, parts, flat)
}

// take applies the responses to the state. It reports whether a change failed because the
// run has changed meanwhile, which the feed delivers.
func (ch *chunk) take(rev int64, answers []*pb.TxnResponse, s *state) (behind bool) {
	for i, it := range ch.items {
		switch {
		case !answers[i].Succeeded:
			behind = true
		case it.made != nil:
			it.made(rev, answers[i])
		case it.gone:
			s.remove(it.old.ID)
			s.gone[it.old.ID] = rev
		default:
			s.put(&run.Run{ID: it.old.ID, Record: it.rec, Created: it.old.Created, Revision: rev})
		}
		if answers[i].Succeeded && it.done != nil {
			it.done()
		}
	}
	return behind
}
