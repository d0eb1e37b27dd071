package run

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// activeValue is what the key of a living executor holds: which run it has is in
// the key.
var activeValue = store.Encode(store.Now)

// Home is where an executor is seen to live, and holds what its run needs.
type Home interface {
	// Lease is the one for the key by which the executor of a run without pools is
	// seen.
	Lease(ctx context.Context) (store.LeaseID, error)
	// TakeOver takes over the claim that the coordinator keeps for a run, and returns
	// its fence then: see [pool.Engine.TakeOver].
	TakeOver(ctx context.Context, r *Run, x store.Extra) (fence int64, err error)
}

// OnLease is a place for runs that need no pools.
type OnLease store.LeaseID

// Lease is the lease itself.
func (l OnLease) Lease(context.Context) (store.LeaseID, error) { return store.LeaseID(l), nil }

// TakeOver is an error: there is nobody to hold slots.
func (l OnLease) TakeOver(_ context.Context, r *Run, _ store.Extra) (int64, error) {
	return 0, problem.New(problem.Internal, "run %q needs pools, and nothing here can hold slots", r.ID)
}

// Start gives an admitted run to an executor, who is seen to live at home. The
// run's revision is the fence of the attempt. A queued run is a RunNotAdmitted
// problem, one that somebody else has a RunTaken one.
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
			return step{}, problem.New(problem.RunTaken, "run %q has steps: workers run them, and it has no executor of its own", id)
		case r.Status == Queued:
			return step{}, problem.New(problem.RunNotAdmitted, "run %q is queued still: %s", id, r.why())
		case r.Status == Running && by.Name != "" && *r.Executor == by:
			return step{done: true}, nil // the answer was lost
		case r.Status == Running:
			return step{}, problem.New(problem.RunTaken, "run %q runs already, on host '%s'", id, r.Executor.Host)
		case r.Status.Ended():
			return step{}, problem.New(problem.RunEnded, "run %q has ended already: its status is %s", id, r.Status)
		}
		rec, event := r.Record.start(by, time.Now())
		next := step{rec: rec, event: event}
		active := s.Keys.ActiveRun(by.Host, id)
		if len(r.Pools) > 0 {
			next.over = at
			next.leased = []*pb.RequestOp{store.Put(active, activeValue, 0)}
			next.refused = problem.New(problem.RunNotAdmitted, "run %q can't start: the slots that were kept for it are gone, and it goes back to the queue", id)
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

// why says what a queued run waits for.
func (r *Run) why() string {
	if b := r.BlockAt(time.Now()); b != nil {
		return b.Text
	}
	return NotChecked
}

// Finish ends a run that the attempt with that fence has run, and why is kept with
// it. Asking again for the same is no error. If the attempt is not the run's any
// more, because its executor was taken to be dead, that is a RunLost problem.
func (s Store) Finish(ctx context.Context, id string, fence int64, as Status, why string) (*Run, error) {
	if as != Succeeded && as != Failed {
		return nil, problem.Field("status", "a run can't finish as %q: allowed are %s and %s", as, Succeeded, Failed)
	}
	if err := validateWhy("error", why); err != nil {
		return nil, err
	}
	return s.change(ctx, id, "the run was not finished", func(r *Run) (step, error) {
		switch {
		case r.Status == as && r.EndFence == fence:
			return step{done: true}, nil
		case r.Steps > 0:
			return step{}, problem.New(problem.RunTaken, "run %q has steps: it ends with them", id)
		case r.Status.Ended() && (r.EndFence == fence || r.Status == Canceled):
			return step{}, problem.New(problem.RunEnded, "run %q has ended already: its status is %s", id, r.Status)
		case r.Status != Running || r.Revision != fence:
			return step{}, lost(id, fence)
		}
		rec, event := r.Record.finish(as, fence, why, time.Now())
		active := s.Keys.ActiveRun(r.Executor.Host, id)
		return step{
			rec: rec, event: event,
			cmps: []*pb.Compare{store.Present(active)},
			ops:  []*pb.RequestOp{store.Delete(active)},
			// The coordinator may not have seen yet that the lease is gone.
			refused: lost(id, fence),
		}, nil
	})
}

func lost(id string, fence int64) error {
	return problem.New(problem.RunLost, "attempt %d of run %q is lost: no heartbeat came in time, and another executor may have the run", fence, id)
}
