package pool

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// request takes a new entry. The answer goes to reply, which must be buffered. If the
// id is known, its older entry serves both requests.
func (c *core) request(e *entry, reply chan<- outcome, now time.Time) {
	req := e.req
	if older := c.entries[req.ID]; older != nil {
		c.again(older, e, reply, now)
		return
	}
	e.arrived, e.listeners = now, []listener{{reply, req.Wait}}
	if !c.reuse(e, now) {
		c.enter(e, now)
	}
}

// enter takes a new entry that is to be granted its slots by a write.
func (c *core) enter(e *entry, now time.Time) {
	req := e.req
	c.asked(req.Slots, slices.ContainsFunc(e.listeners, func(l listener) bool { return l.wait > 0 }), now)
	if err := c.unwelcome(req, now); err != nil {
		c.metrics.refused(problem.CodeOf(err))
		e.answer(outcome{err: err, shown: c.specsShown(e.needs)})
		return
	}
	e.waiting = &admit.Waiter{Needs: c.view.poolNeeds(req.Slots), Mine: true}
	if p, ok := c.places[req.ID]; ok {
		delete(c.places, req.ID)
		if now.Before(p.until) && p.req.sameAs(req) {
			e.order.Since, e.waited, e.reserve = p.since, p.waited, p.reserve
		}
	}
	c.unshow(req.ID)
	e.succeeds = c.succession(req.ID)
	c.entries[req.ID] = e
	c.queue = append(c.queue, e)
	c.dirty = true
}

// unwelcome returns why a request is refused on arrival.
func (c *core) unwelcome(req *Request, now time.Time) error {
	if c.stopping {
		return problem.New(problem.Stopping, "berth is shutting down on this host and takes no new claims")
	}
	if !c.fresh(now) || c.anyStale(needsOf(req.Slots)) {
		return nil // what the view does not show may be there, and what it shows not
	}
	if err := c.inUse(req.ID); err != nil {
		return err
	}
	for name := range req.Slots {
		if !c.view.pool(name).known() {
			return NoSuchPool(name)
		}
	}
	return nil
}

// holding returns the claims that hold slots under an id, as far as their main keys are known as
// they are now. Of others the slots were seen in one pool, and the pool of the main key is to be
// read: if it does not show the key, they are gone. Unread reports whether there are such.
func (c *core) holding(id string) (known []*claimView, unread bool) {
	for _, cv := range c.view.claimsOf(id) {
		if c.retained(cv.claimKey) {
			continue // the claim has ended
		}
		switch {
		case cv.record == nil && cv.raw == nil:
			unread = unread || c.unread(cv)
		case !c.view.pool(cv.main.pool).stale:
			known = append(known, cv)
		}
	}
	return known, unread
}

// unread reports whether the pool of the main key of a claim is not known as it was when that was
// put, or later.
func (c *core) unread(cv *claimView) bool {
	p := c.view.pool(cv.main.pool)
	return !p.whole || p.rev < cv.rev
}

// elsewhere refuses an id that a claim has already, whichever instance holds it.
func (c *core) elsewhere(id string) error {
	seen, _ := c.holding(id)
	if len(seen) == 0 {
		return nil
	}
	return problem.New(problem.IDInUse, "%s: use another id", c.view.isHeld(seen[0]))
}

// isHeld says that the id of a claim is in use.
func (v *view) isHeld(cv *claimView) string {
	by := ""
	if r, err := cv.full(v.keys); err == nil {
		by = " by " + r.Holder.Host + "/" + r.Holder.Instance
	}
	return fmt.Sprintf("claim id %q is held already%s", cv.id, by)
}

// inUse is [core.elsewhere], but for what this instance was granted for an earlier request
// and gives back: that ends in a moment.
func (c *core) inUse(id string) error {
	foreign := func(cv *claimView) bool { return !cv.isOf(c.view.keys, c.host, c.instance) }
	known, _ := c.holding(id)
	if len(known) == 0 || !slices.ContainsFunc(known, foreign) && c.succession(id) {
		return nil
	}
	return c.elsewhere(id)
}

