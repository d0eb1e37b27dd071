package owner

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// orphans are slots on leases of this instance that belong to none of its claims, each as a claim that is being released.
type orphans struct{ list []*Claim }

// left returns how many are not known to be free yet.
func (o *orphans) left() int {
	o.list = slices.DeleteFunc(o.list, func(c *Claim) bool { return c.state == ended })
	return len(o.list)
}

// has reports whether a key that was put in a revision is one of them.
func (o *orphans) has(ref wire.Ref, revision int64) bool {
	return slices.ContainsFunc(o.list, func(c *Claim) bool { return c.state != ended && c.main == ref && c.fence == revision })
}

// one is the keys of a claim that were put in one revision on one lease.
type one struct {
	id       string
	revision int64
	lease    int64
}

// Adopt takes the claims of an earlier process of the instance over, whose slot keys, blocks and ids on its leases are given. What
// is no complete claim of this instance is released.
func (o *Owner) Adopt(kvs []*mvccpb.KeyValue, now time.Duration) (claims []*Claim) {
	parts, ids := map[one][]*mvccpb.KeyValue{}, map[string]*mvccpb.KeyValue{}
	for _, kv := range kvs {
		if id, ok := strings.CutPrefix(string(kv.Key), o.keys.ID("")); ok {
			ids[id] = kv
			continue
		}
		if _, s, err := o.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision); err == nil {
			name := one{s.Claim, kv.ModRevision, kv.Lease}
			parts[name] = append(parts[name], kv)
		}
	}
	taken := map[string]bool{}
	for _, name := range newestFirst(parts) {
		t := &transfer{}
		err := t.find(o.keys, name.id, parts[name])
		switch {
		case err != nil, taken[name.id], t.record.Holder.Host != o.queue.host, t.record.Holder.Instance != o.queue.instance:
			for _, kv := range parts[name] {
				o.orphan(kv, now)
			}
			continue
		}
		taken[name.id] = true
		id := ids[name.id]
		chosen := id != nil && id.Lease == name.lease
		if chosen {
			delete(ids, name.id)
		}
		r := &pool.Request{ID: name.id, Chosen: chosen, Slots: t.record.Pools, Priority: t.record.Priority, Holder: t.record.Holder}
		c := foundClaim(r, store.LeaseID(name.lease), t.keys, name.revision, t.record.Since)
		o.memory.adopt(t.keys, now)
		claims = append(claims, c)
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) { // of no claim that is held on
		o.commits.drops.add(&offered{key: string(ids[id].Key), created: ids[id].CreateRevision})
	}
	return claims
}

// newestFirst returns the names of parts by id, the newest one of an id first.
func newestFirst(parts map[one][]*mvccpb.KeyValue) (all []one) {
	for name := range parts {
		all = append(all, name)
	}
	slices.SortFunc(all, func(a, b one) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(b.revision, a.revision), cmp.Compare(a.lease, b.lease))
	})
	return all
}

// orphan has a key released that belongs to no claim, by itself: others of its claim may be gone, and be of another one.
func (o *Owner) orphan(kv *mvccpb.KeyValue, now time.Duration) {
	ref, s, err := o.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
	if err != nil || o.orphans.has(ref, kv.ModRevision) {
		return
	}
	h := slots.Held{}
	if ref.IsBlock() {
		h.Blocks = []slots.Block{s.Block}
	} else {
		h.Numbers = []int{ref.Number}
	}
	keys := map[string]slots.Held{ref.Pool: h}
	c := foundClaim(&pool.Request{ID: s.Claim, Slots: map[string]int{ref.Pool: h.Slots()}}, 0, keys, kv.ModRevision, time.Time{})
	o.memory.adopt(keys, now)
	o.orphans.list = append(o.orphans.list, c)
	o.commits.release(c)
}

// adopt records that a claim of this instance holds slots that it has not taken itself.
func (m *memory) adopt(held map[string]slots.Held, now time.Duration) {
	for name, h := range held {
		k := m.of(name, now)
		k.Adopt(h)
		k.use(1)
	}
}

// Orphans returns how many keys that belong to no claim are being released.
func (o *Owner) Orphans() int { return o.orphans.left() }

// Unmatched returns the keys to be read for [Owner.Audit], given the keys that are attached to the leases of claims: those that
// belong to none of the claims of this instance, which are all, and those of claims that were held before and are not attached;
// or whole claims, attached or not.
func (o *Owner) Unmatched(attached []string, all, held []*Claim, whole bool) (keys []string) {
	owned, there := map[string]int{}, map[string]bool{}
	for _, c := range all {
		for _, r := range wire.Refs(c.keys) {
			owned[r.Key(o.keys)]++
		}
		if c.request.Chosen && len(c.keys) > 0 {
			owned[o.keys.ID(c.request.ID)] = 1
		}
	}
	for _, key := range attached {
		there[key] = true
		if _, err := o.keys.Ref(key); owned[key] != 1 && (err == nil || strings.HasPrefix(key, o.keys.ID(""))) {
			keys = append(keys, key)
		}
	}
	for _, c := range held {
		for _, r := range wire.Refs(c.keys) {
			if key := r.Key(o.keys); whole || !there[key] {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// Audit takes what was read of [Owner.Unmatched], nil for a key that is absent. Claims that were held before and have not all
// of their keys are lost. What is on leases of this instance and belongs to none of its claims is released; what is left of
// a claim that is lost is found by the next audit. Mine reports whether a lease is one of this instance.
func (o *Owner) Audit(read map[string]*mvccpb.KeyValue, all, held []*Claim, mine func(store.LeaseID) bool, now time.Duration) {
	var lost []*Claim
	for _, c := range held {
		if c.state == ended || c.state == freeing {
			continue
		}
		for _, r := range wire.Refs(c.keys) {
			if kv, ok := read[r.Key(o.keys)]; ok && (kv == nil || kv.ModRevision != c.fence || store.LeaseID(kv.Lease) != c.lease) {
				lost = append(lost, c)
				break
			}
		}
	}
	type version struct {
		key      string
		revision int64
	}
	owned, taken := map[version]bool{}, map[string]bool{}
	for _, c := range all {
		switch {
		case c.state == taking: // its keys may have been put
			taken[c.request.ID] = true
		case slices.Contains(lost, c):
		default:
			for _, r := range wire.Refs(c.keys) {
				owned[version{r.Key(o.keys), c.fence}] = true
			}
			owned[version{o.keys.ID(c.request.ID), c.fence}] = true
		}
	}
	o.commits.leaseLost(lost)
	left := map[string]bool{}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(read))) { // ids come last: each is free when its slots are
		kv := read[key]
		if kv == nil || !mine(store.LeaseID(kv.Lease)) || owned[version{key, kv.ModRevision}] {
			continue
		}
		id, ok := strings.CutPrefix(key, o.keys.ID(""))
		if _, s, err := o.keys.DecodeSlot(key, kv.Value, kv.CreateRevision); err == nil && !taken[s.Claim] {
			left[s.Claim] = true
			o.orphan(kv, now)
		} else if ok && !taken[id] && !left[id] {
			o.commits.drops.add(&offered{key: key, created: kv.CreateRevision})
		}
	}
}
