package source

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
)

// dedupBatch is how many records one transaction writes; etcd takes 128 operations.
const dedupBatch = 100

// dedupRecord records that an item was submitted.
type dedupRecord struct {
	// At is when it was submitted.
	At time.Time `json:"at"`
	// Gone is since when it is not listed any more; zero while it is listed.
	Gone time.Time `json:"gone,omitzero"`
}

type dedupValue struct {
	store.V
	dedupRecord
}

func (r dedupRecord) encode() []byte { return store.Encode(dedupValue{store.Now, r}) }

// decodeDedup reads a dedup record. Its error is a [*store.CorruptError].
func decodeDedup(key string, data []byte) (dedupRecord, error) {
	var v dedupValue
	err := store.Decode(key, data, &v)
	return v.dedupRecord, err
}

// dedupRecords are those of a source, by the ids of items.
type dedupRecords map[string]dedupRecord

// due is what follows from a list of items.
type due struct {
	// submit are the items that are new, in their order.
	submit []Item
	// change holds the records of items that are not listed any more, or again.
	change dedupRecords
	// forget are the ids of items that have not been listed for long enough, in order.
	forget []string
}

// due compares the listed items with the records.
func (all dedupRecords) due(items []Item, forget time.Duration, now time.Time) due {
	d := due{change: dedupRecords{}}
	listed := make(map[string]bool, len(items))
	for _, it := range items {
		listed[it.ID] = true
		r, seen := all[it.ID]
		switch {
		case !seen:
			d.submit = append(d.submit, it)
		case !r.Gone.IsZero():
			d.change[it.ID] = dedupRecord{At: r.At}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		r := all[id]
		switch {
		case listed[id]:
		case r.Gone.IsZero():
			d.change[id] = dedupRecord{At: r.At, Gone: now}
		case now.Sub(r.Gone) >= forget:
			d.forget = append(d.forget, id)
		}
	}
	return d
}

// remember reads the records and the last poll of earlier terms.
func (t *term) remember(ctx context.Context) error {
	if t.records != nil {
		return nil
	}
	const what = "the dedup records of the source could not be read"
	name := t.cfg.Spec.Name
	seen, err := store.ReadAll(ctx, t.cfg.Backend, t.cfg.Keys.DedupRecords(name))
	if err != nil {
		return store.Problem(what, err)
	}
	found := make(dedupRecords, len(seen.KVs))
	for _, kv := range seen.KVs {
		key := string(kv.Key)
		r, err := decodeDedup(key, kv.Value)
		if err != nil {
			return store.Problem(what, err) // a guess would submit an item again, or never
		}
		found[strings.TrimPrefix(key, t.cfg.Keys.DedupRecords(name))] = r
	}
	o, err := Store{t.cfg.Backend, t.cfg.Keys}.Get(ctx, name)
	if err != nil {
		return err
	}
	if o.Last != nil {
		t.last.LastGood, t.shown = o.Last.LastGood, *o.Last
	}
	t.records = found
	return nil
}

// commit writes during the term. Its error is [election.ErrDeposed] after the term.
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

// write puts records.
func (t *term) write(ctx context.Context, changed dedupRecords) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(changed)), dedupBatch) {
		var ops []*pb.RequestOp
		for _, id := range ids {
			ops = append(ops, store.Put(t.cfg.Keys.DedupRecord(t.cfg.Spec.Name, id), changed[id].encode(), 0))
		}
		if _, err := t.commit(ctx, "the dedup records of the source could not be written", ops...); err != nil {
			return err
		}
		for _, id := range ids {
			t.records[id] = changed[id]
		}
	}
	return nil
}

// forget deletes the records of items whose runs are deleted. Others stay: an existing run
// would be mistaken for that of an item that is listed again.
func (t *term) forget(ctx context.Context, ids []string) error {
	for some := range slices.Chunk(ids, dedupBatch) {
		var ops []*pb.RequestOp
		for _, id := range some {
			ops = append(ops, store.Nest(&pb.TxnRequest{
				Compare: []*pb.Compare{store.CreateEquals(t.cfg.Keys.Run(t.cfg.Spec.RunID(id)), 0)},
				Success: []*pb.RequestOp{store.Delete(t.cfg.Keys.DedupRecord(t.cfg.Spec.Name, id))},
			}))
		}
		responses, err := t.commit(ctx, "dedup records of the source could not be deleted", ops...)
		if err != nil {
			return err
		}
		for i, id := range some {
			if responses[i].GetResponseTxn().GetSucceeded() {
				delete(t.records, id)
			}
		}
	}
	return nil
}
