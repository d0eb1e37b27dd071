package pool

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// adoptClaims takes over what an earlier life of this instance holds: every
// slot on one of its leases. Slots that do not form a claim of this instance are
// released. It runs once, after earlier writes are fenced and the view has reached
// that revision, so that no write of the earlier life can follow.
func (c *core) adoptClaims() {
	if c.adopt == nil {
		return
	}
	leases := c.adopt
	c.adopt = nil
	for _, part := range c.view.on(func(id store.LeaseID) bool { return leases[id] }) {
		if !c.takeOver(part) {
			c.giveBackOrphaned(part)
		}
	}
}

// part is what some leases have of one claim: all its slots, unless it is torn.
type part struct {
	claim *claimView
	rev   int64
	lease store.LeaseID
	slots []placed
}

// on returns the claims that have slots on some leases, by id and with the newest of
// an id first. The slots of a claim that were put at several revisions, or are on
// several leases, are separate parts.
func (v *view) on(lease func(store.LeaseID) bool) []part {
	type one struct {
		claim claimKey
		rev   int64
		lease store.LeaseID
	}
	found := map[one][]placed{}
	for _, p := range v.order {
		for g, gv := range p.groups {
			for i, s := range gv.slots {
				if lease(s.lease) {
					key := one{s.claim, s.rev, s.lease}
					found[key] = append(found[key], placed{ref: slotRef{p.name, g, i}, n: s.n})
				}
			}
		}
	}
	all := make([]part, 0, len(found))
	for key, slots := range found {
		// The main key first, as everywhere.
		slices.SortFunc(slots, func(a, b placed) int {
			switch {
			case a.ref == key.claim.main:
				return -1
			case b.ref == key.claim.main:
				return 1
			}
			return a.ref.compare(b.ref)
		})
		all = append(all, part{claim: v.claim(key.claim), rev: key.rev, lease: key.lease, slots: slots})
	}
	slices.SortFunc(all, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.claim.id, b.claim.id), cmp.Compare(b.rev, a.rev), a.slots[0].ref.compare(b.slots[0].ref))
	})
	return all
}

// takeOver makes a claim of an earlier life a claim of this one. It reports false if
// the claim is torn, belongs to another instance, or is older than another claim of
// its id.
func (c *core) takeOver(p part) bool {
	rec, err := p.claim.full(c.view.keys)
	early := c.entries[p.claim.id]
	switch {
	case err != nil || p.claim.keys != len(p.slots) || !p.claim.isOf(c.view.keys, c.host, c.instance):
		return false
	case early != nil && early.state != queued:
		return false
	case early != nil:
		c.refuse(early, c.elsewhere(p.claim.id)) // requested before the view showed it
	}
	e := &entry{
		req: &Request{
			ID: p.claim.id, Slots: rec.Pools, Priority: rec.Priority, Holder: rec.Holder,
		},
		needs: needsOf(rec.Pools), record: rec, waiting: &Waiting{Mine: true},
		lease: p.lease, reserved: len(p.slots), slots: p.slots, order: Order{Priority: rec.Priority, Claim: p.claim.id, By: hash(c.host + "/" + c.instance)},
		received: true, // by its holder: a later request that is canceled does not release it
	}
	c.entries[e.req.ID] = e
	c.hold(e, nil, p.rev, c.updatedAt)
	c.adopted = append(c.adopted, e.claim)
	return true
}

// giveBackOrphaned frees slots on a lease of this instance that belong to no claim of
// it. They have no entry: another claim of that id may have one.
func (c *core) giveBackOrphaned(p part) *entry {
	c.log.Warn("giving back slots on a lease of this instance that no claim of it has",
		"claim", p.claim.id, "fence", p.rev, "keys", len(p.slots))
	ctx, cancel := context.WithCancelCause(context.Background())
	e := &entry{
		req:   &Request{ID: p.claim.id, Bridge: true}, // no holder has to stop or be notified
		slots: p.slots, waiting: &Waiting{Mine: true},
		claim: &Claim{ID: p.claim.id, Fence: p.rev, ctx: ctx, cancel: cancel},
	}
	c.giveBack(e, nil)
	return e
}

// reconcileEvery is how often an instance compares the keys on its leases with the
// claims it holds. It does so at once after everything was read again, as after a restore of
// etcd, which brings back claims that have ended since the snapshot.
const reconcileEvery = time.Minute

// reconciles reports whether a reconciliation is due and possible: no call is in flight,
// and the view shows everything that this instance has written.
func (c *core) reconciles(now time.Time) bool {
	return c.phase == normal && !c.calling && c.unresolved == nil && c.fresh(now) && !now.Before(c.reconcileAt)
}

// reconcile frees the slots on this instance's leases that belong to no claim of it,
// deletes its waiters that belong to no request, and has waiters written again that are
// missing in etcd.
func (c *core) reconcile(now time.Time) {
	c.reconcileAt = now.Add(reconcileEvery)
	type one struct {
		claimKey
		fence int64
	}
	known := map[one]bool{}
	note := func(e *entry) {
		if e.claim != nil && (e.state == held || e.state == releasing) {
			known[one{e.key(), e.fence()}] = true
		}
	}
	for _, e := range c.entries {
		note(e)
	}
	for _, e := range slices.Concat(c.releases, c.shelf.releases) {
		note(e) // orphaned slots have no entries
	}
	var freed []<-chan error
	for _, p := range c.view.on(c.leases.Keeps) {
		if known[one{p.claim.claimKey, p.rev}] || c.view.noticed(p.claim.id, p.rev, c.name()) {
			continue
		}
		e := c.giveBackOrphaned(p)
		if c.wanted[p.claim.id].fence == p.rev {
			e.revoked = now
		}
		reply := make(chan error, 1)
		e.waiters = append(e.waiters, reply)
		freed = append(freed, reply)
	}
	for _, r := range c.reconciling {
		r <- freed
	}
	c.reconciling = nil
	c.reconcileWaiters()
}

// reconcileWaiters has waiters written again that are missing in the wait queue, and
// orphaned ones deleted.
func (c *core) reconcileWaiters() {
	for _, e := range c.queue {
		if i, found := c.view.findWaiter(e.order); e.written && e.writtenAt <= c.view.rev && (!found || len(c.view.waiters[i].in) < len(e.needs)) {
			e.written = false
			c.dirty = true
		}
	}
	c.dropOrphans()
}

// Reconcile frees slots on this instance's leases that belong to no claim of it, as the
// engine does periodically, and returns when that is done. It knows of all that was listed.
func (e *Engine) Reconcile(ctx context.Context) error {
	if err := e.WaitRevision(ctx, e.reads.latestShown()); err != nil {
		return err
	}
	reply := make(chan []<-chan error, 1)
	if err := e.send(ctx, func(c *core, _ time.Time) {
		c.reconcileAt = time.Time{}
		c.reconciling = append(c.reconciling, reply)
	}); err != nil {
		return err
	}
	var freed []<-chan error
	select {
	case freed = <-reply:
	case <-ctx.Done():
		return unavailable(ctx, context.Cause(ctx))
	case <-e.stopped:
		return errStopped
	}
	for _, f := range freed {
		select {
		case <-f:
		case <-ctx.Done():
			return unavailable(ctx, context.Cause(ctx))
		case <-e.stopped:
			return errStopped
		}
	}
	return nil
}
