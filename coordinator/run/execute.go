package run

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// activeValue is what the key of a living executor holds: which run it has is in
// the key.
var activeValue = store.Encode(store.Now)

// Start gives an admitted run to an executor, who is seen to live for as long as
// the lease does. The run's revision is the fence of the attempt. A queued run is a
// RunNotAdmitted problem, one that somebody else has a RunTaken one.
func (s Store) Start(ctx context.Context, id string, by Executor, lease store.LeaseID) (*Run, error) {
	if err := validateText("executor", by.Name); err != nil {
		return nil, err
	}
	return s.change(ctx, id, "the run was not started", func(r *Run) (step, error) {
		switch {
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
		return step{
			rec: rec, event: event,
			ops: []*pb.RequestOp{store.Put(s.Keys.ActiveRun(by.Host, id), activeValue, lease)},
		}, nil
	})
}

// why says what a queued run waits for.
func (r *Run) why() string {
	if r.Block == nil {
		return "the coordinator has not come to it yet"
	}
	return r.Block.Text
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
	return problem.New(problem.RunLost, "attempt %d of run %q is lost: its executor was not heard of in time, and somebody else may have the run", fence, id)
}
