package pool

import (
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// maxUnacknowledged is how many notices of one instance may be in a pool before its
	// dispatcher grants it nothing more: an instance that hangs swallows no more slots.
	maxUnacknowledged = 4
	// ackWithin is how long an instance may leave a notice before all its waiters are
	// passed, until it deletes it.
	ackWithin = 2 * time.Second
	// aliveWithin is how recently an instance must have written something for a dispatcher to
	// grant it a claim that it need not confirm.
	aliveWithin = time.Second
	// ackDelay is how long an instance keeps the deletion of a single notice back, to do it
	// along with something else, such as the release of the claim.
	ackDelay = 100 * time.Millisecond
)

// notice notifies an instance that a dispatcher has granted one of its claims. The instance
// deletes it: that acknowledges the grant.
type notice struct {
	key   string
	pool  *poolView
	by    *otherInstance // whose claim it is
	claim string
	rev   int64 // the claim's fence, too
	lease store.LeaseID
	order Order
	slots []placed
	since time.Time
	// conditional: the slots are on a lease of the dispatcher. The grant counts when its owner
	// has confirmed it, by putting them on its own lease, and may be withdrawn until then.
	conditional bool
	// seen is since when it is known to this instance.
	seen time.Time
}

// name is that of this instance.
func (c *core) name() instanceName { return instanceName{c.host, c.instance} }

func (v *view) putNotice(p *poolView, k store.PoolKey, kv *mvccpb.KeyValue) error {
	key := string(kv.Key)
	if old := v.notices[key]; old != nil && old.rev >= kv.ModRevision || p.goneNotices[key] >= kv.ModRevision {
		return nil // a commit of ours is ahead of the watch
	}
	n, err := decodeNotice(key, kv.Value)
	if err != nil {
		return err
	}
	n.claim, n.rev, n.lease = k.Claim, kv.ModRevision, store.LeaseID(kv.Lease)
	v.setNotice(p, n, instanceName{k.Host, k.Instance})
	return nil
}

func (v *view) setNotice(p *poolView, n *notice, by instanceName) {
	v.removeNotice(n.key)
	n.pool, n.by = p, v.instance(by)
	n.by.notices[n.key] = n
	v.notices[n.key] = n
}

func (v *view) removeNotice(key string) {
	if n := v.notices[key]; n != nil {
		delete(v.notices, key)
		if delete(n.by.notices, key); len(n.by.notices) == 0 {
			n.by.yielded = false
		}
		v.forgetInstance(n.by)
	}
}

// keepNotices keeps those of some notices that are there still, for who refers to them.
func (v *view) keepNotices(old map[string]*notice) {
	for key, o := range old {
		if n := v.notices[key]; n != nil && n.rev == o.rev && n != o {
			n.seen = o.seen
			*o = *n
			v.notices[key], o.by.notices[key] = o, o
		}
	}
}

// committedNotice takes a notice that a commit of ours has put.
func (v *view) committedNotice(p *poolView, n *notice, by instanceName) {
	if p.wrote = max(p.wrote, n.rev); p.whole && n.rev > p.rev {
		v.setNotice(p, n, by)
	}
}

// committedNoticeDelete takes a notice of a pool that a commit of ours deleted at rev.
func (v *view) committedNoticeDelete(p *poolView, key string, rev int64) {
	if rev > p.rev || !p.whole {
		note(&p.goneNotices, key, rev)
		v.removeNotice(key)
	}
}

// notice returns the notice of the claim that a waiter is of, nil if there is none.
func (v *view) notice(w *waiter) *notice {
	if len(w.by.notices) == 0 {
		return nil
	}
	return v.notices[v.noticeKey(w)]
}

// notified reports whether there is a notice of the claim that a waiter is of, even one that can't
// be read: then the claim can't be granted until that is gone.
func (v *view) notified(w *waiter) bool {
	if len(v.corrupt) == 0 {
		return v.notice(w) != nil
	}
	_, unreadable := v.corrupt[v.noticeKey(w)]
	return unreadable || v.notice(w) != nil
}

// noticeKey is the key of the notice of the claim that a waiter is of.
func (v *view) noticeKey(w *waiter) string {
	return v.keys.Notice(w.needs[0].Pool, w.by.name.host, w.by.name.instance, w.order.Claim)
}

// noticed reports whether there is a notice of a claim of an instance.
func (v *view) noticed(claim string, rev int64, by instanceName) bool {
	o := v.instances[by]
	if o == nil {
		return false
	}
	for _, n := range o.notices {
		if n.claim == claim && n.rev == rev {
			return true
		}
	}
	return false
}

