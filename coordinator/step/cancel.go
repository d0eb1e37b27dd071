package step

import (
	"cmp"
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Cancel ends one step instance of a run in progress. One that is running is stopped by
// its worker, and ends when that has been done. One that has ended is a StepEnded
// problem, unless it was canceled before: then it is no error, and neither is it if that
// was the end of its run.
func (s Store) Cancel(ctx context.Context, runs run.Store, id store.StepID) (*Instance, error) {
	const what = "the step instance was not canceled"
	r, err := runs.Get(ctx, id.Run)
	if err != nil {
		return nil, err
	}
	if r.Status.Ended() {
		if i, err := s.read(ctx, id); err == nil && i.Status == Canceled {
			return i, nil
		}
		return nil, problem.New(problem.RunEnded, "run %q has already ended: its status is %s", id.Run, r.Status)
	}
	if _, err := s.Get(ctx, id); err != nil {
		return nil, err
	}
	return store.Change(ctx, what, func(ctx context.Context) (*Instance, error) {
		i, err := s.read(ctx, id)
		if err != nil {
			return nil, stopAtCorrupt(what, err)
		}
		ops := []*pb.RequestOp{}
		switch {
		case i.Status == Canceled:
			return i, nil
		case i.Status.Ended():
			return nil, store.Stop(problem.New(problem.StepEnded, "step instance %s of run %q has already ended: its status is %s", id.Text(), id.Run, i.Status))
		case i.Status == Running:
			ops = append(ops, store.Put(s.Keys.CanceledStep(id), run.CanceledValue, 0))
		default:
			ready, number, err := s.place(ctx, r, id, i.Place)
			if err != nil {
				return nil, err
			}
			if i.Status == Scheduled {
				ops = append(ops, store.Delete(ready))
			}
			now := time.Now()
			i.Record = i.Cancel(now)
			ops = append(ops, store.Put(s.Keys.Step(id), i.Encode(), 0), store.Delete(s.Keys.CanceledStep(id)))
			event := i.Event(now)
			event.Reason = cmp.Or(event.Reason, "it was canceled")
			if ops, err = s.logged(ctx, ops, id, number, event); err != nil {
				return nil, err
			}
		}
		rev, err := store.Commit(ctx, s.Backend, []*pb.Compare{store.ModEquals(s.Keys.Step(id), i.Revision)}, ops...)
		if err == nil && i.Status == Canceled {
			i.Revision = rev
		}
		return i, err
	})
}

// place is where an instance of a run stands once it is published, and its number among
// all of the run.
func (s Store) place(ctx context.Context, r *run.Run, id store.StepID, place int64) (ready string, number int, err error) {
	key := s.Keys.Graph(id.Run)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return "", 0, err
	}
	if len(resp.Kvs) == 0 {
		return "", 0, store.Stop(notFound(id))
	}
	g, err := DecodeGraph(key, resp.Kvs[0].Value)
	if err != nil {
		return "", 0, store.Stop(store.Problem("the steps of the run can't be read", err))
	}
	n := g.Number(id.Step)
	if n < 0 {
		return "", 0, store.Stop(notFound(id))
	}
	for _, before := range g.Shapes()[:n] {
		number += before.Count
	}
	return s.Keys.Ready(g.Shapes()[n].Queue) + OrderIn(r, place, n, id.Index), number + id.Index, nil
}
