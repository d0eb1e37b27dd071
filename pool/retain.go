package pool

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// A pool may have its slots retained: see [Spec.Retain]. An instance grants the slots of a claim
// that was released to its next claim of the same slots, without a write: a regrant. Etcd shows
// the new holder when it has held them for as long as they may be retained. While no claim of the
// instance wants them, the slots are idle, for no longer than that.
//
// A regrant is safe because only this instance writes slot keys on its leases, except for an operator
// who revokes by force. It needs no compare. Instead, the lease must be valid, the specs must be those
// that the slots were taken under, and what is known of etcd must be recent. Only claims without
// waiters in etcd are regranted: a dispatcher could grant the others at the same time.
//
// Claims that can be granted so wait on this instance alone at first. Waiters in etcd that find
// no slots have their dispatcher recall what is retained: see [recall].

// newsWithin is how recently etcd must have shown the specs, recalls and revocations that a
// regrant depends on. What an operator changes counts for regrants within that time.
const newsWithin = time.Second

// turnPart is the part of the time to retain within which slots of a kind must have been
// released lately for a claim to wait for the next ones on this instance alone.
const turnPart = 4

// keepPart divides the time to retain: that part of it passes before an urgent recall is put again
// because less is wanted.
const keepPart = 16

// retention is what an instance does with slots of one kind: of the same pools, as many of each.
type retention struct {
	idle []*idleSlots // released last, the last one first to be granted
	// local are the claims that wait for such slots on this instance alone, in order.
	local []*entry
	// released is when slots of the kind were last released here, and returned how many claims
	// have given theirs back because of a recall since the last one ended.
	released time.Time
	returned int
}

// kindOf names the kind of what a claim needs.
func kindOf(needs []Need) string {
	b := make([]byte, 0, 64)
	for _, n := range needs {
		b = append(append(b, n.Pool...), ':')
		b = append(strconv.AppendInt(b, int64(n.N), 10), ' ')
	}
	return string(b)
}

// retention returns that of a kind.
func (c *core) retention(kind string) *retention {
	r := c.retentions[kind]
	if r == nil {
		r = &retention{}
		c.retentions[kind] = r
	}
	return r
}

// retains returns for how long slots of some pools may be retained: the shortest time of theirs,
// 0 if one of them retains nothing or grants nothing.
func (c *core) retains(needs []Need) time.Duration {
	shortest := MaxRetain
	for _, n := range needs {
		p := c.view.pool(n.Pool)
		if !p.grants() {
			return 0
		}
		shortest = min(shortest, p.spec.Retain)
	}
	return shortest
}

// release gives a held claim back, and answers reply when that is done: its keys are gone, or its
// slots are retained. A claim that ended before is left alone, though another claim may have its
// id.
func (c *core) release(cl *Claim, reply chan<- error, now time.Time) {
	e := c.entries[cl.ID]
	if e == nil || e.claim != cl {
		reply <- nil // a release that is repeated is done
		return
	}
	e.waiters = append(e.waiters, reply)
	if e.state == held && !c.retain(e, now) {
		c.giveBack(e, nil)
	}
}

// retain keeps the slots of a claim that is released for the next one of the same kind, which may
// wait already. It reports false if they are to be given back.
func (c *core) retain(e *entry, now time.Time) bool {
	within := c.retains(e.needs)
	if within == 0 {
		return false
	}
	r := c.retention(e.kind)
	r.released = now
	if len(e.slots) > wideKeys || e.former || e.rewriting || e.overdue() || e.combined != nil || !e.revoked.IsZero() || e.claim.Err() != nil || e.req.Bridge || len(e.req.Extra.Leased) > 0 ||
		!c.mayRetain(&e.holding, e.needs, now) {
		return false
	}
	if _, more := e.fence.Next(); !more {
		return false
	}
	return c.passOn(e, now)
}

