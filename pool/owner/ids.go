package owner

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// takeID has a claim take its id, if its user has chosen that, under the condition that no claim of any instance has it. The key
// is put with those of the slots, on the same lease.
func (m *memory) takeID(it *item) {
	r := it.claim.request
	if !r.Chosen {
		return
	}
	key := m.keys.ID(r.ID)
	it.absent(key)
	value := wire.EncodeID(wire.ID{Host: r.Holder.Host, Instance: r.Holder.Instance})
	it.id(key, store.Put(key, value, it.claim.lease))
}

// freeID frees the id of a claim that has its slots, if its user has chosen that.
func (m *memory) freeID(it *item, r *pool.Request) {
	if r.Chosen {
		key := m.keys.ID(r.ID)
		it.id(key, store.Delete(key))
	}
}

// dropID frees the id of a claim whose slots were gone, or may have been: the key is deleted by itself, unless another claim
// has put it since.
func (o *commits) dropID(r *pool.Request, fence int64) {
	if r.Chosen {
		o.drops.add(&offered{key: o.memory.keys.ID(r.ID), created: fence})
	}
}

// choosesID reports whether it takes an id that a user has chosen.
func (it *item) choosesID() bool { return it.kind == takes && it.claim.request.Chosen }

// tookID reports whether a claim of a transaction whose outcome was unknown has taken its id, by the key of that: it is on the lease of
// the claim, on which this instance alone puts keys, and no other claim of this instance has that id.
func (c *Claim) tookID(kvs []*mvccpb.KeyValue) bool {
	return len(kvs) > 0 && store.LeaseID(kvs[0].Lease) == c.lease
}

// idRead takes the key of the id of a claim that waits: if another claim has it, the claim is refused now, and not only when it
// would be granted.
func (o *commits) idRead(d *demand, kvs []*mvccpb.KeyValue) {
	if c := d.claim; c.state == waiting && len(kvs) > 0 && store.LeaseID(kvs[0].Lease) != c.lease {
		o.refuse(c, inUse(c.request.ID, kvs))
	}
}

// inUse returns the error for a claim whose id another one has, by the key of that.
func inUse(claim string, kvs []*mvccpb.KeyValue) error {
	by := ""
	for _, kv := range kvs {
		if id, err := wire.DecodeID(string(kv.Key), kv.Value); err == nil {
			by = " by " + id.Host + "/" + id.Instance
		}
	}
	return problem.New(problem.IDInUse, "claim id %q is held already%s: use another id", claim, by)
}
