package enginetest

import (
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// value is a kind of value that can be damaged.
type value int

const (
	// slotValue is an additional slot that no claim has: a block, since a slot key is one slot, whatever its value is.
	slotValue value = iota
	// specValue is the spec.
	specValue
	// waiterValue is an additional claim that waits, of the highest priority.
	waiterValue
)

// damage has a value of a pool be one that can't be read, and returns its key.
func (w world) damage(name string, what value) string {
	w.Helper()
	*w.damaged = true
	k := wire.Keys{Keys: w.keys}
	key := map[value]string{
		slotValue: k.Block(name, 0, 0), specValue: k.Spec(name),
		waiterValue: k.Demand(wire.DemandKey{Pool: name, Host: "damaged", Instance: "i"}),
	}[what]
	w.txn(store.Put(key, []byte("damaged"), 0))
	return key
}

// slotsOf returns the slot keys and blocks of a claim.
func (w world) slotsOf(claim string) (all []*mvccpb.KeyValue) {
	w.Helper()
	k := wire.Keys{Keys: w.keys}
	s, err := store.ReadAll(w.ctx(), w.etcd.any, k.Pools())
	w.must(err)
	for _, kv := range s.KVs {
		if _, slot, err := k.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision); err == nil && slot.Claim == claim {
			all = append(all, kv)
		}
	}
	return all
}

// erase deletes keys of a claim without any compare, as etcdctl does: at most n of them, all if n is 0.
func (w world) erase(claim string, n int) {
	w.Helper()
	*w.damaged = true
	all := w.slotsOf(claim)
	if n > 0 {
		all = all[:n]
	}
	var ops []*pb.RequestOp
	for _, kv := range all {
		ops = append(ops, store.Delete(string(kv.Key)))
	}
	w.txn(ops...)
}

// orphanNumber is the number of a slot that no claim takes while a pool has few.
const orphanNumber = 150

// orphan copies a claim's slot of a pool to another slot, on a lease, under an id that no instance knows.
func (w world) orphan(claim, id, name string, on store.LeaseID) {
	w.Helper()
	*w.damaged = true
	v := strings.ReplaceAll(string(w.slotsOf(claim)[0].Value), fmt.Sprintf("%q", claim), fmt.Sprintf("%q", id))
	w.txn(store.Put(wire.Keys{Keys: w.keys}.Number(name, orphanNumber), []byte(v), on))
}

// queued counts the keys that are there only because claims wait, or waited: demands, offers and what is pending. The role is none
// of them: it is kept for a minute without demands.
func (w world) queued() (n int) {
	w.Helper()
	k := wire.Keys{Keys: w.keys}
	all := k.DispatcherRange()
	resp, err := w.etcd.any.Range(w.ctx(), &pb.RangeRequest{Key: []byte(all.Key), RangeEnd: []byte(all.End), KeysOnly: true})
	w.must(err)
	for _, kv := range resp.Kvs {
		if _, err := k.Ref(string(kv.Key)); err != nil && !strings.HasSuffix(string(kv.Key), "/spec") {
			n++
		}
	}
	return n
}