// passOn passes the slots of a claim that has ended on to the next claim of the same kind that waits
// on this instance alone, or that came a moment ago and would be granted by the next write. If there
// is none, they are idle. It reports false if they are to be given back.
func (c *core) passOn(e *entry, now time.Time) bool {
	r, h := c.retention(e.kind), e.shownHolding()
	var first *entry
	if len(r.local) == 0 {
		first = c.newcomer(e.kind, e.needs)
	} else if first = r.local[0]; c.recalled(e.needs, h.lease, first.req.Priority) {
		r.returned++
		return false
	}
	if first != nil && !c.recalled(e.needs, h.lease, first.req.Priority) {
		if !c.prepare(first, &h, now) {
			return false
		}
		c.retire(e)
		c.regrant(first, h, nil, now)
		c.fast = true
		return true
	}
	next := c.keeper(e.kind, &h, nil)
	if next != nil && !c.recalled(e.needs, h.lease, next.req.Priority) {
		c.dirty = true // the next batch grants them to it
	} else if c.isRecalled(e.needs) || c.ownShort(e.needs) {
		return false
	}
	if !c.journaled(&h, nil) {
		return false
	}
	c.retire(e)
	c.addIdle(&idleSlots{holding: h, needs: e.needs, since: now})
	c.fast = next == nil
	return true
}

// ownShort reports whether a claim of this instance that can't be granted without a write waits
// for one of some pools.
func (c *core) ownShort(needs []Need) bool {
	return slices.ContainsFunc(c.queue, func(e *entry) bool {
		return e.state == queued && !c.view.exceedsAny(e.needs) &&
			slices.ContainsFunc(needs, func(n Need) bool { return e.wants(c.view.pool(n.Pool)) })
	})
}

// reuse grants a claim slots that this instance retains, or has it wait for the next ones that
// are released here. It reports false if the claim is to be granted in the ordinary way.
func (c *core) reuse(e *entry, now time.Time) bool {
	within := c.retains(e.needs)
	if within == 0 || !c.regrantable(e) || c.view.exceedsAny(e.needs) {
		return false
	}
	r := c.retentions[e.kind]
	if r == nil {
		return false
	}
	if c.labels[e.req.ID] > 0 {
		at := slices.IndexFunc(r.idle, func(i *idleSlots) bool { return i.shown.id == e.req.ID })
		if c.labels[e.req.ID] > 1 || at < 0 || len(r.local) > 0 {
			return false // else etcd would show two claims of the id
		}
		r.idle[at], r.idle[len(r.idle)-1] = r.idle[len(r.idle)-1], r.idle[at]
	}
	returned := false
	for len(r.local) == 0 && len(r.idle) > 0 {
		last := len(r.idle) - 1
		i := r.idle[last]
		if !c.mayRetain(&i.holding, i.needs, now) || !c.prepare(e, &i.holding, now) {
			c.returnIdle(i)
			returned = true
			continue
		}
		c.dropIdle(i)
		c.entries[e.req.ID] = e
		c.regrant(e, i.holding, nil, now)
		c.fast = !returned
		return true
	}
	if e.hurried() || len(r.local) == 0 && !c.isShort(e.needs) {
		return false
	}
	if (!c.isShort(e.needs) || !r.turns(within, now)) && c.written(e.kind) < r.quota() {
		return false
	}
	at, _ := slices.BinarySearchFunc(r.local, e.req.Priority, func(o *entry, priority int) int {
		if o.req.Priority < priority {
			return 1
		}
		return -1 // behind those of its own priority
	})
	e.waits(now)
	e.waitsSince(now, c.seen)
	r.local = slices.Insert(r.local, at, e)
	c.entries[e.req.ID] = e
	c.wakeAt(now.Add(within / turnPart))
	c.fast = !returned
	return true
}

// mustAsk reports whether slots are or were granted without a write, so that the instance must hear
// of etcd more often than a silent watch is asked.
func (c *core) mustAsk(now time.Time) bool {
	if len(c.idle)+len(c.regrants) > 0 {
		return true
	}
	for _, r := range c.retentions {
		if now.Sub(r.released) < oftenFor {
			return true
		}
	}
	return false
}

// turns reports whether slots of a kind were released here a moment ago, and so may be again in
// another one.
func (r *retention) turns(within time.Duration, now time.Time) bool {
	return now.Sub(r.released) < within/turnPart
}

// isShort reports whether pools are known to have too few free slots, or claims that wait for them.
func (c *core) isShort(needs []Need) bool {
	return slices.ContainsFunc(needs, func(n Need) bool {
		p := c.view.pool(n.Pool)
		return !p.unseen && p.queued.rev > 0 || !p.stale && !p.has(n.N)
	})
}

// quota is how many claims of a kind are granted in the ordinary way while others wait on this instance
// alone, if no slots of the kind are passed on here, or if slots may be free elsewhere. These claims
// bring slots to the instance, which the others get next.
func (r *retention) quota() int { return max(2, len(r.local)/8) }

