package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthhq/berth/internal/store"
)

// Violation is one thing in etcd that should not be.
type Violation struct {
	Key     string `json:"key"`
	Problem string `json:"problem"`
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
func (r Registry) Stuck(ctx context.Context, ids []store.LeaseID) ([]Violation, error) {
	// The leases are read before the keys: the keys of a lease that has ended are deleted.
	gone := map[store.LeaseID]bool{}
	for _, id := range ids {
		_, err := r.Backend.TimeToLive(ctx, id)
		if err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
			return nil, store.Problem("the leases could not be read", err)
		}
		gone[id] = err != nil
	}
	if len(gone) == 0 {
		return nil, nil
	}
	all, err := Read(ctx, r.Backend, r.Keys)
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	return all.OnLeases(gone), nil
}