// loan is the keys of a grant to another instance on a lease of this one, until the owner has
// confirmed it.
type loan struct {
	pool  string
	lease store.LeaseID
	keys  int
	rev   int64 // of the notice
}

// confirms reports whether another instance is to confirm the grant of a waiter: it has
// conditions of its own, has not shown for a while that it lives, or etcd refuses this one
// to put keys on its leases.
func (c *core) confirms(w *waiter, now time.Time) bool {
	return w.value.Conditional || now.Sub(w.by.seen) > aliveWithin || c.denied[w.by.name]
}

// lend notes a loan. One that it takes the place of is over: there is one notice at a time.
func (c *core) lend(key string, l loan) {
	if old, ok := c.loans[key]; ok {
		c.waiterLeases.Release(old.lease, old.keys)
	}
	c.loans[key] = l
}

// unlend releases the keys that were reserved for a grant that has not happened.
func (c *core) unlend(e *entry) {
	if e.lent > 0 {
		c.waiterLeases.Release(e.lease, e.lent)
		e.lent = 0
	}
}

// endLoans releases the keys of grants that were confirmed or withdrawn.
func (c *core) endLoans() {
	for _, key := range sortedKeys(c.loans) {
		l, n := c.loans[key], c.view.notices[key]
		if p := c.view.pool(l.pool); p.whole && p.rev >= l.rev && (n == nil || n.rev != l.rev) {
			c.waiterLeases.Release(l.lease, l.keys)
			delete(c.loans, key)
		}
	}
}

// notifies makes the notice of a grant to another instance: all but its revision.
func (c *core) notifies(e *entry, slots []placed, since stamp) (*notice, noticeValue) {
	n := &notice{
		key: c.view.noticeKey(e.other), claim: e.req.ID, lease: e.lease, order: e.order, slots: slots,
		since: since.at, conditional: e.lent > 0,
	}
	v := noticeValue{V: store.Now, Order: e.order.String(), Since: since.at, Conditional: n.conditional}
	for _, s := range slots {
		v.Slots = append(v.Slots, noticeSlot{s.ref.String(), s.n})
	}
	return n, v
}

// noteActs notes which instances have shown just now that they live: they have written a
// waiter, or deleted a notice. If a claim lost its slots along with its notice, a dispatcher
// has withdrawn its grant, or its lease has ended: that shows nothing. If it is one of this
// instance that still waits, it has lost its waiter as well, which is written again.
func (c *core) noteActs(now time.Time, known bool) {
	acted := c.view.acted
	for _, n := range c.view.ended {
		if e := c.entries[n.claim]; n.by.name == c.name() && e != nil && e.state == queued && e.offer == nil && e.order == n.order && e.writtenAt < n.rev {
			e.written = false
		}
		if s, ok := c.view.slot(n.slots[0].ref); ok && s.claim.id == n.claim {
			acted = append(acted, n.by)
		}
	}
	for _, o := range acted {
		if known {
			o.seen = now
		}
		if o.yielded && !o.late(now) {
			o.yielded, c.dirty = false, true
		}
	}
	c.view.acted, c.view.ended = acted[:0], c.view.ended[:0]
}

// checkNotices decides which instances have not acknowledged their notices in time.
func (c *core) checkNotices(now time.Time) {
	// If the pool was not watched, or etcd was silent, they may be gone, or could not be deleted.
	checked := c.checked
	c.checked = now
	for _, n := range c.view.notices {
		if n.seen.IsZero() || max(now.Sub(checked), now.Sub(n.pool.at)) > ackWithin/2 {
			n.seen = now
		}
	}
	for _, o := range c.view.instances {
		late := o.late(now)
		if late && !o.yielded {
			c.log.Info("passing the waiters of an instance that does not acknowledge its grants",
				"host", o.name.host, "instance", o.name.instance, "waiters", o.waiters)
		}
		o.yielded = late
	}
}

// unacknowledged counts the notices of a waiter's instance in the pool of its dispatcher, once
// the batch is carried out.
func (b *builder) unacknowledged(w *waiter) int {
	p := b.c.view.pool(w.needs[0].Pool)
	n := 0
	for _, o := range w.by.notices {
		if o.pool == p {
			n++
		}
	}
	for o := range b.dispatched {
		if o.by == w.by && o.needs[0].Pool == p.name {
			n++
		}
	}
	return n
}

// late reports whether an instance has left a notice for too long.
func (o *otherInstance) late(now time.Time) bool {
	is := func(n *notice) bool { return !n.seen.IsZero() && now.Sub(n.seen) >= ackWithin }
	return slices.ContainsFunc(slices.Collect(maps.Values(o.notices)), is)
}

