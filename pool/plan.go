package pool

import (
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool/admit"
)

// plan decides what the next batch does, in numbered steps over one state of
// the view. It changes only what the verdicts on waiters change.
func (c *core) plan(now time.Time) *batch {
	c.refresh(now)
	c.checkRoles()
	if c.full(now) {
		return c.planFreeing(now)
	}
	c.takeNotices(now)
	c.deferSole(now)
	b := c.newBuilder(c.shape(), now)
	if c.alone == nil {
		// 1. Release. Half of the transaction is kept for waiters, which take the slots in
		// place.
		for _, e := range c.releases {
			if !b.release(e) || b.b.shape == wide {
				break
			}
			if b.b.shape == flat && len(c.queue) > 0 {
				b.kept = maxOps / 2
			}
		}
		if b.b.shape == wide {
			return c.sent(b.finish())
		}
		b.kept = 0
		// 2. Delete waiters that were canceled, notices that were acted on, and revocations
		// that are done. A waiter goes before the notice of its grant.
		for _, d := range c.drops {
			if !b.drop(d) {
				break
			}
		}
		if len(b.b.drops) == len(c.drops) {
			c.acks = slices.DeleteFunc(c.acks, func(n *notice) bool { return c.view.notices[n.key] != n })
			for _, n := range c.acks {
				if !b.ack(n) {
					break
				}
			}
		}
		for _, key := range c.revokes {
			if !b.revocation(key) {
				break
			}
		}
	}

	// 3. Show that the dispatchers of this instance live, take over claims of other instances,
	// and withdraw what was not confirmed.
	c.beats(b, now)
	c.takeOvers(b)
	c.rewriteRegrants(b, now)
	c.keepIdle(b)
	c.withdrawals(b, now)
	if b.b.shape == wide {
		c.alone = nil
		return c.sent(b.finish())
	}

	// 4. Grant the claims that fit, in order.
	if c.dirty {
		c.dirty = false
		if c.admit(b, now) {
			c.dirty = true
		}
	}
	c.alone = b.next

	// 5. Write the waiters that do not fit, and see to the dispatchers of their pools.
	if b.b.shape != wide {
		c.writeWaiters(b)
		c.duties(b, now)
	}
	if c.delays(b, now) {
		return nil
	}
	return c.sent(b.finish())
}

// deferSole takes those sole entries out of the wait queue for which another claim waits
// there before them. They return to their place when that claim is gone. Requests that do
// not wait are refused.
func (c *core) deferSole(now time.Time) {
	if len(c.view.byWork) == 0 {
		return
	}
	for _, e := range slices.Clone(c.queue) {
		if !c.defers(e) {
			continue
		}
		e.deferred = true
		e.req.Place.Give()
		if e.order.Since != 0 {
			c.deleteWaiter(e)
			e.order.Since, e.unjudged = 0, true
		}
		if e.hurried() {
			c.refuseAtOnce(e, func() error { return c.noCapacity(e) })
		}
	}
}

// defers reports whether another claim waits for what an entry is for, before it or while
// the entry is not in the wait queue. A waiter whose host does not take its slots does not
// count.
func (c *core) defers(e *entry) bool {
	if !e.req.Sole || e.state != queued {
		return false
	}
	return slices.ContainsFunc(c.view.byWork[workOf(&e.req.Holder)], func(w *waiter) bool {
		return w.order.Claim != e.req.ID && !w.by.yielded && (!e.inQueue || w.order.Compare(e.order) < 0)
	})
}

// delays reports whether a batch should not be sent yet, because something that comes in a
// moment would have to wait for its response, and can carry it: a release can carry waiters,
// and whatever follows can carry the deletion of a notice.
func (c *core) delays(b *builder, now time.Time) bool {
	puts, acks := len(b.b.puts), len(b.b.acks)
	roles := 0
	for _, o := range b.b.duties {
		if o.duty != beat && o.duty != replace {
			roles++
		}
	}
	delay := waiterDelay
	switch {
	case puts+acks+roles == 0 || b.things() > puts+acks+roles || acks > 1:
		c.waitersAt = time.Time{}
		return false
	case puts+roles == 0:
		delay = ackDelay
	}
	if at := now.Add(delay); c.waitersAt.IsZero() || at.Before(c.waitersAt) {
		c.waitersAt = at
	}
	return now.Before(c.waitersAt)
}

// planFreeing gives back one claim, without the guard: one that failed would
// hold up the others.
func (c *core) planFreeing(now time.Time) *batch {
	c.stayAll(&c.releases, c.trouble(now), now, anyCombined)
	if len(c.releases) == 0 {
		return nil
	}
	b := c.newBuilder(freeing, now)
	b.release(c.releases[0])
	return c.sent(b.finish())
}

// shape of the next batch: flat, unless one met a conflict lately.
func (c *core) shape() shape {
	if c.nested > 0 {
		return nested
	}
	return flat
}

// full reports whether etcd has recently reported that it is full.
func (c *core) full(now time.Time) bool { return now.Before(c.fullUntil) }

