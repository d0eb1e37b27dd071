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
		if !c.known(part) {
			continue // it was granted by a dispatcher just now: there is a notice, or [core.freeOrphans] finds it
		}
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

// known reports whether all pools in which the claim of a part can have slots, or a notice, are
// known as they are now, and as they were when it was granted, or later. Those that are not are
// read, and the part is checked again. What is old may be of before a restore of etcd.
func (c *core) known(p part) bool {
	pools := []string{p.claim.main.pool}
	if rec, err := p.claim.full(c.view.keys); err == nil {
		pools = append(pools, poolNames(rec.Pools)...)
	}
	known := true
	for _, name := range pools {
		if v := c.view.pool(name); v.stale || v.rev < p.rev {
			f := c.following(v)
			f.audit, f.auditAt, c.refollow = true, max(f.auditAt, p.rev), true
			known = false
		}
	}
	return known
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
		slots: p.slots, waiting: &Waiting{Mine: true}, orphan: true,
		claim: &Claim{ID: p.claim.id, Fence: p.rev, ctx: ctx, cancel: cancel},
	}
	c.giveBack(e, nil)
	return e
}

// forgetOrphans gives up the release of orphaned slots, which are found again: of some claims, slots
// that were gone may have been brought back by a restore of etcd, and they are freed together.
func (c *core) forgetOrphans() {
	forget := func(e *entry) bool {
		if e.orphan {
			c.done(e)
		}
		return e.orphan
	}
	c.releases = slices.DeleteFunc(c.releases, forget)
	c.shelf.releases = slices.DeleteFunc(c.shelf.releases, forget)
	for _, b := range []*batch{c.inFlight, c.unresolved} {
		if b != nil {
			b.releases = slices.DeleteFunc(b.releases, func(o releaseOp) bool { return forget(o.e) })
		}
	}
}

// reconcileEvery is how often an instance compares what it has in the pools that it follows
// with the claims it holds, and up to twice that: hosts differ. It does so at once with
// what is read of a pool, as after a restore of etcd, which brings back claims that have ended
// since the snapshot.
const reconcileEvery = time.Minute

// reconcile frees the slots on this instance's leases that belong to no claim of it,
// deletes its waiters that belong to no request, and has waiters written again that are
// missing in etcd. Pools that are not watched are read for that first. No call is in flight,
// and what earlier ones did is known.
func (c *core) reconcile(now time.Time) {
	if !now.Before(c.reconcileAt) {
		c.reconcileAt = now.Add(reconcileEvery + time.Duration(hash(c.host+"/"+c.instance))%reconcileEvery)
		for _, f := range c.followed {
			f.audit = f.audit || f.scope != nothing
		}
		c.refollow = true
	}
	due := map[*poolView]bool{}
	for _, f := range c.followed {
		if f.audits(now) {
			due[f.pool], f.audit = true, false
		}
	}
	if len(due) > 0 {
		c.freeOrphans(now)
		c.rewriteWaiters()
		c.dropOrphans()
	}
	c.reconciling = slices.DeleteFunc(c.reconciling, func(r reconciling) bool {
		if c.allAt < r.from {
			return false
		}
		var freed []<-chan error
		for _, e := range c.releases {
			if e.orphan {
				reply := make(chan error, 1)
				e.waiters = append(e.waiters, reply)
				freed = append(freed, reply)
			}
		}
		r.reply <- freed
		return true
	})
}

// audits reports whether what is known of a pool can be compared with the claims now.
func (f *followed) audits(now time.Time) bool {
	return f.audit && f.pool.whole && f.pool.rev >= f.auditAt && now.Sub(f.pool.at) < store.StaleAfter
}

// reconciling is a request to free orphaned slots, of all pools as they are at a revision or
// later. It receives when the slots are free.
type reconciling struct {
	from  int64
	reply chan<- []<-chan error
}

// freeOrphans frees the slots that are on leases of this instance and belong to no claim of
// it.
func (c *core) freeOrphans(now time.Time) {
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
	for _, p := range c.view.on(c.leases.Keeps) {
		if known[one{p.claim.claimKey, p.rev}] || c.view.noticed(p.claim.id, p.rev, c.name()) || !c.known(p) {
			continue
		}
		e := c.giveBackOrphaned(p)
		if c.wanted[p.claim.id].fence == p.rev {
			e.revoked = now
		}
	}
}

// rewriteWaiters has waiters written again that are missing in a wait queue, unless they may
// have been granted: the notice of that is in the first of their pools.
func (c *core) rewriteWaiters() {
	for _, e := range c.queue {
		i, found := c.view.findWaiter(e.order)
		first := c.view.pool(e.needs[0].Pool)
		for _, n := range e.needs {
			p := c.view.pool(n.Pool)
			if e.written && p.whole && e.writtenAt <= p.rev && p.rev <= first.noticesRev && (!found || !slices.Contains(c.view.waiters[i].in, p)) {
				e.written = false
				c.dirty = true
			}
		}
	}
}

// Reconcile frees slots on this instance's leases that belong to no claim of it, as the
// engine does by itself, and returns when that is done. It knows of all that was listed.
func (e *Engine) Reconcile(ctx context.Context) error {
	shown := e.reads.latestShown()
	reply := make(chan []<-chan error, 1)
	if err := e.send(ctx, func(c *core, _ time.Time) {
		c.seen = max(c.seen, shown)
		c.wantAll()
		c.reconciling = append(c.reconciling, reconciling{c.readAllMust, reply})
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
