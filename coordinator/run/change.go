package run

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// step is the result of a decision on a run.
type step struct {
	done bool // there is nothing to do
	rec  Record
	// event is written with it.
	event Event
	// cmps must hold as well as the compare of the record, and ops are executed with the
	// change. If the run is unchanged and a compare does not hold, the error is refused.
	cmps    []*pb.Compare
	ops     []*pb.RequestOp
	refused error
	// over takes over the run's claim with the change, unless it is nil; leased are puts on
	// the claim's lease.
	over   Home
	leased []*pb.RequestOp
}

// takeOver commits a change together with the take-over of the run's claim.
func (s Store) takeOver(ctx context.Context, r *Run, next step, cmps []*pb.Compare) (int64, error) {
	logged, err := s.Journal.Op(ctx, r.ID, next.event)
	if err != nil {
		return 0, err
	}
	fence, err := next.over.TakeOver(ctx, r, store.Extra{
		If:     cmps,
		Then:   slices.Concat([]*pb.RequestOp{store.Put(s.Keys.Run(r.ID), next.rec.Encode(), 0), logged}, UsageOps(s.Keys, r.ID, &r.Record, &next.rec), next.ops),
		Leased: next.leased,
	})
	switch {
	case err == nil:
		return fence.Revision(), nil
	case problem.CodeOf(err) == problem.Precondition:
		return 0, store.ErrChanged
	}
	return 0, store.Stop(err)
}

// change reads a run, decides, and writes under a compare of its revision. decide must
// return done if it is called again after its step was committed.
func (s Store) change(ctx context.Context, id, what string, decide func(*Run) (step, error)) (*Run, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	var tried int64 // revision that a step was refused at
	return store.Change(ctx, what, func(ctx context.Context) (*Run, error) {
		r, err := s.read(ctx, id)
		if err != nil {
			return nil, stopAtCorrupt(what, err)
		}
		if r == nil {
			return nil, store.Stop(notFound(id))
		}
		next, err := decide(r)
		switch {
		case err != nil:
			return nil, store.Stop(err)
		case next.done:
			return r, nil
		case r.Revision == tried && next.refused != nil:
			return nil, store.Stop(next.refused)
		}
		cmps := append([]*pb.Compare{store.ModEquals(s.Keys.Run(id), r.Revision)}, next.cmps...)
		var rev int64
		if next.over == nil {
			rev, err = s.commit(ctx, id, cmps, &r.Record, next.rec, next.event, next.ops...)
		} else {
			rev, err = s.takeOver(ctx, r, next, cmps)
		}
		if err == store.ErrChanged {
			tried = r.Revision
		}
		return &Run{ID: id, Record: next.rec, Created: r.Created, Revision: rev}, err
	})
}

// CanceledValue is the value of a cancel mark. The key names the run or step instance.
var CanceledValue = store.Encode(store.Now)

// Cancel cancels a run and records why. Canceling it again succeeds; a run that has ended
// otherwise is a RunEnded problem. With onlyQueued, a run that has left the queue is a
// RunNotQueued problem. The executor of a running run is notified by its next heartbeat.
func (s Store) Cancel(ctx context.Context, id, why string, onlyQueued bool) (*Run, error) {
	if err := validateWhy("reason", why); err != nil {
		return nil, err
	}
	return s.change(ctx, id, "the run was not canceled", func(r *Run) (step, error) {
		switch {
		case r.Status == Canceled:
			return step{done: true}, nil
		case onlyQueued && r.Status != Queued:
			return step{}, problem.New(problem.RunNotQueued, "run %q is not queued any more: its status is %s", id, r.Status)
		case r.Status.Ended():
			return step{}, problem.New(problem.RunEnded, "run %q has already ended: its status is %s", id, r.Status)
		}
		rec, event := r.Record.cancel(why, time.Now())
		next := step{rec: rec, event: event}
		if r.Steps > 0 {
			next.ops = []*pb.RequestOp{store.Put(s.Keys.Canceled(id), CanceledValue, 0)}
			return next, nil
		}
		if r.Executor != nil {
			next.ops = []*pb.RequestOp{store.Delete(s.Keys.ActiveRun(r.Executor.Host, id))}
		}
		return next, nil
	})
}

// Retriable returns a RunNotEnded or RunEnded problem unless the run has failed or was
// canceled.
func (r *Run) Retriable() error {
	switch {
	case !r.Status.Ended():
		return problem.New(problem.RunNotEnded, "run %q has not ended: its status is %s", r.ID, r.Status)
	case r.Status == Succeeded:
		return problem.New(problem.RunEnded, "run %q has succeeded: submit it under another id to have it done again", r.ID)
	}
	return nil
}

// Retry puts a run that has failed or was canceled into the queue again; its event has the
// reason why. revision is that of the ended run. A run with another revision was already
// queued again, and is returned as it is. with returns what the same transaction does and
// compares; nil is nothing.
func (s Store) Retry(ctx context.Context, id, why string, revision int64, with func(context.Context) (store.Extra, error)) (*Run, error) {
	if err := validateWhy("reason", why); err != nil {
		return nil, err
	}
	return s.change(ctx, id, "the run was not queued again", func(r *Run) (step, error) {
		if r.Revision != revision {
			return step{done: true}, nil
		}
		if err := r.Retriable(); err != nil {
			return step{}, err
		}
		alone, err := s.allow(ctx, r.SubmittedBy, 0)
		if err != nil {
			return step{}, s.counted(err)
		}
		rec, event := r.Record.retry(why, time.Now())
		next := step{rec: rec, event: event, cmps: alone, ops: []*pb.RequestOp{store.Delete(s.Keys.Canceled(id))}}
		if with != nil {
			x, err := with(ctx)
			if err != nil {
				return step{}, err
			}
			next.cmps, next.ops = append(next.cmps, x.If...), append(next.ops, x.Then...)
		}
		if r.Steps > 0 { // no instance is left to cancel
			next.ops = append(next.ops, store.DeleteAll(s.Keys.CanceledSteps(id)))
		}
		return next, nil
	})
}

