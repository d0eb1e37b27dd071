package run

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// CanceledValue is what the mark of a run says of whose steps none starts any more:
// which run it is, is in the key.
var CanceledValue = store.Encode(store.Now)

// Cancel ends a run, and why is kept with it. One that is canceled already is no
// error; one that has ended otherwise is a RunEnded problem. With onlyQueued a run
// that has left the queue is a RunNotQueued problem. The executor of a running one
// learns of it with its next heartbeat.
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
			return step{}, problem.New(problem.RunEnded, "run %q has ended already: its status is %s", id, r.Status)
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
