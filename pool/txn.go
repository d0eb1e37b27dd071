package pool

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// claimTxn is the transaction of one claim, taken apart: the rule of the house
// in one place. It is built from a view in which every put up to the compared
// revisions is known.
type claimTxn struct {
	cmps   []*pb.Compare
	puts   []*pb.RequestOp // of slots
	beside []*pb.RequestOp // what else happens
	groups []groupRef
	whole  []*poolView
	bytes  int
}

// compares returns what must hold for slots to be taken:
//
//   - The spec of each pool is the one that the view has.
//   - No key that exists was put into a group that is touched, beyond what the
//     view has of it. So the group has the room that the view says, or more.
//   - In a pool with a group over its capacity, the same of the whole pool: then
//     only the sum counts.
//
// What has been compared already, by another claim under the same root, is left
// out.
func (t *claimTxn) compares(v *view, slots []placed, overfull func(*poolView) bool, have *compared) {
	for _, s := range slots {
		p := v.pool(s.ref.pool)
		if !slices.Contains(have.pools, p) {
			have.pools = append(have.pools, p)
			t.cmps = append(t.cmps, store.ModEquals(v.keys.Spec(p.name), p.specRev))
			if overfull(p) {
				t.whole = append(t.whole, p)
				t.cmps = append(t.cmps, wholeCompare(v, p))
			}
		}
		g := groupRef{p, s.ref.group}
		if slices.Contains(have.groups, g) || overfull(p) {
			continue
		}
		have.groups = append(have.groups, g)
		t.groups = append(t.groups, g)
		t.cmps = append(t.cmps, groupCompare(v, g))
	}
}

// compared is what some compares are about. They are few: a search is faster than
// a map.
type compared struct {
	pools  []*poolView
	groups []groupRef
}

func groupCompare(v *view, g groupRef) *pb.Compare {
	return store.NonePutSince(v.keys.Group(g.pool.name, g.group), g.pool.groupPutsKnown(v, g.group))
}

func wholeCompare(v *view, p *poolView) *pb.Compare {
	return store.NonePutSince(v.keys.Slots(p.name), p.putsKnown(v))
}

// writes returns the keys of a claim: the first carries the record, the others
// point to it.
func (t *claimTxn) writes(v *view, e *entry, slots []placed, lease store.LeaseID, since stamp) {
	rec := *e.record
	rec.Since = since.at
	rec.Keys = nil // of an earlier try
	if len(slots) > 1 {
		rec.Keys = make([]string, len(slots))
		for i, s := range slots {
			rec.Keys[i] = s.ref.String()
		}
	}
	e.record = &rec
	for i, s := range slots {
		var val []byte
		if i == 0 {
			val = encodeMain(s.n, e.req.ID, e.spelled, e.req.Priority, since, rec.Admitted, rec.Keys)
		} else {
			val = encodeOther(s.n, e.req.ID, rec.Keys[0])
		}
		t.put(v.keys.Slot(s.ref.pool, s.ref.group, s.ref.index), val, lease)
	}
}

// extras are the writes of a claim beside its slots.
func (t *claimTxn) extras(v *view, e *entry, lease store.LeaseID) {
	t.beside = append(t.beside, e.req.Extra.Then...)
	for _, op := range e.req.Extra.Leased {
		p := op.GetRequestPut()
		t.beside = append(t.beside, store.Put(string(p.Key), p.Value, lease))
	}
	t.bytes += bytesOf(t.beside)
	if e.inLine {
		t.beside = append(t.beside, waiterDeletes(v, poolNames(e.req.Slots), e.order)...)
	}
}

// bytesOf is how much writes put.
func bytesOf(ops []*pb.RequestOp) (n int) {
	for _, op := range ops {
		n += len(op.GetRequestPut().GetValue())
	}
	return n
}

func (t *claimTxn) put(key string, value []byte, lease store.LeaseID) {
	t.bytes += len(key) + len(value)
	t.puts = append(t.puts, store.Put(key, value, lease))
}

// held compares that a claim with these slots is still the one of that fence.
func (t *claimTxn) held(v *view, slots []placed, fence int64) {
	ref := slots[0].ref
	t.cmps = append(t.cmps, store.ModEquals(v.keys.Slot(ref.pool, ref.group, ref.index), fence))
}

// heldCompare holds while a claim still has its slots. One key tells for all:
// they share a revision and a lease, and whoever deletes one deletes all.
func heldCompare(v *view, e *entry) *pb.Compare {
	ref := e.slots[0].ref
	return store.ModEquals(v.keys.Slot(ref.pool, ref.group, ref.index), e.fence())
}

// slotDeletes deletes all keys of a claim but those that are overwritten in the
// same transaction.
func slotDeletes(keys store.Keys, slots []placed, overwritten map[slotRef]bool) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, 0, len(slots))
	for _, s := range slots {
		if !overwritten[s.ref] {
			ops = append(ops, store.Delete(keys.Slot(s.ref.pool, s.ref.group, s.ref.index)))
		}
	}
	return ops
}

// waiterPuts writes an entry into the line of each of its pools.
func waiterPuts(v *view, e *entry, lease store.LeaseID) []*pb.RequestOp {
	val := encodeWaiter(e.spelled, e.reserve, e.exclusive, stampOf(e.arrived))
	ops := make([]*pb.RequestOp, 0, len(e.needs))
	for _, n := range e.needs {
		ops = append(ops, store.Put(v.keys.Waiter(n.Pool, e.order.String()), val, lease))
	}
	return ops
}

// waiterDeletes takes a claim out of the line of each of its pools.
func waiterDeletes(v *view, pools []string, order Order) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, 0, len(pools))
	for _, p := range pools {
		ops = append(ops, store.Delete(v.keys.Waiter(p, order.String())))
	}
	return ops
}

// children cuts operations into nested transactions without compares, each with
// no more than so many compares of their parent leave to it.
func children(ops []*pb.RequestOp, compares int) []*pb.RequestOp {
	most := min(maxChildOps, maxOps-compares)
	var all []*pb.RequestOp
	for len(ops) > 0 {
		n := min(len(ops), most)
		all = append(all, store.Nest(&pb.TxnRequest{Success: ops[:n]}))
		ops = ops[n:]
	}
	return all
}