// overdue reports whether another instance should have confirmed a grant by now.
func (c *core) overdue(n *notice, now time.Time) bool {
	return n.conditional && n.by.name != c.name() && !n.seen.IsZero() && now.Sub(n.seen) >= ackWithin
}

// anyOverdue reports whether a grant of a pool is to be withdrawn.
func (c *core) anyOverdue(p *poolView, now time.Time) bool {
	for _, n := range c.view.notices {
		if n.pool == p && c.overdue(n, now) {
			return true
		}
	}
	return false
}

// takeNotices acts on the notices of this instance.
func (c *core) takeNotices(now time.Time) {
	own := c.view.instances[c.name()]
	if c.phase != normal || own == nil || len(own.notices) == 0 {
		return
	}
	for _, key := range sortedKeys(own.notices) {
		if n := own.notices[key]; n != nil && !slices.Contains(c.acks, n) {
			c.takeNotice(n, now)
		}
	}
}

// takeNotice acts on one notice of this instance.
func (c *core) takeNotice(n *notice, now time.Time) {
	e := c.entries[n.claim]
	_, lost := c.lost[n.lease]
	switch {
	case c.ackInFlight(n):
	case e != nil && e.claim != nil && e.rev == n.rev: // it is known
		c.ack(n)
	case e != nil && e.offer == n, e != nil && e.state == claiming:
		// It is being confirmed, or there is another try to grant it, which will fail.
	case c.retained(claimKey{n.claim, n.slots[0].ref}):
		c.ack(n) // the claim has ended, and its slots are retained
	case !lost && !c.leases.Keeps(n.lease) && !n.conditional:
		c.ack(n) // an earlier life of this instance may have a holder: its slots end with their lease
	case e != nil && e.state == queued && e.inQueue && e.order == n.order && (e.lease == n.lease || n.conditional) && !lost && c.holdsAll(n):
		c.accept(e, n, now)
	default:
		c.disclaim(n)
	}
}

// succession reports whether an earlier request of an id may still be granted by a dispatcher,
// or was and is being given back: its waiter is to be deleted, or was and the view does not
// show everything before, or the notice of its grant or its slots are there, or may be.
func (c *core) succession(id string) bool {
	return c.labels[id] > 0 || c.grantable(id) // keys that show a claim of the id are to show another, or go
}

// grantable is [core.succession] without the keys of retained slots.
func (c *core) grantable(id string) bool {
	of := func(d drop) bool { return d.order.Claim == id }
	if slices.ContainsFunc(c.drops, of) || slices.ContainsFunc(c.shelf.drops, of) || c.dropped[id].hidden(c.view) ||
		c.inFlight != nil && slices.ContainsFunc(c.inFlight.drops, of) || c.unresolved != nil && slices.ContainsFunc(c.unresolved.drops, of) {
		return true
	}
	former := func(e *entry) bool { return e.req.ID == id && c.entries[id] != e }
	if slices.ContainsFunc(c.releases, former) || slices.ContainsFunc(c.shelf.releases, former) {
		return true
	}
	for _, b := range []*batch{c.inFlight, c.unresolved} {
		if b != nil && slices.ContainsFunc(b.releases, func(g releaseOp) bool { return former(g.e) }) {
			return true
		}
	}
	own := c.view.instances[c.name()]
	if own != nil {
		for _, n := range own.notices {
			if n.claim == id {
				return true
			}
		}
	}
	known, unread := c.holding(id)
	return unread || slices.ContainsFunc(known, c.ends)
}

// ends reports whether a claim is one of this instance that is about to end: its slots are on
// a lease of this life, or were granted under a condition and may have been taken back since the
// pool was read.
func (c *core) ends(cv *claimView) bool {
	_, lost := c.lost[cv.lease]
	own := lost || c.leases != nil && c.leases.Keeps(cv.lease)
	p := c.view.pool(cv.main.pool)
	return (own || p.noticesRev > p.rev) && cv.isOf(c.view.keys, c.host, c.instance)
}

// ready reports whether an entry may be granted or wait in the queue as far as earlier
// requests of its id are concerned.
func (c *core) ready(e *entry) bool {
	e.succeeds = e.succeeds && c.succession(e.req.ID)
	return !e.succeeds
}

// holdsAll reports whether the slots of a notice are there as they were granted, as far as is
// known: their fence shows it when they are touched.
func (c *core) holdsAll(n *notice) bool {
	for _, s := range n.slots {
		p := c.view.pool(s.ref.pool)
		if has, ok := c.view.slot(s.ref); p.whole && p.rev >= n.rev && (!ok || has.rev != n.rev) {
			return false
		}
	}
	return true
}

