package source

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
)

// markBatch is how many marks one transaction writes; etcd takes 128 operations.
const markBatch = 100

// term is a term of this process as the leader.
type term struct {
	*Source
	held *pb.Compare // holds during the term

	marks marks // nil until they are read
	last  Look
	told  Look            // the last that others can see
	known map[string]bool // what was refused at the last look
}

// run polls again and again until the term has ended.
func (t *term) run(ctx context.Context) error {
	for {
		wished := t.wished.Load()
		err := t.look(ctx, wished)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, election.ErrDeposed) {
			return err
		}
		next := time.NewTimer(pause(t.cfg.Spec.Interval, t.last.Failures))
		for waiting := true; waiting; {
			select {
			case <-t.woken:
				waiting = t.wished.Load() <= wished
			case <-next.C:
				waiting = false
			case <-ctx.Done():
				next.Stop()
				return context.Cause(ctx)
			}
		}
		next.Stop()
	}
}

// remember reads the marks and the last look of the terms before.
func (t *term) remember(ctx context.Context) error {
	if t.marks != nil {
		return nil
	}
	const what = "what the source has seen could not be read"
	name := t.cfg.Spec.Name
	seen, err := store.ReadAll(ctx, t.cfg.Backend, t.cfg.Keys.DedupRecords(name))
	if err != nil {
		return store.Problem(what, err)
	}
	found := make(marks, len(seen.KVs))
	for _, kv := range seen.KVs {
		key := string(kv.Key)
		m, err := decodeMark(key, kv.Value)
		if err != nil {
			return store.Problem(what, err) // to guess would be to submit again, or never
		}
		found[strings.TrimPrefix(key, t.cfg.Keys.DedupRecords(name))] = m
	}
	o, err := Store{t.cfg.Backend, t.cfg.Keys}.Get(ctx, name)
	if err != nil {
		return err
	}
	if o.Last != nil {
		t.last.LastGood, t.told = o.Last.LastGood, *o.Last
	}
	t.marks = found
	return nil
}

// commit writes something while it is our turn, and returns what came of it. Its error is
// election.ErrDeposed if it is not.
func (t *term) commit(ctx context.Context, what string, ops ...*pb.RequestOp) ([]*pb.ResponseOp, error) {
	return store.Change(ctx, what, func(ctx context.Context) ([]*pb.ResponseOp, error) {
		resp, err := t.cfg.Backend.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{t.held}, Success: ops})
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			return nil, store.Stop(election.ErrDeposed)
		}
		return resp.Responses, nil
	})
}

// write puts marks.
func (t *term) write(ctx context.Context, changed marks) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(changed)), markBatch) {
		var ops []*pb.RequestOp
		for _, id := range ids {
			ops = append(ops, store.Put(t.cfg.Keys.DedupRecord(t.cfg.Spec.Name, id), changed[id].encode(), 0))
		}
		if _, err := t.commit(ctx, "what was seen could not be noted", ops...); err != nil {
			return err
		}
		for _, id := range ids {
			t.marks[id] = changed[id]
		}
	}
	return nil
}

// forget removes the marks of items whose runs are forgotten. Others stay: a run that is
// there would be taken for that of an item that comes back.
func (t *term) forget(ctx context.Context, ids []string) error {
	for some := range slices.Chunk(ids, markBatch) {
		var ops []*pb.RequestOp
		for _, id := range some {
			ops = append(ops, store.Nest(&pb.TxnRequest{
				Compare: []*pb.Compare{store.CreateEquals(t.cfg.Keys.Run(t.cfg.Spec.RunID(id)), 0)},
				Success: []*pb.RequestOp{store.Delete(t.cfg.Keys.DedupRecord(t.cfg.Spec.Name, id))},
			}))
		}
		came, err := t.commit(ctx, "what was seen could not be forgotten", ops...)
		if err != nil {
			return err
		}
		for i, id := range some {
			if came[i].GetResponseTxn().GetSucceeded() {
				delete(t.marks, id)
			}
		}
	}
	return nil
}
