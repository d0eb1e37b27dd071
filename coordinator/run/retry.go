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

// Retry puts a run that has failed or was canceled into the queue once more, and why is
// told with it. The revision is that of the end that was looked at. A run that has
// another by now was queued again since, and is returned as it is: nothing else leads on
// from an end, and the answer may have been lost.
func (s Store) Retry(ctx context.Context, id, why string, revision int64) (*Run, error) {
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
		rec, event := r.Record.retry(why, time.Now())
		next := step{rec: rec, event: event, ops: []*pb.RequestOp{store.Delete(s.Keys.Canceled(id))}}
		if r.Steps > 0 { // nothing of it runs any more that could be stopped
			next.ops = append(next.ops, store.DeleteAll(s.Keys.CanceledSteps(id)))
		}
		return next, nil
	})
}