// accept makes an entry the holder of what a dispatcher has granted it, or confirms the grant
// first: under the conditions of the request, or because the dispatcher wants a sign of life.
func (c *core) accept(e *entry, n *notice, now time.Time) {
	if _, again := c.view.findWaiter(e.order); again || e.writtenAt > n.rev || c.calling { // its waiter was written again, or is just now
		c.drops = append(c.drops, drop{pools: poolNames(e.req.Slots), order: e.order, lease: e.waiterLease})
		e.waiterLease = 0
	}
	c.releaseWaiterKeys(e)
	e.inQueue, e.written = false, false
	c.dirty = true
	switch {
	case !e.req.Place.Take():
		c.disclaim(n)
	case n.conditional:
		c.unqueue(e)
		e.offer, e.takes = n, n.rev
		c.takes = append(c.takes, e)
	default:
		rec := *e.record
		rec.Since = n.since
		e.record, e.slots = &rec, n.slots
		c.metrics.granted(now.Sub(e.arrived))
		c.ack(n)
		c.refuseSecond(e, n.rev)
		c.hold(e, nil, n.rev, now)
	}
}

// decline gives back what was granted to an entry under a condition, unless it is gone, and
// has the entry wait again if it is still wanted.
func (c *core) decline(e *entry) {
	n := e.offer
	e.offer, e.takes = nil, 0
	if i := slices.Index(c.takes, e); i >= 0 {
		c.takes = slices.Delete(c.takes, i, i+1)
	}
	if c.view.notices[n.key] == n {
		c.disclaim(n)
	}
	if _, lost := c.lost[e.lease]; lost {
		c.releaseLease(e)
	}
	if c.entries[e.req.ID] == e && e.state == queued {
		c.queue = append(c.queue, e)
		e.unjudged, c.dirty = true, true
	}
}

// disclaim gives back slots that this instance was granted and does not want.
func (c *core) disclaim(n *notice) {
	if c.holdsAll(n) {
		c.log.Debug("giving back slots that were granted to a claim that does not wait any more", "claim", n.claim, "revision", n.rev)
		c.giveBack(ownerless(n.claim, n.slots, n.rev), nil)
	}
	c.ack(n)
}

// ack has a notice deleted.
func (c *core) ack(n *notice) {
	c.acks = append(c.acks, n)
}

// ackInFlight reports whether the batch in flight deletes a notice.
func (c *core) ackInFlight(n *notice) bool {
	return c.inFlight != nil && slices.Contains(c.inFlight.acks, n) || c.unresolved != nil && slices.Contains(c.unresolved.acks, n)
}

// ack deletes a notice, but not a later one of the same claim: after a restore of etcd, this one may be
// of before it.
func (b *builder) ack(n *notice) bool {
	if !b.fits(0, 2, 0) {
		return false
	}
	op := b.nest([]*pb.Compare{store.ModEquals(n.key, n.rev)}, []*pb.RequestOp{store.Delete(n.key)})
	b.kept = max(b.kept, 1)
	b.b.acks, b.b.ackOps = append(b.b.acks, n), append(b.b.ackOps, op)
	return true
}

// withdrawals deletes the slots that were granted under a condition which their owner has
// not confirmed for [ackWithin]: others are to have them. The owner's waiter is passed until
// it is written again.
func (c *core) withdrawals(b *builder, now time.Time) {
	if len(c.roles) == 0 {
		return
	}
	for _, key := range sortedKeys(c.view.notices) {
		n := c.view.notices[key]
		if !c.dispatches(n.pool) || n.pool.stale || !c.overdue(n, now) {
			continue
		}
		if !b.withdraw(n) {
			return
		}
	}
}

// withdraw deletes what was granted with a notice. If the slots are gone, as after a release by
// force, only the notice is left.
func (b *builder) withdraw(n *notice) bool {
	t := &pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(n.key, n.rev)},
		Success: []*pb.RequestOp{store.Delete(n.key)},
	}
	if b.c.holdsAll(n) {
		main := n.slots[0].ref
		t.Compare = append(t.Compare, store.ModEquals(b.c.view.keys.Slot(main.pool, main.group, main.index), n.rev))
		t.Success = append(slotDeletes(b.c.view.keys, n.slots, nil), t.Success...)
	}
	ops := len(t.Success)
	if ops > maxChildOps || !b.fits(0, ops+1, 0) {
		return false
	}
	b.ops = append(b.ops, store.Nest(t))
	b.kept = max(b.kept, ops)
	b.b.withdrawn = append(b.b.withdrawn, n)
	return true
}
