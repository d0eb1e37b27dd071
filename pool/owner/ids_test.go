package owner

import (
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// asked names a claim of an instance: others may ask for one of the same id.
func asked(r *pool.Request) string { return r.ID + "@" + r.Holder.Host }

// choose has a user choose the id of a claim: often one that another instance was asked for, too.
func (w *world) choose(h *host, r *pool.Request) {
	r.Chosen = true
	for _, o := range w.hosts {
		for _, c := range slices.Concat(o.held, o.sorted()) {
			if id := c.request.ID; c.request.Chosen && !w.chosen[id+"@"+h.name] && w.IntN(4) == 0 {
				r.ID = id
			}
		}
	}
	w.chosen[r.ID], w.chosen[asked(r)] = true, true
}

// idsOf returns the deletions of the ids that were taken in a revision, or none, as of an operator who does not know of them.
func (w *world) idsOf(rev int64) (ops []*pb.RequestOp) {
	if w.IntN(2) == 0 {
		return nil
	}
	for kv := range w.etcd.All(w.keys.ID("")) {
		if kv.ModRevision == rev {
			ops = append(ops, store.Delete(string(kv.Key)))
		}
	}
	return ops
}

// checkID checks that a claim that takes slots takes its id with them, and that no other one has that. Of a claim that has lost
// some of its slots by force, others may be left without their id.
func (w *world) checkID(id, host string, main *mvccpb.KeyValue) {
	if !w.chosen[id] {
		return
	}
	kv, ok := w.get(w.keys.ID(id))
	w.check(ok && kv.ModRevision == main.ModRevision && kv.Lease == main.Lease, "claim %s takes slots, and not its id: %v", id, kv)
	if ok {
		by, err := wire.DecodeID(string(kv.Key), kv.Value)
		w.check(err == nil && by.Host == host, "claim %s of %s: its id is of %v, %v", id, host, by, err)
	}
	for rev, kvs := range w.held() {
		for _, kv := range kvs {
			_, s, err := w.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
			w.check(err != nil || s.Claim != id || rev == main.ModRevision || w.forced[rev], "claim %s is held since %d and since %d", id, rev, main.ModRevision)
		}
	}
}

// checkIDs checks that the ids in etcd are those of the claims that are held.
func (w *world) checkIDs() {
	known := map[string]int64{}
	for _, h := range w.hosts {
		for _, c := range h.held {
			if c.request.Chosen && known[c.request.ID] < c.fence {
				known[c.request.ID] = c.fence
			}
		}
	}
	for kv := range w.etcd.All(w.keys.ID("")) {
		id := strings.TrimPrefix(string(kv.Key), w.keys.ID(""))
		w.check(known[id] == kv.ModRevision, "nobody holds id %s of revision %d", id, kv.ModRevision)
		delete(known, id)
	}
	for id, rev := range known {
		w.check(false, "id %s of revision %d is gone", id, rev)
	}
}
