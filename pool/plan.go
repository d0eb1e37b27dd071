package pool

import (
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// plan decides what the next batch does, in numbered steps over one state of
// the view. It changes only what the verdicts on waiters change.
func (c *core) plan(now time.Time) *batch {
	if c.full(now) {
		return c.planFreeing(now)
	}
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
		// 2. Delete waiters that were canceled, and revocations that are done.
		for _, d := range c.drops {
			if !b.drop(d) {
				break
			}
		}
		for _, key := range c.revokes {
			if !b.revocation(key) {
				break
			}
		}
	}

	// 3. Take over claims of other instances.
	if c.fresh(now) {
		c.takeOvers(b)
	}
	if b.b.shape == wide {
		c.alone = nil
		return c.sent(b.finish())
	}

	// 4. Grant the claims that fit, in order.
	if c.dirty && c.fresh(now) {
		c.dirty = false
		if c.admit(b, now) {
			c.dirty = true
		}
	}
	c.alone = b.next

	// 5. Write the waiters that do not fit, and probe silent instances that keep slots from ours.
	if b.b.shape != wide {
		c.answerProbes(now)
		c.writeWaiters(b)
		c.probe(b, now)
	}
	if c.delayWaiters(b, now) {
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
		e.deferred, e.due = true, false
		e.req.Place.Give()
		if e.order.Since != 0 {
			c.deleteWaiter(e)
			e.order.Since, e.unjudged = 0, true
		}
		if c.fresh(now) && slices.ContainsFunc(e.listeners, func(l listener) bool { return l.wait <= 0 }) {
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

// delayWaiters reports whether a batch that only writes waiters should not be sent yet: a
// release that comes in a moment would have to wait for its response, and can carry it.
func (c *core) delayWaiters(b *builder, now time.Time) bool {
	if len(b.b.puts) == 0 || b.things() > len(b.b.puts) {
		c.waitersAt = time.Time{}
		return false
	}
	if c.waitersAt.IsZero() {
		c.waitersAt = now.Add(waiterDelay)
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
	c.revokes = c.revokes[len(b.revokes):]
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

// admit runs [Admit] over the candidates and adds its grants to the batch. It reports
// whether to try again although nothing happens.
func (c *core) admit(b *builder, now time.Time) (again bool) {
	capacities := c.view.capacities()
	for p, o := range b.place.pools {
		capacities[p.number].Used += o.used // what this batch gives back
	}
	if c.hopeless(capacities, now) {
		for _, e := range c.queue {
			e.due = false // others have taken those slots
		}
		return false
	}
	c.watch(now)
	waiters := c.candidates()
	waiting := c.scratch.waiting[:0]
	for _, cd := range waiters {
		if cd.e != nil {
			cd.e.due = false
			cd.e.waiting.Reserve, cd.e.waiting.Exclusive = cd.e.writtenReserve, cd.e.writtenExclusive
			waiting = append(waiting, cd.e.waiting)
		} else {
			b.place.othersWait = true
			waiting = append(waiting, cd.w.waiting)
		}
	}
	d := Admit(capacities, waiting)
	for _, e := range c.queue {
		if c.defers(e) { // it would wait behind them if it were not for one of them
			waiting = append(waiting, e.waiting)
		}
	}
	c.scratch.waiting = waiting
	c.noteBlockers(waiters, d.blockers(capacities, waiting), now)

	// Waiters of others take their place among the groups as well: hosts that
	// see the same then pick different slots.
	passed := map[*entry]bool{}
	var refused []refusal
	stop := false
	for _, i := range merge(d.Grants, d.Fits) {
		cd := waiters[i]
		if cd.w != nil {
			b.place.place(needsOf(cd.w.value.Pools), hash(cd.w.value.Holder.Host))
			continue
		}
		passed[cd.e], cd.e.due = true, true
		if stop || cd.e.retryAt > c.view.rev || c.alone != nil && c.alone != cd.e {
			again = again || stop || c.alone != nil
			continue
		}
		if err := c.elsewhere(cd.e.req.ID); err != nil {
			refused = append(refused, refusal{cd.e, err})
			continue
		}
		if !b.takePlace(cd.e) {
			continue // its holder could not use its slots now
		}
		switch b.grant(cd.e) {
		case overrun:
			b.returnPlace(cd.e, false)
			stop, again = true, true
		case tooWide:
			b.returnPlace(cd.e, false)
			again = true
			if b.next == nil {
				b.next = cd.e
			}
		case unfit:
			b.returnPlace(cd.e, true)
		case taken:
		}
		stop = stop || b.b.shape == wide
	}
	// The verdicts come last: they may change the wait queue.
	var judged []*entry
	for _, cd := range waiters {
		if cd.e != nil && !passed[cd.e] {
			judged = append(judged, cd.e)
		}
	}
	for _, r := range refused {
		c.refuse(r.e, r.err)
	}
	for _, e := range judged {
		c.verdict(e, now)
	}
	return again
}

// hopeless reports, at little cost, that no entry of this instance can be granted or has
// a verdict to come: the free slots would not be enough for one of them even if it were
// first.
func (c *core) hopeless(capacities []Capacity, now time.Time) bool {
	if c.judged != c.view.specs {
		c.judged = c.view.specs
		return false
	}
	if len(c.view.waiters) > 0 && now.Sub(c.watched) >= tickEvery {
		return false // another instance may come to yield
	}
	free := freeSlots(capacities)
	for _, e := range c.queue {
		if e.state == queued && (e.unjudged || fits(free, e.waiting)) && !c.defers(e) {
			return false
		}
	}
	return true
}

// candidates returns the wait queue: the waiters in etcd and the entries of this instance,
// which may not be in etcd yet. The result is valid until the next call.
func (c *core) candidates() []candidate {
	own := c.scratch.own[:0]
	for _, e := range c.queue {
		if e.state != queued || c.defers(e) {
			continue
		}
		o := e.order
		if o.Since == 0 {
			o.Since = e.since(c.view.rev)
		}
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
		w.waiting.Yielded = w.by.yielded
		waiters = append(waiters, candidate{order: w.order, w: w})
	}
	waiters = append(waiters, own...)
	c.scratch.own, c.scratch.candidates = own[:0], waiters
	return waiters
}

// ours reports whether a waiter is one of this instance.
func (c *core) ours(w *waiter) bool {
	return w.value.Holder.Host == c.host && w.value.Holder.Instance == c.instance
}

// merge returns two sorted lists as one.
func merge(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return all
}

// verdict is what becomes of an entry that may not go now: it is refused, or it
// gets its place in the wait queue.
func (c *core) verdict(e *entry, now time.Time) {
	if err := c.impossible(e); err != nil {
		c.refuse(e, err)
		return
	}
	if e.unjudged {
		e.unjudged = false
		c.refuseAtOnce(e, func() error { return c.noCapacity(e) })
	}
	e.req.Place.Give() // it has to wait
	if e.order.Since == 0 && len(e.listeners) > 0 {
		e.order.Since = e.since(c.view.rev)
		e.waited = now
		e.reserve = e.reserve || c.reserveAfter(e) == 0
		if !e.deferred && c.broker.wants(e) {
			c.publish(ClaimWaiting, e, c.reason(e).Text)
		}
	}
}

// noCapacity refuses an entry that may not go now.
func (c *core) noCapacity(e *entry) error {
	r := c.reason(e)
	return problem.New(problem.NoCapacity, "%s", r.Text).WithDetail(r)
}

// impossible returns why an entry can never be granted as things are.
func (c *core) impossible(e *entry) error {
	for _, n := range e.needs {
		p := c.view.pool(n.Pool)
		switch {
		case p.corrupt > 0:
			return c.unreadable(p)
		case !p.known():
			return noSuchPool(n.Pool)
		}
		if err := p.spec.exceeded(n); err != nil {
			return err
		}
	}
	return nil
}

// exceeded refuses what a pool can never give while its limit is what it is.
func (s Spec) exceeded(n Need) error {
	if s.Limit <= 0 || n.N <= s.Limit {
		return nil
	}
	err := problem.New(problem.ExceedsLimit, "pool '%s' can never grant %d slots: its limit is %d", n.Pool, n.N, s.Limit)
	err.Field = poolField(n.Pool)
	return err
}

// poolField is the field of what is asked of a pool.
func poolField(name string) string { return "pools." + name }

// unreadable names the key that keeps a pool from granting.
func (c *core) unreadable(p *poolView) error {
	for _, key := range sortedKeys(c.view.corrupt) {
		if k, err := c.view.keys.ParsePoolKey(key); err == nil && k.Pool == p.name {
			return problem.New(problem.CorruptValue, "pool '%s' grants nothing: %w", p.name, c.view.corrupt[key])
		}
	}
	return problem.New(problem.CorruptValue, "pool '%s' grants nothing: one of its keys can't be read", p.name)
}

// writeWaiters writes the waiters that are not in etcd yet, and those that reserve from
// now on.
func (c *core) writeWaiters(b *builder) {
	if c.waiterLeases == nil {
		return
	}
	for _, e := range c.queue {
		if e.exclusive && e.order.Since == 0 && !c.defers(e) {
			e.order.Since = e.since(c.view.rev) // it fits, and yet must be seen
		}
		if e.state != queued || e.order.Since == 0 || b.granted[e] || e.unwritable {
			continue
		}
		if e.written && e.reserve == e.writtenReserve && e.exclusive == e.writtenExclusive {
			continue
		}
		if !c.reserveWaiterKeys(e) || !b.waiter(e) {
			return
		}
	}
}
