package pool

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// groupView is one slot group.
type groupView struct {
	// knownRev is the revision up to which a commit of ours compared the group.
	knownRev int64
	used     int
	// freedRev is when a slot of the group was last deleted.
	freedRev int64
	slots    map[int]slot // by index
	taken    bitset       // the indexes of slots
}

// slot is one slot key.
type slot struct {
	n     int
	claim claimKey
	rev   int64
	lease store.LeaseID
}

// claimKey names one claim that holds slots. Its id alone does not: two instances
// can be granted the same id at the same moment, and hold it under main keys of
// their own.
type claimKey struct {
	id   string
	main slotRef
}

// sentSlot is one slot that the batch in flight puts.
type sentSlot struct {
	value  []byte
	n      int
	claim  claimKey
	record *record // in the main key
}

// claimView is a claim as its keys show it.
type claimView struct {
	claimKey
	next *claimView // another claim of the same id; nil nearly always
	rev  int64      // of its keys
	keys int        // how many of them are seen
	// lease that they are attached to.
	lease store.LeaseID
	// record is nil until it is asked for, and raw until the main key was seen.
	record *record
	raw    []byte
}

// full returns the record of a claim. It is an error if its main key was not
// seen, or holds none that can be read.
func (c *claimView) full(keys store.Keys) (*record, error) {
	if c.record != nil {
		return c.record, nil
	}
	key := keys.Slot(c.main.pool, c.main.group, c.main.index)
	if c.raw == nil {
		return nil, fmt.Errorf("claim %q has %d slot keys and no main key", c.id, c.keys)
	}
	r, err := decodeRecord(key, c.id, c.raw)
	if err == nil {
		c.record, c.raw = r, nil
	}
	return r, err
}

// change tells what an event did to a slot, if it was one.
type change struct {
	ref   slotRef
	claim claimKey // whose slot it was
	rev   int64    // its revision then
	at    int64    // of the event
}

func (v *view) putSlotValue(p *poolView, ref slotRef, kv *mvccpb.KeyValue) error {
	if s, ok := v.slot(ref); ok && s.rev >= kv.ModRevision || p.gone[ref] >= kv.ModRevision {
		return nil // a commit of ours is ahead of the watch
	}
	if own, ok := v.sent[ref]; ok && bytes.Equal(own.value, kv.Value) {
		v.setSlot(ref, slot{n: own.n, claim: own.claim, rev: kv.ModRevision, lease: store.LeaseID(kv.Lease)}, own.record, nil)
		return nil
	}
	val, err := decodeSlot(string(kv.Key), kv.Value)
	if err != nil {
		v.removeSlot(ref)
		return err
	}
	claim := claimKey{val.Claim, ref}
	if val.Record == nil {
		claim.main, _ = parseSlotRef(val.Main) // checked when it was decoded
	}
	v.setSlot(ref, slot{n: val.N, claim: claim, rev: kv.ModRevision, lease: store.LeaseID(kv.Lease)}, nil, val.Record)
	return nil
}

// setSlot puts a slot in place of what was there. That of a main key comes with
// its record, read or not.
func (v *view) setSlot(ref slotRef, s slot, rec *record, raw []byte) {
	v.removeSlot(ref)
	p := v.pool(ref.pool)
	delete(p.gone, ref)
	g := p.group(ref.group)
	g.slots[ref.index] = s
	g.taken.set(ref.index)
	g.used += s.n
	p.used += s.n
	c := v.claim(s.claim)
	if c == nil {
		c = &claimView{claimKey: s.claim, next: v.claims[s.claim.id]}
		v.claims[s.claim.id] = c
	}
	c.keys++
	c.rev, c.lease = max(c.rev, s.rev), s.lease
	if rec != nil || raw != nil {
		c.record, c.raw = rec, raw
	}
}

// removeSlot takes a slot away if it is there.
func (v *view) removeSlot(ref slotRef) {
	s, ok := v.slot(ref)
	if !ok {
		return
	}
	p := v.pool(ref.pool)
	g := p.group(ref.group)
	delete(g.slots, ref.index)
	g.taken.clear(ref.index)
	g.used -= s.n
	p.used -= s.n
	if c := v.claim(s.claim); c != nil {
		if c.keys--; c.keys == 0 {
			v.forgetClaim(c)
		}
	}
}

