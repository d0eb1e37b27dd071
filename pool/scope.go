package pool

import (
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// An instance follows of a pool only what it acts on. A pool in which it claims seldom is
// read at each claim. One in which it claims often, or whose dispatcher it is, it watches.
// While its claims wait for another instance to grant them, it watches their notices alone, and
// reads twice a second who the dispatcher is. So what one claim costs does not grow with
// the number of instances.

// scope is what an instance follows of a pool.
type scope int

const (
	nothing scope = iota
	// notices of grants to this instance are watched, and the spec and the marks are read
	// every pollEvery.
	notices
	everything
)

const (
	// pollEvery is how often the spec and the marks of a pool are read whose notices are
	// followed. A silent dispatcher is noticed within silentAfter and that.
	pollEvery = 500 * time.Millisecond
	// oftenWithin is how soon a claim follows another one of the same pool where a watch costs
	// less than a read for each claim, and oftenFor for how long the pool is watched then.
	oftenWithin = time.Second
	oftenFor    = 5 * time.Second
	// openFor is for how long a pool that is watched stays so after its claims have come to
	// wait for another dispatcher: its queue may be empty again in a moment.
	openFor = 500 * time.Millisecond
	// waitedFor is for how long notices are followed after the last claim has waited.
	waitedFor = 5 * time.Second
	// readPause is how long a read of a pool is not tried again after it failed.
	readPause = 500 * time.Millisecond
	// lostEvery is how often a pool is read to see whether a claim has ended with its lease.
	lostEvery = 5 * time.Second
	// forgetPool is how long after its last use nothing is kept of what was followed.
	forgetPool = time.Minute
)

// followed is what an instance follows of one pool.
type followed struct {
	pool  *poolView
	scope scope
	// retains is set if slots of it may be retained: its spec is read every pollEvery, even if the
	// pool is watched, and its recalls are watched if the pool is not.
	retains, recalls bool
	// begun is the number of the last time that it came to be watched whole.
	begun int
	// read is set if the pool is to be read once, up to mustShow or later. Reading is set
	// while it is, expects is what mustShow was when that began, and readAt is when to try again
	// after a failure.
	read, reading     bool
	mustShow, expects int64
	readAt            time.Time

	asked      time.Time // when a claim was last asked for
	oftenUntil time.Time
	triesUntil time.Time // the same for claims that do not wait
	openUntil  time.Time
	waitUntil  time.Time
	// restored is set if claims of this instance are to be found again after a restore, and
	// audit if the keys of this instance in the pool are to be compared with its claims, once
	// the pool is known up to auditAt.
	restored, audit bool
	auditAt         int64
}

// demand is what an instance does with a pool, which decides what it follows of it.
type demand struct {
	// acts: it is the dispatcher or wants to be, keeps slots for a claim of several pools,
	// holds a claim that another instance may take over, or waits for what others may wait for.
	acts bool
	// retains: it has slots that it may retain.
	retains bool
	// asks: claims were asked for often lately; tries: and did not wait. Judges: claims are to be
	// judged by what the pool is now, or it is to be read for another reason.
	asks, tries, judges bool
	// waits: claims wait in the queue, or did lately. Queued: the queue grants, and not each
	// instance. Open: until a moment ago it did not.
	waits, queued, open bool
}

// scope decides what to follow of a pool, and whether to read it once.
func (d demand) scope(now scope) (s scope, read bool) {
	switch {
	case d.acts, d.tries, d.asks && !d.queued, now == everything && d.open && (d.asks || d.waits):
		return everything, false
	case d.waits:
		return notices, d.judges
	}
	return nothing, d.judges
}

// following returns what is followed of a pool.
func (c *core) following(p *poolView) *followed {
	f := c.followed[p.name]
	if f == nil {
		f = &followed{pool: p}
		c.followed[p.name] = f
	}
	return f
}

// asked notes that a claim of some pools was asked for, which waits for its slots or does not.
func (c *core) asked(slots map[string]int, waits bool, now time.Time) {
	for name := range slots {
		p := c.view.pool(name)
		f := c.following(p)
		if !f.asked.IsZero() && now.Sub(f.asked) < oftenWithin {
			if f.oftenUntil = now.Add(oftenFor); !waits {
				f.triesUntil = f.oftenUntil
			}
		}
		f.asked = now
		if f.scope == everything && !p.stale || f.scope == notices && waits && p.queued.rev > 0 && !p.unseen {
			continue
		}
		if f.scope != everything {
			p.at, p.stale = time.Time{}, true // it is read for this claim
		}
		c.refollow = true
	}
}

// refresh notes of which pools too little is known to decide.
func (c *core) refresh(now time.Time) {
	for _, p := range c.view.order {
		p.refresh(now, c.resolveAt)
	}
}

// refresh notes whether too little is known of a pool to decide. What was known before earlier
// writes were fenced does not count: etcd may have been restored. Nor does a spec that was read
// alone: what other instances had granted under the one before need not be known, and the
// compares of a grant rely on it.
func (p *poolView) refresh(now time.Time, fenced int64) {
	p.stale = !p.whole || p.specRev > p.rev || p.rev < fenced || now.Sub(p.at) >= store.StaleAfter
	p.unseen = p.stale && now.Sub(p.markedAt) >= store.StaleAfter
}

// follow decides what to follow of each pool.
func (c *core) follow(now time.Time) {
	c.refollow = false
	c.refresh(now)
	demands := c.demands(now)
	for _, name := range sortedKeys(c.followed) {
		f := c.followed[name]
		p, d := f.pool, demands[name]
		if p.queued.rev == 0 {
			f.openUntil = now.Add(openFor)
		}
		if d.waits {
			f.waitUntil = now.Add(waitedFor)
		}
		d.asks, d.tries, d.waits = now.Before(f.oftenUntil), now.Before(f.triesUntil), now.Before(f.waitUntil)
		d.queued, d.open = p.queued.rev > 0 && !p.unseen, now.Before(f.openUntil)
		if f.audit && p.rev < f.auditAt {
			d.judges, f.mustShow = true, max(f.mustShow, f.auditAt)
		}
		d.judges = d.judges || (f.restored || f.audit) && p.stale
		if p.stale && d.waits && d.queued && p.silent(now) >= c.patience() {
			d.judges = true // what is left of a queue is to be deleted
		}
		s, read := d.scope(f.scope)
		f.retains = p.spec.Retain > 0 && (d.retains || now.Before(f.oftenUntil))
		recalls := f.retains && s != everything
		begins := read && !f.reading && !now.Before(f.readAt)
		if s != f.scope || begins != f.read || recalls != f.recalls {
			c.followings++
		}
		switch {
		case f.scope == everything && s != everything:
			c.view.unload(p)
		case f.scope != everything && s == everything:
			c.begun++
			f.begun = c.begun
		}
		f.recalls = recalls
		if f.scope, f.read = s, begins; begins {
			f.expects = f.mustShow
		}
		switch {
		case s == nothing && !read && p.whole && now.Sub(p.at) >= store.StaleAfter, s == notices && p.whole && p.stale:
			c.view.unload(p)
		case s == nothing && !recalls && !read && !f.reading && !p.whole && !f.audit && !f.restored && now.Sub(f.asked) >= forgetPool:
			delete(c.followed, name)
		}
	}
}

// demands returns what this instance does with the pools.
func (c *core) demands(now time.Time) map[string]demand {
	all := map[string]demand{}
	on := func(p *poolView, change func(*demand)) {
		c.following(p)
		d := all[p.name]
		change(&d)
		all[p.name] = d
	}
	acts := func(d *demand) { d.acts = true }
	judges := func(d *demand) { d.judges = true }
	waits := func(d *demand) { d.waits = true }
	retains := func(d *demand) { d.retains = true }
	for _, i := range c.idle {
		for _, n := range i.needs {
			on(c.view.pool(n.Pool), retains)
		}
	}
	for name := range c.roles {
		on(c.view.pool(name), acts)
	}
	for _, f := range c.followed {
		if d := &f.pool.dispatcher; d.rev > 0 && d.by == c.name() {
			on(f.pool, acts) // also if its lease was lost: the key is to go
		}
	}
	for _, l := range c.loans {
		on(c.view.pool(l.pool), acts)
	}
	for _, e := range c.entries {
		if e.state == held && c.retains(e.needs) > 0 {
			for _, n := range e.needs {
				on(c.view.pool(n.Pool), retains)
			}
		}
		if e.req.Bridge && e.state >= claiming {
			for _, s := range e.slots {
				on(c.view.pool(s.ref.pool), acts)
			}
		}
		if _, lost := c.lost[e.lease]; lost && e.state == held {
			if p := c.view.pool(e.slots[0].ref.pool); p.stale && now.Sub(p.at) >= lostEvery {
				on(p, judges)
			}
		}
	}
	for _, w := range c.view.waiters {
		if len(w.needs) > 1 && slices.ContainsFunc(w.in, c.dispatches) {
			for _, n := range w.needs {
				on(c.view.pool(n.Pool), acts)
			}
		}
	}
	for _, e := range slices.Concat(c.queue, c.takes) {
		if e.succeeds {
			for _, cv := range c.view.claimsOf(e.req.ID) {
				if p := c.view.pool(cv.main.pool); cv.record == nil && cv.raw == nil && c.unread(cv) {
					on(p, judges)
					f := c.following(p)
					f.mustShow = max(f.mustShow, cv.rev)
				}
			}
		}
		undecided := e.state == queued && c.undecided(e)
		acting := len(e.needs) > 1 && e.state == queued && c.entryRoute(e) == routeDispatch
		for i, n := range e.needs {
			p := c.view.pool(n.Pool)
			if acting {
				on(p, acts)
			}
			if undecided && (p.stale || p.rev < e.retryAt) {
				on(p, judges)
				f := c.following(p)
				f.mustShow = max(f.mustShow, e.retryAt)
			}
			if e.inQueue || e.offer != nil || e.deferred {
				on(p, waits)
				if e.req.Sole || i == 0 && p.dispatcher.rev > 0 && p.silent(now) >= c.patience() {
					on(p, acts) // others may wait for the same, or their dispatcher is to be replaced
				}
			}
		}
	}
	if c.phase == resolving {
		for _, p := range c.unresolved.touched(c.view) {
			if !p.whole || p.rev < c.resolveAt {
				on(p, judges)
				f := c.following(p)
				f.mustShow = max(f.mustShow, c.resolveAt)
			}
		}
	}
	for _, d := range c.drops {
		for _, name := range d.pools {
			on(c.view.pool(name), waits)
		}
	}
	for _, d := range c.dropped {
		on(c.view.pool(d.pool), waits)
	}
	if own := c.view.instances[c.name()]; own != nil {
		for _, n := range own.notices {
			on(n.pool, waits)
		}
	}
	return all
}

// undecided reports whether an entry needs more than is known of its pools.
func (c *core) undecided(e *entry) bool {
	if e.offer != nil {
		return false
	}
	if e.takes != 0 || e.unjudged && e.hurried() {
		return c.anyStale(e.needs) || e.retryAt > c.shown(e)
	}
	switch c.entryRoute(e) {
	case routeUnknown:
		return e.unjudged || c.usable(e)
	case routeDirect:
		return e.retryAt > c.shown(e)
	}
	return false
}

// hurried reports whether an entry has requests that do not wait.
func (e *entry) hurried() bool {
	return slices.ContainsFunc(e.listeners, func(l listener) bool { return l.wait <= 0 })
}

// anyStale reports whether one of some pools is not known well enough to grant from it.
func (c *core) anyStale(needs []Need) bool {
	return slices.ContainsFunc(needs, func(n Need) bool { return c.view.pool(n.Pool).stale })
}

// anyUnseen reports whether the spec and the marks of one of some pools are not known.
func (c *core) anyUnseen(needs []Need) bool {
	return slices.ContainsFunc(needs, func(n Need) bool { return c.view.pool(n.Pool).unseen })
}

// shown is the revision up to which the pools of an entry are known; of one that has an offer,
// the notices.
func (c *core) shown(e *entry) int64 {
	if e.offer != nil {
		return e.offer.pool.noticesRev
	}
	return c.shownOf(e.needs)
}

func (c *core) shownOf(needs []Need) int64 {
	rev := c.seen
	for _, n := range needs {
		rev = min(rev, c.view.pool(n.Pool).rev)
	}
	return rev
}

// show reports whether all that is known of pools is of a revision or later. Pools that are not
// watched are read again before they are used.
func (c *core) show(rev int64) bool {
	watched := true
	for _, p := range c.view.order {
		switch f := c.followed[p.name]; {
		case f != nil && f.scope == everything:
			watched = watched && p.rev >= rev
		case p.specAt < rev:
			p.at, p.markedAt, p.stale, p.unseen = time.Time{}, time.Time{}, true, true
			if f != nil {
				f.mustShow = max(f.mustShow, rev)
			}
		}
	}
	return watched
}

// touched returns the pools in which the outcome of a batch is to be looked for: what it does
// elsewhere can be done twice.
func (b *batch) touched(v *view) []*poolView {
	if b == nil {
		return nil
	}
	var pools []*poolView
	note := func(slots []placed) {
		for _, s := range slots {
			if p := v.pool(s.ref.pool); !slices.Contains(pools, p) {
				pools = append(pools, p)
			}
		}
	}
	for _, g := range b.grants {
		note(g.slots)
	}
	for _, g := range slices.Concat(b.releases, b.rewrites) {
		note(g.e.slots)
	}
	return pools
}

// deletion is a waiter that was deleted at a revision.
type deletion struct {
	pool string
	rev  int64
}

// hidden reports whether a grant before the deletion may still be unknown.
func (d deletion) hidden(v *view) bool { return d.pool != "" && d.rev > v.pool(d.pool).noticesRev }