// again takes a request whose id is known.
func (c *core) again(older, e *entry, reply chan<- outcome, now time.Time) {
	same := older.req.sameAs(e.req)
	switch {
	case older.state == claiming && older.dropped && same && !c.stopping && e.req.Place.Take():
		// The canceled request came again in time. Its place was returned; it has another.
		older.dropped, older.req.Place = false, e.req.Place
		older.listeners = append(older.listeners, listener{reply, e.req.Wait})
	case older.state == releasing || older.dropped:
		older.successors = append(older.successors, successor{e, reply, now})
	case !same:
		reply <- outcome{err: problem.New(problem.IDInUse, "claim id %q is used by another claim: use another id", e.req.ID)}
	case older.state == held && older.claim.Err() != nil:
		reply <- outcome{err: older.claim.Err()}
	case older.state == held:
		older.grantTo(reply)
	default:
		older.listeners = append(older.listeners, listener{reply, e.req.Wait})
		older.unjudged = true
		if r := c.retentions[older.kind]; r != nil && slices.Contains(r.local, older) {
			c.unretain(older, now)
		}
		c.dirty, c.refollow = true, true
	}
}

// succeed takes the requests whose ids are free now.
func (c *core) succeed(now time.Time) {
	free := c.successors
	c.successors = nil
	for _, s := range free {
		c.request(s.e, s.reply, now)
	}
}

// unsucceed removes the request of a successor and reports whether there was one.
func (c *core) unsucceed(id string, reply chan<- outcome) bool {
	lists := []*[]successor{&c.successors}
	if e := c.entries[id]; e != nil {
		lists = append(lists, &e.successors)
	}
	for _, list := range lists {
		if i := slices.IndexFunc(*list, func(s successor) bool { return s.reply == reply }); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			return true
		}
	}
	return false
}

// loseSuccessors refuses those who are not to wait for an entry that takes long to be
// given back.
func (c *core) loseSuccessors(e *entry, now time.Time) {
	e.successors = slices.DeleteFunc(e.successors, func(s successor) bool {
		if s.e.req.Wait > 0 || now.Sub(s.asked) < patience {
			return false
		}
		err := c.notReleased(s.e.req.ID, now)
		c.metrics.refused(problem.CodeOf(err))
		s.reply <- outcome{err: err}
		return true
	})
}

// notReleased is why an id can't be used for a while.
func (c *core) notReleased(id string, now time.Time) error {
	if err := c.trouble(now); err != nil {
		return err
	}
	return problem.New(problem.IDInUse, "claim id %q belongs to a claim that is still being released: try again later, or use another id", id)
}

// cancel withdraws the request with that reply, and answers cause unless it was
// answered already. If no other request is for the claim, it leaves the wait queue and
// keeps its place for a while; if it was granted meanwhile, it is released.
func (c *core) cancel(id string, reply chan<- outcome, cause error, now time.Time) {
	if c.unsucceed(id, reply) {
		reply <- outcome{err: cause}
		return
	}
	e := c.entries[id]
	if e == nil {
		return
	}
	if i := slices.Index(e.unreceived, reply); i >= 0 {
		e.unreceived = slices.Delete(e.unreceived, i, i+1)
		if len(e.unreceived) == 0 && !e.received && e.state == held {
			c.keepPlace(e, now)
			c.giveBack(e, nil)
		}
		return
	}
	i := slices.IndexFunc(e.listeners, func(l listener) bool { return l.reply == reply })
	if i < 0 {
		return
	}
	e.listeners = slices.Delete(e.listeners, i, i+1)
	reply <- outcome{err: cause}
	switch {
	case len(e.listeners) > 0:
	case e.state == claiming:
		e.dropped = true
	default:
		c.leave(e, now)
	}
}

// withdraw takes an entry out of the wait queue, unless its slots are being claimed.
func (c *core) withdraw(id string, now time.Time) {
	e := c.entries[id]
	if e == nil || e.state != queued {
		return
	}
	e.answer(outcome{err: problem.New(problem.ClaimCanceled, "claim %q has left the wait queue", id)})
	c.leave(e, now)
}

