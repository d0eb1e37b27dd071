package step

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// executorsPage is how many instances one read of [Store.Executors] returns.
const executorsPage = 1000

// Executors returns the executors that the instances of a run have now or had last, each once.
func (s Store) Executors(ctx context.Context, id string) ([]run.Executor, error) {
	found := executors{}
	prefix := s.Keys.Steps(id)
	page := &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: executorsPage}
	for {
		resp, err := s.Backend.Range(ctx, page)
		if err != nil {
			return nil, err
		}
		found.add(s.Keys, resp)
		if !resp.More {
			return found.all, nil
		}
		page.Key = append(resp.Kvs[len(resp.Kvs)-1].Key, 0)
	}
}

// ActiveOn returns the executors of the instances of a run that a host has now, each once. It
// reads at most so many instances, no more than a transaction can.
func (s Store) ActiveOn(ctx context.Context, host, id string, most int64) ([]run.Executor, error) {
	prefix := s.Keys.ActiveRun(host, id) + "/"
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: most, KeysOnly: true})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	var ops []*pb.RequestOp
	for _, kv := range resp.Kvs {
		if _, of, err := s.Keys.ParseActive(string(kv.Key)); err == nil {
			ops = append(ops, store.Get(s.Keys.Step(of)))
		}
	}
	made, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: ops})
	if err != nil {
		return nil, err
	}
	found := executors{}
	for _, resp := range made.Responses {
		found.add(s.Keys, resp.GetResponseRange())
	}
	return found.all, nil
}

// executors are different executors. Those of one instance of berth that differ in their names
// only are one.
type executors struct {
	all  []run.Executor
	seen map[run.Executor]bool
}

// add adds the executors of instances. What cannot be read has none.
func (e *executors) add(keys store.Keys, resp *pb.RangeResponse) {
	for _, kv := range resp.Kvs {
		i, err := Decode(keys, kv)
		if err != nil || i.Executor == nil {
			continue
		}
		by := *i.Executor
		by.Name = ""
		if e.seen[by] {
			continue
		}
		if e.seen == nil {
			e.seen = map[run.Executor]bool{}
		}
		e.seen[by] = true
		e.all = append(e.all, by)
	}
}
