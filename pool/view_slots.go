package pool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	p.uses(s.lease, s.n)
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

// uses adds n to the used slots of a lease.
func (p *poolView) uses(lease store.LeaseID, n int) {
	if p.leases == nil {
		p.leases = map[store.LeaseID]int{}
	}
	p.used += n
	if p.leases[lease] += n; p.leases[lease] == 0 {
		delete(p.leases, lease)
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
	p.uses(s.lease, -s.n)
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

// Verify checks the invariants from what etcd holds alone:
//
//   - Every value can be read.
//   - No pool, and no slot group, holds more than it may if one of its holders
//     came after the limit was set. (After a limit was lowered it is legal to be
//     above it.)
//   - Every claim is whole: all the keys that it lists, at one revision and on
//     one lease, adding up to what it claimed; and no slot belongs to none.
//   - Every slot and every waiter is attached to a lease, so that it can't leak.
//   - Every waiter is in the wait queue of each of its pools, and one of these is queued or has
//     a dispatcher: otherwise no instance would grant it.
//   - Every notice lists the slots that were granted with it, as long as the claim has them. A
//     notice whose claim is gone is legal: an operator may have released the claim by force.
func (r *Reader) Verify() []Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view
	var all []Violation
	report := func(key, format string, args ...any) {
		all = append(all, Violation{Key: key, Problem: fmt.Sprintf(format, args...)})
	}
	for _, key := range sortedKeys(v.corrupt) {
		report(key, "%v", v.corrupt[key])
	}
	for _, name := range sortedKeys(v.pools) {
		v.verifyCapacity(v.pools[name], report)
	}
	for _, cv := range v.allClaims() {
		v.verifyClaim(cv, report)
	}
	for _, w := range v.waiters {
		if len(w.in) != len(w.value.Pools) {
			report(v.keys.Waiter(w.in[0].name, w.order.String()), "its waiter is in %d of %d wait queues", len(w.in), len(w.value.Pools))
		}
		if !slices.ContainsFunc(w.in, func(p *poolView) bool { return p.queued.rev > 0 || p.dispatcher.rev > 0 }) {
			report(v.keys.Waiter(w.in[0].name, w.order.String()), "it waits, and none of its pools is queued or has a dispatcher")
		}
	}
	for _, key := range sortedKeys(v.notices) {
		v.verifyNotice(v.notices[key], report)
	}
	for _, kv := range r.snapshot.KVs {
		key := string(kv.Key)
		if _, bad := v.corrupt[key]; bad || kv.Lease != 0 {
			continue
		}
		if k, err := v.keys.ParsePoolKey(key); err == nil && k.Kind != store.SpecKey && k.Kind != store.QueuedKey {
			report(key, "it hangs on no lease and would never end")
		}
	}
	return all
}

// OnLeases returns the keys that hang on some leases, of which etcd has none: nothing would
// ever delete them.
func (r *Reader) OnLeases(gone map[store.LeaseID]bool) []Violation {
	var all []Violation
	for _, kv := range r.snapshot.KVs {
		if gone[store.LeaseID(kv.Lease)] {
			all = append(all, Violation{Key: string(kv.Key), Problem: fmt.Sprintf("it hangs on lease %x, which etcd does not have, and would never end", kv.Lease)})
		}
	}
	return all
}

func (v *view) verifyCapacity(p *poolView, report func(key, format string, args ...any)) {
	if !p.known() || p.spec.Limit == Unlimited {
		return
	}
	var newest int64
	for g, gv := range p.groups {
		var newestHere int64
		for _, s := range gv.slots {
			newestHere = max(newestHere, v.admittedAt(s))
		}
		newest = max(newest, newestHere)
		if gv.used > p.layout.capacity(g) && newestHere > p.limitSince {
			report(v.keys.Group(p.name, g), "group %d holds %d slots of %d, one of them admitted at revision %d, after the limit was set at %d",
				g, gv.used, p.layout.capacity(g), newestHere, p.limitSince)
		}
	}
	if p.used > p.spec.Limit && newest > p.limitSince {
		report(v.keys.Slots(p.name), "%d slots are held of a limit of %d, one of them admitted at revision %d, after the limit was set at %d",
			p.used, p.spec.Limit, newest, p.limitSince)
	}
}

// admittedAt is the revision at which a slot was taken. A claim that was taken over has
// it in its record: its keys were put again since, and the pool holds no more for that.
func (v *view) admittedAt(s slot) int64 {
	if cv := v.claim(s.claim); cv != nil {
		if rec, err := cv.full(v.keys); err == nil && rec.Admitted > 0 && rec.Admitted < s.rev {
			return rec.Admitted
		}
	}
	return s.rev
}

func (v *view) verifyClaim(cv *claimView, report func(key, format string, args ...any)) {
	id := cv.id
	rec, err := cv.full(v.keys)
	if err != nil {
		report(v.keys.Pools(), "%v", err)
		return
	}
	main := v.keys.Slot(cv.main.pool, cv.main.group, cv.main.index)
	refs := rec.refs(cv.main)
	if len(refs) != cv.keys {
		report(main, "claim %q lists %d keys and has %d", id, len(refs), cv.keys)
	}
	sum := map[string]int{}
	for _, ref := range refs {
		s, ok := v.slot(ref)
		switch {
		case !ok || s.claim != cv.claimKey:
			report(v.keys.Slot(ref.pool, ref.group, ref.index), "claim %q lists it, and it is not that claim's", id)
		case s.rev != cv.rev || s.lease != cv.lease:
			report(v.keys.Slot(ref.pool, ref.group, ref.index), "claim %q is torn: its keys have several revisions or leases", id)
		}
		sum[ref.pool] += s.n
	}
	if !maps.Equal(sum, rec.Pools) {
		report(main, "claim %q claimed %v and holds %v", id, rec.Pools, sum)
	}
}

// verifyNotice checks a notice against the claim that was granted with it, which may have been
// released or confirmed since.
func (v *view) verifyNotice(n *notice, report func(key, format string, args ...any)) {
	if main := n.slots[0].ref; main.pool != n.pool.name || n.order.Claim != n.claim {
		report(n.key, "its value is that of claim %q in pool %q", n.order.Claim, main.pool)
		return
	}
	for _, cv := range v.claimsOf(n.claim) {
		switch {
		case !cv.isOf(v.keys, n.by.name.host, n.by.name.instance):
		case cv.rev < n.rev:
			report(n.key, "claim %q is held since revision %d, and was granted again at revision %d", n.claim, cv.rev, n.rev)
		case cv.rev == n.rev && !v.lists(n, cv):
			report(n.key, "it lists %d slot keys of claim %q, and not those that were granted with it", len(n.slots), n.claim)
		}
	}
}

// lists reports whether a notice lists the slots of a claim, which are on its lease.
func (v *view) lists(n *notice, cv *claimView) bool {
	return len(n.slots) == cv.keys && n.lease == cv.lease && !slices.ContainsFunc(n.slots, func(p placed) bool {
		s, ok := v.slot(p.ref)
		return !ok || s.claim != cv.claimKey || s.n != p.n
	})
}

// Stuck returns the keys on some leases that nothing would ever delete, because etcd does
// not have the lease.
func Stuck(ctx context.Context, b store.Backend, keys store.Keys, ids []store.LeaseID) ([]Violation, error) {
	// The leases are read before the keys: the keys of a lease that has ended are deleted.
	gone := map[store.LeaseID]bool{}
	for _, id := range ids {
		_, err := b.TimeToLive(ctx, id)
		if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
			return nil, store.Problem("the leases could not be read", err)
		}
		gone[id] = err != nil
	}
	if len(gone) == 0 {
		return nil, nil
	}
	all, err := Read(ctx, b, keys)
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	return all.OnLeases(gone), nil
}