// timeout ends the wait of the request with that reply, and says what it waited for: what was
// read of it, or what is known if that is nil.
func (c *core) timeout(id string, reply chan<- outcome, read *Reason, now time.Time) {
	if c.unsucceed(id, reply) {
		reply <- outcome{err: c.notReleased(id, now)}
		return
	}
	e := c.entries[id]
	if e == nil {
		return
	}
	i := slices.IndexFunc(e.listeners, func(l listener) bool { return l.reply == reply })
	if i < 0 {
		return
	}
	if err := c.trouble(now); err != nil {
		c.cancel(id, reply, err, now)
		return
	}
	r := c.reason(e)
	if read != nil {
		r = *read
	}
	c.metrics.refused(problem.ClaimTimeout)
	c.cancel(id, reply, problem.New(problem.ClaimTimeout, "timed out after %s: %s", e.listeners[i].wait, r.Text).WithDetail(r), now)
}

// refuseAtOnce refuses the requests that do not wait for an entry, and the entry if it
// has no other requests.
func (c *core) refuseAtOnce(e *entry, err func() error) {
	var waiting []listener
	for _, l := range e.listeners {
		if l.wait > 0 {
			waiting = append(waiting, l)
			continue
		}
		refusal := err()
		c.metrics.refused(problem.CodeOf(refusal))
		l.reply <- outcome{err: refusal}
	}
	e.listeners = waiting
	if len(waiting) == 0 {
		c.deleteWaiter(e)
		c.forget(e)
	}
}

// leave takes a queued entry out of the wait queue.
func (c *core) leave(e *entry, now time.Time) {
	c.keepPlace(e, now)
	c.deleteWaiter(e)
	c.forget(e)
}

// keepPlace keeps the place of an entry that has waited, for a repeated request.
func (c *core) keepPlace(e *entry, now time.Time) {
	if e.order.Since > 0 {
		c.places[e.req.ID] = &place{
			req: e.req, since: e.order.Since, waited: e.waited, reserve: e.reserve, until: now.Add(keepPlace),
		}
	}
}

// deleteWaiter has a waiter's keys deleted, if it may have any.
func (c *core) deleteWaiter(e *entry) {
	if e.inQueue {
		c.drops = append(c.drops, drop{pools: poolNames(e.req.Slots), order: e.order, lease: e.waiterLease})
		e.written, e.inQueue, e.waiterLease = false, false, 0
	}
	c.releaseWaiterKeys(e)
	if e.state == queued {
		c.releaseLease(e)
	}
}

// reserveKeys reserves the keys of an entry's waiter, and those of its slots, for the grant by
// any instance. It reports whether they are.
func (c *core) reserveKeys(e *entry) bool {
	if e.reserved == 0 {
		keys := e.mostKeys()
		lease, ok := c.leases.Acquire(c.leaseDuration(e), keys)
		if !ok {
			return false
		}
		e.lease, e.reserved = lease, keys
	}
	return c.reserveWaiterKeys(e)
}

// releaseLease releases the keys that are reserved for an entry's slots.
func (c *core) releaseLease(e *entry) {
	if e.reserved > 0 {
		c.leases.Release(e.lease, e.reserved)
	}
	e.lease, e.reserved = 0, 0
}

// reserveWaiterKeys reserves the keys of an entry's waiter on a lease, unless they are
// reserved already. It reports whether they are. Waiters have leases of their own with few
// keys on each: where etcd checks rights, a put costs time in proportion to the keys on its
// lease.
func (c *core) reserveWaiterKeys(e *entry) (ok bool) {
	if e.waiterLease == 0 {
		e.waiterLease, ok = c.waiterLeases.Acquire(WaiterTTL, len(e.needs))
		return ok
	}
	return true
}

// releaseWaiterKeys releases the reservation of keys that are gone or move to another lease.
func (c *core) releaseWaiterKeys(e *entry) {
	if e.waiterLease != 0 {
		c.waiterLeases.Release(e.waiterLease, len(e.needs))
		e.waiterLease = 0
	}
}