// written counts the claims of a kind that wait in etcd, or are about to.
func (c *core) written(kind string) (n int) {
	for _, e := range c.queue {
		if e.kind == kind && e.state == queued {
			n++
		}
	}
	return n
}

// wakeAt has what is retained be looked after at a time, or before.
func (c *core) wakeAt(at time.Time) {
	if c.retainAt.IsZero() || at.Before(c.retainAt) {
		c.retainAt = at
	}
}

// tendRetained gives back slots that were idle for long enough, has claims that have waited on this
// instance alone for too long wait in etcd, and has regrants written that are not shown there.
func (c *core) tendRetained(now time.Time) {
	if c.retainAt.IsZero() || now.Before(c.retainAt) {
		return
	}
	c.retainAt = time.Time{}
	c.returnAllIdle(func(i *idleSlots) bool {
		ends := i.since.Add(c.retains(i.needs))
		if now.Before(ends) && c.mayRetain(&i.holding, i.needs, now) {
			c.wakeAt(ends)
			return false
		}
		return true
	})
	for _, kind := range sortedKeys(c.retentions) {
		r := c.retentions[kind]
		c.tendLocal(r, kind, now)
		if len(r.local)+len(r.idle) == 0 && now.Sub(r.released) > MaxRetain {
			delete(c.retentions, kind)
		}
	}
	for _, e := range c.regrants {
		if due := e.regranted.Add(c.retains(e.needs) * 3 / 4); now.Before(due) {
			c.wakeAt(due)
		} else {
			c.rewrites = true
		}
	}
	c.slow = true
}

// tendLocal has claims that wait on this instance alone wait in etcd: those that have waited for as
// long as slots may be retained, and some if no slots turn here.
func (c *core) tendLocal(r *retention, kind string, now time.Time) {
	for _, e := range slices.Clone(r.local) {
		if within := c.retains(e.needs); now.Sub(e.arrived) >= within || c.lag(c.revokedRev, now) >= newsWithin {
			c.unretain(e, now)
		}
	}
	for len(r.local) > 0 {
		within := c.retains(r.local[0].needs)
		if r.turns(within, now) || c.written(kind) >= r.quota() {
			c.wakeAt(now.Add(within / turnPart))
			return
		}
		c.unretain(r.local[0], now)
	}
}

// unretain has a claim that waits on this instance alone be granted in the ordinary way.
func (c *core) unretain(e *entry, now time.Time) {
	r := c.retentions[e.kind]
	r.local = slices.DeleteFunc(r.local, func(o *entry) bool { return o == e })
	delete(c.entries, e.req.ID)
	c.enter(e, now)
}

// recall is the key by which the dispatcher of a pool recalls what is retained, while waiters find
// no free slots. Idle slots are given back at once. Slots that are released go on to claims that
// wait on their own instance, unless the recall is urgent or of a higher priority.
type recall struct {
	mark
	value recallValue
	// changed is when the key came to be what it was last acted on, which was put at revision noted.
	changed time.Time
	noted   int64
	// surplus is the number of slots that each lease of the recall has to give back: it may be negative.
	// Leases of other instances have no slots here.
	surplus map[store.LeaseID]int
}

// put takes the state of the key at a revision.
func (r *recall) put(kv *mvccpb.KeyValue, at int64) error {
	v := recallValue{}
	err := store.Decode(string(kv.Key), kv.Value, &v)
	if r.know(kv.ModRevision, at) {
		if err != nil {
			v = recallValue{Urgent: true} // what can't be read counts
		}
		r.value = v
	}
	return err
}

// lacks reports whether the key is to be put with a new value: at once if that recalls more, and after
// a pause if it recalls less.
func (r *recall) lacks(v *recallValue, retain time.Duration, now time.Time) bool {
	have, pause := &r.value, beatEvery
	if v.Urgent || have.Urgent {
		pause = retain / keepPart
	}
	if r.rev == 0 || v.Priority > have.Priority || v.Urgent != have.Urgent || v.all() != have.all() {
		return true
	}
	for id, keep := range v.Keep {
		if n, listed := have.Keep[id]; !listed || keep < n {
			return true
		}
	}
	return !reflect.DeepEqual(have, v) && now.Sub(r.changed) >= pause
}