// activeValue is the value of the key of a living executor. The key names its run.
var activeValue = store.Encode(store.Now)

// Home provides the lease of an executor, and holds the slots of its run.
type Home interface {
	// Lease returns the lease for the key of an executor of a run without pools.
	Lease(ctx context.Context) (store.LeaseID, error)
	// TakeOver takes over the claim that the coordinator holds for a run, and returns its
	// new fencing token: see [pool.Engine.TakeOver].
	TakeOver(ctx context.Context, r *Run, x store.Extra) (fence store.Fence, err error)
}

// Start gives an admitted run to an executor. The revision of the returned run is the
// fencing token of the attempt. A queued run is a RunNotAdmitted problem, a run of another
// executor a RunTaken problem.
func (s Store) Start(ctx context.Context, id string, by Executor, at Home) (*Run, error) {
	if err := validateText("executor", by.Name); err != nil {
		return nil, err
	}
	if err := pool.ValidateLine("executor", by.Name); err != nil {
		return nil, err
	}
	return s.change(ctx, id, "the run was not started", func(r *Run) (step, error) {
		switch {
		case r.Steps > 0:
			return step{}, problem.New(problem.RunTaken, "run %q has steps: workers run them, and it has no executor", id)
		case r.Status == Queued:
			return step{}, problem.New(problem.RunNotAdmitted, "run %q is still queued: %s", id, r.why())
		case r.Status == Running && by.Name != "" && *r.Executor == by:
			return step{done: true}, nil // the response was lost
		case r.Status == Running:
			return step{}, problem.New(problem.RunTaken, "run %q is already running on host '%s'", id, r.Executor.Host)
		case r.Status.Ended():
			return step{}, problem.New(problem.RunEnded, "run %q has already ended: its status is %s", id, r.Status)
		}
		rec, event := r.Record.start(by, time.Now())
		next := step{rec: rec, event: event}
		active := s.Keys.ActiveRun(by.Host, id)
		if len(r.Pools) > 0 {
			next.over = at
			next.leased = []*pb.RequestOp{store.Put(active, activeValue, 0)}
			next.refused = problem.New(problem.RunNotAdmitted, "run %q cannot start: its slots have expired, and it returns to the queue", id)
			return next, nil
		}
		lease, err := at.Lease(ctx)
		if err != nil {
			return step{}, err
		}
		next.ops = []*pb.RequestOp{store.Put(active, activeValue, lease)}
		return next, nil
	})
}

// NotChecked is the reason of a queued run that the coordinator has not checked yet.
const NotChecked = "the coordinator has not checked it yet"

// why returns what a queued run waits for.
func (r *Run) why() string {
	if b := r.BlockAt(time.Now()); b != nil {
		return b.Text
	}
	return NotChecked
}

// Finish ends a run for the attempt with a fencing token, and records why. Repeating it
// succeeds. If the attempt has lost the run, because its executor was considered dead, that
// is a RunLost problem.
func (s Store) Finish(ctx context.Context, id string, fence store.Fence, as Status, why string, may func(*Executor) error) (*Run, error) {
	if as != Succeeded && as != Failed {
		return nil, problem.Field("status", "a run cannot finish as %q: use %s and %s", as, Succeeded, Failed)
	}
	if err := validateWhy("error", why); err != nil {
		return nil, err
	}
	return s.change(ctx, id, "the run was not finished", func(r *Run) (step, error) {
		if may != nil && r.Executor != nil && (r.Fence() == fence || r.EndFence == fence) {
			if err := may(r.Executor); err != nil {
				return step{}, err
			}
		}
		switch {
		case r.Status == as && r.EndFence == fence:
			return step{done: true}, nil
		case r.Steps > 0:
			return step{}, problem.New(problem.RunTaken, "run %q has steps: it ends with them", id)
		case r.Status.Ended() && (r.EndFence == fence || r.Status == Canceled):
			return step{}, problem.New(problem.RunEnded, "run %q has already ended: its status is %s", id, r.Status)
		case r.Status != Running || r.Fence() != fence:
			return step{}, lost(id, fence)
		}
		rec, event := r.Record.finish(as, fence, why, time.Now())
		active := s.Keys.ActiveRun(r.Executor.Host, id)
		return step{
			rec: rec, event: event,
			cmps: []*pb.Compare{store.Present(active)},
			ops:  []*pb.RequestOp{store.Delete(active)},
			// The lease may have expired without the coordinator knowing it yet.
			refused: lost(id, fence),
		}, nil
	})
}

func lost(id string, fence store.Fence) error {
	return problem.New(problem.RunLost, "attempt %d of run %q is lost: it had no heartbeat in time, and another executor may have the run", fence, id)
}

// The bindings of claims that hold the slots of runs: see [pool.Holder.Bind]. Such a claim
// is only released when its run ends.
const (
	// BindBridge is that of a claim for a run that is not started: it has no holder to stop.
	BindBridge = "bridge"
	// BindExecutor is that of a started run. It has no ttl and no process.
	BindExecutor = "run"
	// BindStep is that of a claim for a step instance that a worker or an executor has.
	BindStep = "step"
)

// Binds reports whether a claim with a binding holds the slots of a run.
func Binds(bind string) bool { return bind == BindBridge || bind == BindExecutor }