// releaseDropped releases the key reservation of a waiter that was deleted, or whose claim
// has returned to its place and reserves again.
func (c *core) releaseDropped(d drop) {
	if d.lease != 0 {
		c.waiterLeases.Release(d.lease, len(d.pools))
	}
}

// redrop puts waiters up for deletion again, but for those whose claim has come
// back to its old place meanwhile: they are written again instead.
func (c *core) redrop(drops []drop) {
	for _, d := range drops {
		if e := c.entries[d.order.Claim]; e != nil && e.order == d.order && e.state <= claiming && e.offer == nil {
			e.written, e.inQueue = false, true
			c.releaseDropped(d)
			continue
		}
		c.drops = append(c.drops, d)
	}
}

// forget ends an entry.
func (c *core) forget(e *entry) {
	if c.entries[e.req.ID] == e {
		delete(c.entries, e.req.ID)
	}
	c.unqueue(e)
	c.successors = append(c.successors, e.successors...)
	e.successors = nil
	c.dirty = true
}

// unqueue takes an entry off the queue if it is there.
func (c *core) unqueue(e *entry) {
	if e.state > claiming {
		return
	}
	lists := []*[]*entry{&c.queue, &c.takes}
	if r := c.retentions[e.kind]; r != nil {
		lists = append(lists, &r.local)
	}
	for _, list := range lists {
		if i := slices.Index(*list, e); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

// refuse ends a queued entry with an answer.
func (c *core) refuse(e *entry, err error) {
	c.metrics.refused(problem.CodeOf(err))
	e.answer(outcome{err: err, shown: c.specsShown(e.needs)})
	c.deleteWaiter(e)
	c.forget(e)
}

// specsShown is the revision up to which the specs of some pools are known.
func (c *core) specsShown(needs []Need) int64 {
	rev := c.seen
	for _, n := range needs {
		rev = min(rev, c.view.pool(n.Pool).specAt)
	}
	return rev
}

// stop refuses what waits and what comes.
func (c *core) stop() {
	c.stopping = true
	for _, e := range c.sorted() {
		if e.state == queued {
			c.refuse(e, errStopped)
		} else if e.state == claiming {
			e.answer(outcome{err: errStopped})
			e.dropped = true
		}
	}
	c.returnAllIdle(func(*idleSlots) bool { return true })
}

// catchUpTimeout bounds what is done to find out whether the view is too old for
// a refusal: a watch that is whole delivers within a fraction of it.
const catchUpTimeout = 5 * time.Second

// outdated reports whether a refusal may come from a view that is older than what the client knows: the specs, or what a list has shown of an id
// or of keys that can't be read. It has then waited until the view shows that, so the request
// is worth repeating.
// A client that creates a pool on one host may claim from it on another at once.
func (e *Engine) outdated(ctx context.Context, o outcome, pools ...string) bool {
	byList := false
	switch problem.CodeOf(o.err) {
	case problem.PoolNotFound, problem.ExceedsLimit:
	case problem.IDInUse, problem.CorruptValue:
		byList = true
	default:
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	rev, now, err := e.specsRevision(ctx, pools)
	if byList {
		rev = now
	}
	return err == nil && rev > o.shown && e.WaitRevision(ctx, rev) == nil
}

// specsRevision asks etcd when the specs of some pools were put last, 0 if one of them is not
// there, and for its present revision.
func (e *Engine) specsRevision(ctx context.Context, pools []string) (specs, now int64, err error) {
	t := &pb.TxnRequest{}
	for _, name := range pools {
		t.Success = append(t.Success, store.Get(e.cfg.Keys.Spec(name)))
	}
	resp, err := e.cfg.Backend.Txn(ctx, t)
	if err != nil {
		return 0, 0, err
	}
	for _, r := range resp.Responses {
		kvs := r.GetResponseRange().Kvs
		if len(kvs) == 0 {
			return 0, resp.Header.Revision, nil
		}
		specs = max(specs, kvs[0].ModRevision)
	}
	return specs, resp.Header.Revision, nil
}
