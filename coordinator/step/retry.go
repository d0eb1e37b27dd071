package step

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Retry puts a run that has failed or was canceled into the queue once more. Its step
// instances that have succeeded are not run again; the others are, with as many retries
// as at first. A run that can't be retried is refused as [run.Run.Retriable] says.
func (s Store) Retry(ctx context.Context, runs run.Store, id string) (*run.Run, error) {
	r, err := runs.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := r.Retriable(); err != nil {
		return nil, err
	}
	if r.Steps > 0 {
		if err := s.reset(ctx, r); err != nil {
			return nil, err
		}
	}
	return runs.Retry(ctx, id, r.Revision)
}

// reset has the instances of an ended run requested again that have not succeeded.
func (s Store) reset(ctx context.Context, r *run.Run) error {
	const what = "the run was not queued again"
	all, err := store.ReadAll(ctx, s.Backend, s.Keys.Steps(r.ID))
	if err != nil {
		return store.Problem(what, err)
	}
	var ops []*pb.RequestOp
	for _, kv := range all.KVs {
		i, err := Decode(s.Keys, kv)
		switch {
		case err != nil:
			return store.Problem(what, err)
		case i.Status.InFlight():
			return problem.New(problem.RunNotEnded, "step instance %s of run %q is being stopped still: try again in a moment", i.Text(), r.ID)
		case i.Status == Failed || i.Status == Canceled:
			ops = append(ops, store.Put(string(kv.Key), Record{Status: Requested}.Encode(), 0))
		}
	}
	still := []*pb.Compare{store.ModEquals(s.Keys.Run(r.ID), r.Revision)}
	for len(ops) > 0 {
		n := min(len(ops), workPuts)
		if _, err := store.Commit(ctx, s.Backend, still, ops[:n]...); err != nil {
			if err == store.ErrChanged {
				return problem.New(problem.RunNotEnded, "run %q was changed by somebody else meanwhile: look at it and try again", r.ID)
			}
			return store.Problem(what+": try again", err)
		}
		ops = ops[n:]
	}
	return nil
}
