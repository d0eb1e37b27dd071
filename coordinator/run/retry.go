package run

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Retriable refuses a run that can't be put into the queue once more: only one that has
// failed or was canceled can. Its error is a RunNotEnded or RunEnded problem.
func (r *Run) Retriable() error {
	switch {
	case !r.Status.Ended():
		return problem.New(problem.RunNotEnded, "run %q has not ended: its status is %s", r.ID, r.Status)
	case r.Status == Succeeded:
		return problem.New(problem.RunEnded, "run %q has succeeded: submit it under another id to have it done again", r.ID)
	}
	return nil
}

// Retry puts a run that has failed or was canceled into the queue once more. The
// revision is that of the record which was looked at: if it is no longer that, the
// error is [Run.Retriable]'s.
func (s Store) Retry(ctx context.Context, id string, revision int64) (*Run, error) {
	return s.change(ctx, id, "the run was not queued again", func(r *Run) (step, error) {
		if r.Status == Queued && r.Revision > revision {
			return step{done: true}, nil // the answer was lost
		}
		if err := r.Retriable(); err != nil {
			return step{}, err
		}
		rec, event := r.Record.retry(time.Now())
		next := step{rec: rec, event: event, ops: []*pb.RequestOp{store.Delete(s.Keys.Canceled(id))}}
		if r.Steps > 0 { // nothing of it runs any more that could be stopped
			next.ops = append(next.ops, store.DeleteAll(s.Keys.CanceledSteps(id)))
		}
		return next, nil
	})
}