// sent notes what a batch is about to do, before it is sent.
func (c *core) sent(b *batch) *batch {
	if b == nil {
		return nil
	}
	c.waitersAt = time.Time{} // the next plan sees who waits still
	c.view.sent = b.sent
	c.releases = c.releases[len(b.releases):]
	c.drops = c.drops[len(b.drops):]
	c.acks = c.acks[len(b.acks):]
	c.revokes = c.revokes[len(b.revokes):]
	for _, g := range b.releases {
		g.e.former = g.e.former || !g.kept
	}
	for _, n := range b.withdrawn {
		n.seen = b.at // it is tried again later
	}
	for _, g := range b.grants {
		g.e.state = claiming
		g.e.slots = g.slots
	}
	for _, l := range b.puts {
		l.e.inQueue = true
	}
	return b
}

// candidate is a waiter, of this instance or of another.
type candidate struct {
	order Order
	e     *entry  // ours, or
	w     *waiter // another instance's
}

// refusal is an entry that is to be refused, and why.
type refusal struct {
	e   *entry
	err error
}

// admit runs [admit.Admit] over the candidates and adds its grants to the batch. It reports
// whether to try again although nothing happens.
func (c *core) admit(b *builder, now time.Time) (again bool) {
	capacities := c.view.capacities()
	for p, o := range b.place.pools {
		capacities[p.number].Used += o.used // what this batch gives back
	}
	if c.hopeless(capacities) {
		return false
	}
	waiters := c.candidates()
	waiting := c.scratch.waiting[:0]
	for _, cd := range waiters {
		waiting = append(waiting, cd.waiting())
		b.place.othersWait = b.place.othersWait || cd.w != nil
	}
	d := admit.Admit(capacities, waiting)
	c.scratch.waiting = waiting

	// Waiters that other instances grant take their place among the groups as well:
	// dispatchers that see the same then pick different slots.
	passed := map[*entry]bool{}
	idle := map[*poolView]bool{} // pools with a claim that fits and is not granted
	var refused []refusal
	stop := false
	for _, i := range d.Served() {
		cd := waiters[i]
		if !waiting[i].Mine {
			b.place.place(cd.needs(), hash(cd.host(c)))
			continue
		}
		if cd.e != nil {
			passed[cd.e] = true
		}
		if stop || c.alone != nil && !cd.is(c.alone) {
			again = true
			continue
		}
		e := cd.e
		if e == nil {
			if cd.w.retryAt > c.shownOf(cd.w.needs) || b.unacknowledged(cd.w) >= maxUnacknowledged {
				b.place.place(cd.w.needs, hash(cd.w.value.Holder.Host))
				continue
			}
			e = c.proxy(cd.w)
		} else {
			if e.retryAt > c.shown(e) {
				continue
			}
			switch err := c.elsewhere(e.req.ID); {
			case err == nil:
			case c.inUse(e.req.ID) == nil:
				e.succeeds = true // slots that it was granted before are being given back
				continue
			default:
				refused = append(refused, refusal{e, err})
				continue
			}
		}
		switch b.grant(e) {
		case overrun:
			stop, again = true, true
		case tooWide:
			again = true
			if b.next == nil {
				b.next = e
			}
		case unfit, unleased:
			idle[c.view.pool(e.needs[0].Pool)] = true
		case taken, unplaced:
		}
		stop = stop || b.b.shape == wide
	}
	c.noteIdle(idle, now)
	c.passKept(waiters, d.Fits, now)
	// The verdicts come last: they may change the wait queue.
	var judged []*entry
	for _, e := range c.queue {
		if e.state == queued && !passed[e] && !c.defers(e) {
			judged = append(judged, e)
		}
	}
	for _, r := range refused {
		c.refuse(r.e, r.err)
	}
	c.judge(judged, now)
	return again
}

// passKept has waiters passed that other dispatchers have not granted for [idleGrants],
// though their slots are kept for them here: they may be unable to.
func (c *core) passKept(waiters []candidate, fits []int, now time.Time) {
	for i, cd := range waiters {
		_, kept := slices.BinarySearch(fits, i)
		switch {
		case cd.w == nil:
		case !kept:
			cd.w.keptSince = time.Time{}
		case cd.w.keptSince.IsZero():
			cd.w.keptSince = now
		case now.Sub(cd.w.keptSince) >= idleGrants:
			cd.w.unkept = cd.w.rev
		}
	}
}

// noteIdle notes in which pools a claim that fits was not granted.
func (c *core) noteIdle(idle map[*poolView]bool, now time.Time) {
	for name, r := range c.roles {
		switch {
		case !idle[c.view.pool(name)]:
			r.idleSince = time.Time{}
		case r.idleSince.IsZero():
			r.idleSince = now
		}
	}
}

// hopeless reports, at little cost, that no claim can be granted and no entry has a verdict to
// come: the free slots would not be enough for one of them even if it were first.
func (c *core) hopeless(capacities []admit.Capacity) bool {
	if c.judged != c.view.specs {
		c.judged = c.view.specs
		return false
	}
	free := admit.FreeSlots(capacities)
	for _, e := range c.queue {
		if e.state == queued && (e.unjudged || admit.Fits(free, e.waiting) && c.entryRoute(e) <= routeDispatch) && !c.defers(e) {
			return false
		}
	}
	return !c.dispatching() || !slices.ContainsFunc(c.view.waiters, func(w *waiter) bool { return admit.Fits(free, w.waiting) && !c.ours(w) })
}