// claim returns a claim that holds slots, nil if there is none.
func (v *view) claim(key claimKey) *claimView {
	c := v.claims[key.id]
	for c != nil && c.main != key.main {
		c = c.next
	}
	return c
}

// forgetClaim takes a claim out that holds no slots any more.
func (v *view) forgetClaim(gone *claimView) {
	first := v.claims[gone.id]
	switch {
	case first != gone:
		for first.next != gone {
			first = first.next
		}
		first.next = gone.next
	case gone.next == nil:
		delete(v.claims, gone.id)
	default:
		v.claims[gone.id] = gone.next
	}
}

// fence is the fencing token of a claim's holder.
func (c *claimView) fence(keys store.Keys) store.Fence {
	r, _ := c.full(keys) // without it, the keys are the first holder's
	return r.fence(c.rev)
}

// fenced returns the claim of an id and a fencing token, nil if there is none.
func (v *view) fenced(id string, fence store.Fence) *claimView {
	c := v.claims[id]
	for c != nil && c.fence(v.keys) != fence {
		c = c.next
	}
	return c
}

// putAt returns the claim of an id whose keys were put at a revision, nil if there is none.
func (v *view) putAt(id string, rev int64) *claimView {
	c := v.claims[id]
	for c != nil && c.rev != rev {
		c = c.next
	}
	return c
}

// claimsOf returns the claims of an id that hold slots, the oldest first: one, if
// there is any, unless several instances were granted it at the same moment.
func (v *view) claimsOf(id string) []*claimView {
	var all []*claimView
	for c := v.claims[id]; c != nil; c = c.next {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *claimView) int { return cmp.Compare(a.rev, b.rev) })
	return all
}

// allClaims returns all claims that hold slots, by id, and the oldest first.
func (v *view) allClaims() []*claimView {
	all := make([]*claimView, 0, len(v.claims))
	for _, id := range sortedKeys(v.claims) {
		if one := v.claims[id]; one.next == nil {
			all = append(all, one)
		} else {
			all = append(all, v.claimsOf(id)...)
		}
	}
	return all
}

// isOf reports whether an instance holds a claim, as far as its record can be read.
func (c *claimView) isOf(keys store.Keys, host, instance string) bool {
	rec, err := c.full(keys)
	return err == nil && rec.Holder.Host == host && rec.Holder.Instance == instance
}

// committedSlot takes a slot that a commit of ours put at rev.
func (v *view) committedSlot(ref slotRef, s slot, rec *record) {
	p := v.pool(ref.pool)
	p.wrote = max(p.wrote, s.rev)
	delete(p.gone, ref) // it took the place of one that the same commit deleted
	if p.whole && s.rev > p.rev {
		v.setSlot(ref, s, rec, nil)
	}
}

// committedDelete takes a slot that a commit of ours deleted at rev.
func (v *view) committedDelete(ref slotRef, rev int64) {
	p := v.pool(ref.pool)
	if rev > p.rev || !p.whole {
		v.removeSlot(ref)
		note(&p.gone, ref, rev)
	}
	if p.whole && rev > p.rev {
		p.group(ref.group).freedRev = rev
	}
}

// note puts into a map, which is made if there is none.
func note[K comparable](m *map[K]int64, key K, rev int64) {
	if *m == nil {
		*m = map[K]int64{}
	}
	(*m)[key] = rev
}

func (v *view) noteOverwrite(k store.PoolKey, kv *mvccpb.KeyValue, ended []change) []change {
	if k.Kind != store.SlotKey {
		return ended
	}
	ref := slotRef{k.Pool, k.Group, k.Index}
	if s, ok := v.slot(ref); ok && s.rev < kv.ModRevision {
		ended = append(ended, change{ref: ref, claim: s.claim, rev: s.rev, at: kv.ModRevision})
	}
	return ended
}

// slot returns what is known to hold a slot key.
func (v *view) slot(ref slotRef) (slot, bool) {
	p := v.pools[ref.pool]
	if p == nil || ref.group >= len(p.groups) {
		return slot{}, false
	}
	s, ok := p.groups[ref.group].slots[ref.index]
	return s, ok
}