// firstRecall is what an instance recalls when it becomes the dispatcher of a pool, while its own
// waiters are the only ones that it knows.
func (c *core) firstRecall(b *builder, p *poolView) recallValue {
	v := recallValue{V: store.Now, Priority: MinPriority}
	for _, l := range b.b.puts {
		if l.e.wants(p) {
			v.Priority, v.Urgent = max(v.Priority, l.e.req.Priority), v.Urgent || l.reserve
		}
	}
	return v
}

// isRecalled reports whether slots of one of some pools are recalled.
func (c *core) isRecalled(needs []Need) bool {
	return slices.ContainsFunc(needs, func(n Need) bool { return c.view.pool(n.Pool).recall.rev > 0 })
}

// recalled reports whether slots on a lease are to be given back, and must not be passed on to a claim
// of this instance with that priority.
func (c *core) recalled(needs []Need, on store.LeaseID, priority int) bool {
	return slices.ContainsFunc(needs, func(n Need) bool {
		r := &c.view.pool(n.Pool).recall
		return r.rev > 0 && (r.value.Priority > priority || r.value.all() || r.value.Urgent && r.surplus[on] > 0)
	})
}

// countSurplus counts the surplus of each lease in a pool's recall.
func (c *core) countSurplus(p *poolView) {
	r := &p.recall
	r.surplus = map[store.LeaseID]int{}
	for id, keep := range r.value.Keep {
		lease, _ := strconv.ParseInt(id, 16, 64) // 0 is no lease
		r.surplus[store.LeaseID(lease)] = -keep
	}
	for _, e := range c.entries {
		if e.given || e.state != held && e.state != releasing {
			continue
		}
		for _, n := range e.needs {
			if _, some := r.surplus[e.lease]; some && n.Pool == p.name {
				r.surplus[e.lease] += n.N
			}
		}
	}
}

// noteRecall acts on the recall of a pool, or on its end.
func (c *core) noteRecall(p *poolView, now time.Time) {
	in := func(needs []Need) bool {
		return slices.ContainsFunc(needs, func(n Need) bool { return n.Pool == p.name })
	}
	r := &p.recall
	before := r.noted
	if r.noted = r.rev; r.rev != before {
		r.changed = now
	}
	switch {
	case r.rev > 0:
		c.returnAllIdle(func(i *idleSlots) bool { return in(i.needs) })
		if r.rev != before {
			c.countSurplus(p)
		}
		return
	case before == 0:
		return
	}
	for _, kind := range sortedKeys(c.retentions) {
		r := c.retentions[kind]
		if len(r.local) > 0 && in(r.local[0].needs) {
			for _, e := range slices.Clone(r.local[:min(r.returned, len(r.local), c.freeFor(r))]) {
				c.unretain(e, now) // slots may be free that it has given back
			}
		}
		r.returned = 0
	}
}

// short returns what the dispatcher of a pool is to recall: nil while it retains nothing, or all that
// waits finds free slots.
func (c *core) short(p *poolView, now time.Time) *recallValue {
	if p.spec.Retain == 0 || !p.grants() {
		return nil
	}
	var v *recallValue
	var waits []lacking
	free, used := p.spec.Limit-p.used, map[store.LeaseID]int{} // with what is about to be granted
	maps.Copy(used, p.leases)
	for _, w := range c.view.waiters {
		at := slices.IndexFunc(w.needs, func(n Need) bool { return n.Pool == p.name })
		if at < 0 || !slices.Contains(w.in, p) || c.view.passed(w) || c.view.exceedsAny(w.needs) {
			continue
		}
		if free -= w.needs[at].N; free >= 0 || p.spec.Limit == Unlimited {
			used[w.value.Lease] += w.needs[at].N
			continue
		}
		if v == nil {
			v = &recallValue{V: store.Now, Priority: w.order.Priority} // the first has the highest
		}
		if w.shortSince.IsZero() {
			if w.shortSince = now; w.rev < c.roles[p.name].inherited { // it has waited under another dispatcher
				w.shortSince = now.Add(-p.spec.Retain)
			}
		}
		waits = append(waits, lacking{w.value.Lease, min(w.needs[at].N, -free), now.Sub(w.shortSince), w.value.Reserve})
	}
	if v != nil && p.used > 0 {
		var next time.Duration
		if v.Urgent, v.Keep, next = keeps(used, waits, p.spec.Limit, p.spec.Retain); next > 0 {
			c.wakeAt(now.Add(next))
		}
	}
	return v
}