// candidates returns what this instance decides about: the entries that it may grant, and
// if it is a dispatcher the wait queue with all entries, which may not be in etcd yet. The
// result is valid until the next call.
func (c *core) candidates() []candidate {
	waiters := c.all()
	dispatching := c.dispatching()
	return slices.DeleteFunc(waiters, func(cd candidate) bool {
		if cd.e == nil {
			return !dispatching
		}
		return !dispatching && !cd.e.waiting.Mine
	})
}

// all returns the wait queue: the waiters in etcd and the entries of this instance, which
// may not be in etcd yet. The result is valid until the next call.
func (c *core) all() []candidate {
	own := c.scratch.own[:0]
	for _, e := range c.queue {
		if e.state != queued || c.defers(e) {
			continue
		}
		o := e.order
		if o.Since == 0 {
			o.Since = e.since(c.seen)
		}
		w := e.waiting
		w.Mine, w.Reserve, w.Yielded = c.entryRoute(e) <= routeDispatch, e.writtenReserve, !c.usable(e) || !c.ready(e)
		own = append(own, candidate{order: o, e: e})
	}
	byOrder := func(a, b candidate) int { return a.order.Compare(b.order) }
	if !slices.IsSortedFunc(own, byOrder) {
		slices.SortFunc(own, byOrder)
	}
	waiters := c.scratch.candidates[:0]
	for _, w := range c.view.waiters {
		if c.ours(w) {
			continue // an entry represents it, or it is about to be deleted
		}
		for len(own) > 0 && own[0].order.Compare(w.order) < 0 {
			waiters, own = append(waiters, own[0]), own[1:]
		}
		w.waiting.Mine, w.waiting.Yielded = c.grants(w), c.passed(w)
		waiters = append(waiters, candidate{order: w.order, w: w})
	}
	waiters = append(waiters, own...)
	c.scratch.own, c.scratch.candidates = own[:0], waiters
	return waiters
}

// waiting is what [admit.Admit] needs to know of a candidate.
func (cd candidate) waiting() *admit.Waiter {
	if cd.e != nil {
		return cd.e.waiting
	}
	return cd.w.waiting
}

func (cd candidate) needs() []Need {
	if cd.e != nil {
		return cd.e.needs
	}
	return cd.w.needs
}

func (cd candidate) host(c *core) string {
	if cd.e != nil {
		return c.host
	}
	return cd.w.value.Holder.Host
}

// is reports whether an entry is the candidate, or represents it.
func (cd candidate) is(e *entry) bool { return cd.e == e || cd.w != nil && cd.order == e.order }

// ours reports whether a waiter is one of this instance.
func (c *core) ours(w *waiter) bool {
	return w.value.Holder.Host == c.host && w.value.Holder.Instance == c.instance
}

// noCapacity refuses an entry that may not go now.
func (c *core) noCapacity(e *entry) error {
	r := c.reason(e)
	return problem.New(problem.NoCapacity, "%s", r.Text).WithDetail(r)
}

// impossible returns why an entry is refused, however long it would wait. More slots than the limit
// of a pool are refused only to a claim that has not waited since before the limit was set: a limit
// that is lowered below what a claim waits for may be raised again. The claim of a step instance,
// or one behind another for the same thing, is not new.
func (c *core) impossible(e *entry) error {
	for _, n := range e.needs {
		p := c.view.pool(n.Pool)
		switch {
		case p.corrupt > 0:
			return c.unreadable(p)
		case !p.known():
			return NoSuchPool(n.Pool)
		}
	}
	if e.deferred || e.req.Since != 0 {
		return nil
	}
	for _, n := range e.needs {
		p := c.view.pool(n.Pool)
		if err := p.spec.Exceeded(n); err != nil && !e.waited.before(p.limitSince) {
			return err
		}
	}
	return nil
}

// exceeded refuses an entry that needs more slots of a pool than its limit.
func (c *core) exceeded(e *entry) error {
	for _, n := range e.needs {
		if err := c.view.pool(n.Pool).spec.Exceeded(n); err != nil {
			return err
		}
	}
	return nil
}

// exceedsAny reports whether a claim needs more slots of a pool than its limit: it waits until the
// limit is raised, and keeps no slots from others.
func (v *view) exceedsAny(needs []Need) bool {
	return slices.ContainsFunc(needs, func(n Need) bool { return v.pool(n.Pool).spec.exceedsLimit(n.N) })
}

// unreadable names the key that keeps a pool from granting.
func (c *core) unreadable(p *poolView) error {
	for _, key := range sortedKeys(c.view.corrupt) {
		if k, err := c.view.keys.ParsePoolKey(key); err == nil && k.Pool == p.name {
			return problem.New(problem.CorruptValue, "pool '%s' grants nothing: %w", p.name, c.view.corrupt[key])
		}
	}
	return problem.New(problem.CorruptValue, "pool '%s' grants nothing: one of its keys can't be read", p.name)
}
