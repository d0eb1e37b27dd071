package step

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Raw is an instance as its record says, whatever has become of its run, with all that
// it takes to take it or to finish it.
type Raw struct {
	Detail
	// Published is what can be taken; nil while the instance can't be.
	Published *Published
	// RunEnded tells that its run was canceled, or has failed, and Canceled that it was
	// canceled by itself: it does not start any more, and has to stop if it runs.
	RunEnded, Canceled bool
}

// Raw reads one instance. An unknown run is a RunNotFound problem, an unknown instance
// a StepNotFound one.
func (s Store) Raw(ctx context.Context, id store.StepID) (*Raw, error) {
	v, d, err := s.detail(ctx, id)
	if err != nil {
		return nil, err
	}
	r := &Raw{Detail: *d}
	number := v.graph.Number(id.Step)
	ready := s.Keys.Ready(d.Shape.Queue) + OrderIn(v.run, d.Place, number, id.Index)
	resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		store.Get(s.Keys.Step(id)), store.Get(ready), store.Get(s.Keys.Canceled(id.Run)), store.Get(s.Keys.CanceledStep(id)),
	}})
	if err != nil {
		return nil, store.Problem("the step instance could not be read", err)
	}
	// What may change is read again, all of it at one revision.
	r.Instance = Instance{StepID: id, Record: Record{Status: Requested}}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		i, err := Decode(s.Keys, kvs[0])
		if err != nil {
			return nil, store.Problem("the step instance could not be read", err)
		}
		r.Instance = *i
	}
	if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		if r.Published, err = DecodeReady(s.Keys, kvs[0]); err != nil {
			return nil, store.Problem("the step instance could not be read", err)
		}
	}
	r.RunEnded = len(resp.Responses[2].GetResponseRange().Kvs) > 0
	r.Canceled = len(resp.Responses[3].GetResponseRange().Kvs) > 0
	return r, nil
}

// FinishAttempt ends the attempt of a fence, whoever asks for it: see [Store.Finish].
// That it has been finished so already is no error; that it was finished in another way
// is a StepEnded problem.
func (s Store) FinishAttempt(ctx context.Context, r *Raw, fence int64, o Outcome) (*Instance, error) {
	t := r.Taken()
	switch {
	case t != nil && t.Revision == fence:
		return s.Finish(ctx, t, o, nil)
	case r.EndFence == fence && (o.Status == r.Status || o.Status == Failed && r.Status != Succeeded):
		return &r.Instance, nil // one that has failed may be on its way again, or canceled by now
	case r.EndFence == fence:
		return nil, problem.New(problem.StepEnded, "attempt %d of step instance %s of run %q was finished already: the status of the instance is %s", fence, r.Text(), r.Instance.Run, r.Status)
	}
	return nil, lost(&Taken{Instance: Instance{StepID: r.StepID, Revision: fence}})
}
