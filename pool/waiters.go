package pool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// waiter is a waiting claim, as its keys show it.
type waiter struct {
	order   Order
	value   waiterValue
	needs   []Need
	first   *poolView // whose dispatcher grants it
	work    work
	in      []*poolView // in whose wait queues it was seen
	rev     int64       // when one of its keys was last put
	lease   store.LeaseID
	waiting *admit.Waiter
	by      *otherInstance // whose it is; this one included
	// skip is the revision of the waiter at which it could not be granted, for a reason of
	// its own: it is passed until it is written again.
	skip int64
	// keptSince is since when slots are kept for it that another dispatcher is to grant, and
	// unkept the revision of the waiter at which that was for too long.
	keptSince time.Time
	unkept    int64
	// shortSince is since when the dispatcher knows that it finds no free slots.
	shortSince time.Time
	// retryAt is the revision that the view must reach before the next try to grant it.
	retryAt int64
}

// work is what sole claims are for: see [Request.Sole].
type work struct{ run, step, bind string }

func workOf(h *Holder) work { return work{h.Run, h.Step, h.Bind} }

// known reports whether it says what a claim is for.
func (w work) known() bool { return w.run != "" && w.step != "" }

func (v *view) putWaiter(p *poolView, text string, kv *mvccpb.KeyValue) error {
	o, err := ParseOrder(text)
	if err != nil {
		return &store.CorruptError{Key: string(kv.Key), Reason: err}
	}
	val, err := decodeWaiter(string(kv.Key), kv.Value, o)
	if err != nil {
		return err
	}
	if p.goneWaiters[o] >= kv.ModRevision {
		return nil // a commit of ours is ahead of the watch
	}
	i, found := v.findWaiter(o)
	if !found {
		v.waiters = slices.Insert(v.waiters, i, &waiter{order: o})
	}
	w := v.waiters[i]
	if !slices.Contains(w.in, p) {
		w.in = append(w.in, p)
		p.waiting++
	}
	v.setWork(w, workOf(&val.Holder))
	if w.by == nil { // the order names the instance: it never changes
		w.by = v.instance(instanceName{val.Holder.Host, val.Holder.Instance})
		w.by.waiters++
	}
	v.acted = append(v.acted, w.by)
	w.needs = needsOf(val.Pools)
	w.first = v.pool(w.needs[0].Pool)
	w.value, w.rev, w.lease = val, kv.ModRevision, store.LeaseID(kv.Lease)
	w.waiting = &admit.Waiter{Needs: v.poolNeeds(val.Pools), Reserve: val.Reserve}
	return nil
}

func (v *view) removeWaiter(p *poolView, o Order) {
	i, found := v.findWaiter(o)
	if !found {
		return
	}
	w := v.waiters[i]
	if at := slices.Index(w.in, p); at >= 0 {
		w.in = slices.Delete(w.in, at, at+1)
		p.waiting--
	}
	if len(w.in) == 0 {
		v.endWaiter(i)
	}
}

// endWaiter forgets a waiter.
func (v *view) endWaiter(i int) {
	w := v.waiters[i]
	v.waiters = slices.Delete(v.waiters, i, i+1)
	v.setWork(w, work{})
	w.by.waiters--
	v.forgetInstance(w.by)
}

// setWork notes what a waiter is for.
func (v *view) setWork(w *waiter, now work) {
	if w.work == now {
		return
	}
	if w.work.known() {
		rest := slices.DeleteFunc(v.byWork[w.work], func(o *waiter) bool { return o == w })
		if v.byWork[w.work] = rest; len(rest) == 0 {
			delete(v.byWork, w.work)
		}
	}
	if w.work = now; now.known() {
		v.byWork[now] = append(v.byWork[now], w)
	}
}

// committedWaiterDelete takes a waiter that a commit of ours deleted at rev.
func (v *view) committedWaiterDelete(pools []string, o Order, rev int64) {
	for _, name := range pools {
		if p := v.pool(name); rev > p.rev || !p.whole {
			note(&p.goneWaiters, o, rev)
			v.removeWaiter(p, o)
		}
	}
}

func (v *view) findWaiter(o Order) (int, bool) {
	return slices.BinarySearchFunc(v.waiters, o, func(w *waiter, o Order) int { return w.order.Compare(o) })
}

// poolNeeds translates what a claim needs into numbers of pools.
func (v *view) poolNeeds(slots map[string]int) []admit.Need {
	needs := make([]admit.Need, 0, len(slots))
	for name, n := range slots {
		needs = append(needs, admit.Need{Pool: v.pool(name).number, N: n})
	}
	return needs
}

// dropOrphans has the waiters of this instance deleted that belong to no request, as an
// earlier life leaves them, or a restore of etcd brings them back.
func (c *core) dropOrphans() {
	for _, w := range c.view.waiters {
		e := c.entries[w.order.Claim]
		if c.ours(w) && (e == nil || e.order != w.order || e.state > claiming) && !c.dropping(w.order) {
			if e != nil {
				e.succeeds = true
			}
			c.log.Warn("deleting an orphaned waiter of this instance", "claim", w.order.Claim)
			c.drops = append(c.drops, drop{pools: poolNames(w.value.Pools), order: w.order})
			c.dirty = true
		}
	}
}

// dropping reports whether a waiter is to be deleted already.
func (c *core) dropping(o Order) bool {
	is := func(d drop) bool { return d.order == o }
	return slices.ContainsFunc(c.drops, is) || slices.ContainsFunc(c.shelf.drops, is)
}

// Order is a waiter's place in the wait queue. It is the same in every pool of its
// claim, which keeps claims of several pools free of deadlock, and it uses no clock.
type Order struct {
	// Priority of the claim; higher goes first.
	Priority int
	// Since is the revision at which the claim was found not to fit.
	Since int64
	// Claim is the claim's id.
	Claim string
	// By identifies the instance, by a hash of its name, so that claims of one id that
	// wait on two instances are two waiters.
	By uint32
}

// Compare ranks two orders by, in this order: higher priority, earlier
// revision, claim id, instance.
func (o Order) Compare(p Order) int {
	return cmp.Or(
		cmp.Compare(p.Priority, o.Priority),
		cmp.Compare(o.Since, p.Since),
		cmp.Compare(o.Claim, p.Claim),
		cmp.Compare(o.By, p.By),
	)
}

// The widths of the fields of an order's text.
const (
	priorityWidth = 4  // of MaxPriority - priority: 0000 to 2000
	sinceWidth    = 16 // of the revision in hexadecimal
	orderWidth    = priorityWidth + 1 + sinceWidth + 1
	byWidth       = 8 // of the instance in hexadecimal
)

// byMark ends the claim's id: it ranks before all that an id can go on with.
const byMark = '+'

// String is the last part of the waiter's key: sorted as text it ranks as
// Compare does.
func (o Order) String() string {
	return fmt.Sprintf("%0*d-%0*x-%s%c%0*x", priorityWidth, MaxPriority-o.Priority, sinceWidth, uint64(o.Since), o.Claim, byMark, byWidth, o.By)
}

// ParseOrder reads what String wrote, and nothing else.
func ParseOrder(s string) (Order, error) {
	if o, ok := parseOrder(s); ok {
		return o, nil
	}
	return Order{}, fmt.Errorf("%q is no place in a wait queue", problem.Clip(s))
}

func parseOrder(s string) (Order, bool) {
	end := len(s) - byWidth - 1 // of the claim's id
	if end <= orderWidth || s[priorityWidth] != '-' || s[orderWidth-1] != '-' || s[end] != byMark {
		return Order{}, false
	}
	inverted, okP := parseDigits(s[:priorityWidth], 10)
	since, okS := parseDigits(s[priorityWidth+1:orderWidth-1], 16)
	by, okB := parseDigits(s[end+1:], 16)
	o := Order{Priority: MaxPriority - int(inverted), Since: since, Claim: s[orderWidth:end], By: uint32(by)}
	return o, okP && okS && okB && since >= 0 && o.Priority >= MinPriority && isClaimID(o.Claim)
}

// parseDigits reads a number of digits and lower-case letters only.
func parseDigits(s string, base int64) (n int64, ok bool) {
	for i := range len(s) {
		d := int64(s[i] - '0')
		if 'a' <= s[i] && s[i] <= 'f' {
			d = int64(s[i]-'a') + 10
		}
		if s[i] < '0' || '9' < s[i] && s[i] < 'a' || d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}

// passed reports whether a waiter of another instance is passed: it has not said where its
// slots go, or was granted, or its instance does not answer, or has another claim of its id, or
// another claim waits before it for the same thing.
func (c *core) passed(w *waiter) bool {
	return c.view.passed(w) || w.unkept == w.rev && !c.grants(w)
}

// grants reports whether this instance is to grant a waiter of another instance: it dispatches
// its first pool, and has seen it there. While it was seen in another pool only, those that are
// before it in the first one may not be known.
func (c *core) grants(w *waiter) bool { return c.dispatches(w.first) && slices.Contains(w.in, w.first) }

// passed is [core.passed] as far as the view shows it.
func (v *view) passed(w *waiter) bool {
	return w.value.Lease == 0 || w.by.yielded || w.skip == w.rev || v.notified(w) || v.held(w.order.Claim, w.by.name) != nil ||
		w.value.Sole && slices.ContainsFunc(v.byWork[w.work], func(o *waiter) bool {
			return o.order.Claim != w.order.Claim && o.order.Compare(w.order) < 0 && !o.by.yielded
		})
}

// held returns the claim by which an instance holds slots under an id, as far as its first pool is
// followed; nil if none is known. While the instance waits with that id, it is of an earlier life
// of it: an instance does not see the slots of pools that its claims only wait for.
func (v *view) held(id string, by instanceName) *claimView {
	for cv := v.claims[id]; cv != nil; cv = cv.next {
		if cv.isOf(v.keys, by.host, by.instance) && !v.pool(cv.main.pool).stale {
			return cv
		}
	}
	return nil
}

// proxy makes an entry of another instance's waiter, which this instance is to grant.
func (c *core) proxy(w *waiter) *entry {
	val := &w.value
	req := &Request{ID: w.order.Claim, Slots: val.Pools, Priority: w.order.Priority, Holder: val.Holder}
	return &entry{
		req: req, needs: w.needs, order: w.order, other: w, inQueue: true, written: true, writtenAt: w.rev,
		record:  &record{Pools: req.Slots, Priority: req.Priority, Holder: req.Holder},
		spelled: spell(req, w.needs), holding: holding{lease: val.Lease},
	}
}

// usable reports whether an entry could use its slots now: its place is free, or comes with
// a release.
func (c *core) usable(e *entry) bool {
	return e.req.Place.available() || slices.ContainsFunc(c.releases, func(r *entry) bool {
		return r.combined != nil && r.combined.place.passes(e.req.Place)
	})
}

// judge decides what becomes of entries that are not granted now: they are refused, or get
// their places in the wait queue.
func (c *core) judge(entries []*entry, now time.Time) {
	var due map[*entry]bool // what the dispatchers are about to grant; nil until it is asked for
	for _, e := range entries {
		if c.anyUnseen(e.needs) {
			continue // they are read first
		}
		err := c.impossible(e)
		if err == nil && (c.view.held(e.req.ID, c.name()) != nil || e.unjudged && !c.anyStale(e.needs)) {
			err = c.inUse(e.req.ID) // an earlier life was granted it, which the view did not show
		}
		if err != nil {
			c.refuse(e, err)
			continue
		}
		hurried := e.unjudged && e.hurried()
		if hurried && (!c.ready(e) || c.anyStale(e.needs)) || c.entryRoute(e) == routeUnknown {
			continue
		}
		// Without leases for waiters, an instance has none that a dispatcher could grant.
		if hurried && c.waiterLeases != nil && c.entryRoute(e) == routeQueue {
			if due == nil {
				due = c.due()
			}
			if due[e] {
				c.enqueue(e, now) // it is judged again with every change
				continue
			}
		}
		e.unjudged = false
		if err := c.exceeded(e); hurried && err != nil {
			c.refuseAtOnce(e, func() error { return err })
		} else if hurried && !c.ready(e) {
			c.refuseAtOnce(e, func() error { return c.notReleased(e.req.ID, now) })
		} else if hurried {
			c.refuseAtOnce(e, func() error { return c.noCapacity(e) })
		}
		c.enqueue(e, now)
	}
}

// due returns the entries that have their turn, whichever instance grants them.
func (c *core) due() map[*entry]bool {
	waiters := c.all()
	var waiting []*admit.Waiter
	for _, cd := range waiters {
		w := *cd.waiting()
		w.Mine = true
		waiting = append(waiting, &w)
	}
	due := map[*entry]bool{}
	for _, i := range admit.Admit(c.view.capacities(), waiting).Grants {
		due[waiters[i].e] = true
	}
	return due
}

// enqueue gives an entry its place in the wait queue.
func (c *core) enqueue(e *entry, now time.Time) {
	e.req.Place.Give() // it has to wait
	e.waits(now)
	if e.order.Since == 0 && len(e.listeners) > 0 {
		e.order.Since = e.since(c.seen)
		e.waitsSince(now, 0)
		if c.waiterLeases == nil {
			e.waitsSince(now, c.seen)
		}
		e.reserve = e.reserve || c.reserveAfter(e) == 0
		if !e.deferred && c.broker.wants(e) {
			c.publish(ClaimWaiting, e, c.reason(e).Text)
		}
	}
}

// writeWaiters writes the waiters that are not in etcd yet, and those that reserve from
// now on. An entry without a place does not wait: it could not use its slots.
func (c *core) writeWaiters(b *builder) {
	if c.waiterLeases == nil {
		return
	}
	for _, e := range c.queue {
		if e.state != queued || e.order.Since == 0 || b.granted[e] || e.unwritable || !c.ready(e) {
			continue
		}
		if !c.usable(e) {
			if e.written {
				c.deleteWaiter(e)
			}
			continue
		}
		if e.written && e.reserve == e.writtenReserve || c.waitsHere(e, b.now) {
			continue
		}
		if !c.reserveKeys(e) || !b.waiter(e) {
			return
		}
	}
}

// age makes a waiter reserve when it has waited long enough.
func (c *core) age(e *entry, now time.Time) {
	if e.state != queued || e.order.Since == 0 || e.reserve {
		return
	}
	if after := c.reserveAfter(e); after >= 0 && now.Sub(e.waited.at) >= after {
		e.reserve = true
		c.dirty = true
	}
}

// losePatience refuses who is not to wait and can't be served for a reason that
// has nothing to do with free slots, or is not by the dispatcher.
func (c *core) losePatience(e *entry, now time.Time) {
	if e.state != queued || now.Sub(e.arrived) < patience {
		return
	}
	if err := c.trouble(now); err != nil {
		c.refuseAtOnce(e, func() error { return err })
	} else if c.entryRoute(e) == routeUnknown {
		c.refuseAtOnce(e, func() error { return errUnread })
	} else if c.entryRoute(e) == routeQueue || !c.ready(e) {
		c.refuseAtOnce(e, func() error { return c.noCapacity(e) })
	}
}

// errUnread refuses a claim whose pools could not be read in time.
var errUnread = problem.New(problem.EtcdUnavailable, "the pools were not read from etcd in time; nothing was claimed")

// wants reports whether an entry needs slots of a pool.
func (e *entry) wants(p *poolView) bool {
	return slices.ContainsFunc(e.needs, func(n Need) bool { return n.Pool == p.name })
}

// waiterRev is the revision of an entry's waiter, 0 if there is none.
func (c *core) waiterRev(e *entry) int64 {
	if e.writtenAt > c.view.pool(e.needs[0].Pool).rev {
		return e.writtenAt
	}
	if i, found := c.view.findWaiter(e.order); found {
		return c.view.waiters[i].rev
	}
	return 0
}

// instanceName names an instance.
type instanceName struct{ host, instance string }

// otherInstance is an instance that has waiters or notices, as this one sees it.
type otherInstance struct {
	name    instanceName
	waiters int
	notices map[string]*notice // by key
	// yielded: there is a notice that it has not acknowledged in time.
	yielded bool
	// seen is when it last wrote a waiter, or acknowledged a notice; zero if that is not
	// known.
	seen time.Time
}

// instance returns what is known of an instance.
func (v *view) instance(name instanceName) *otherInstance {
	o := v.instances[name]
	if o == nil {
		o = &otherInstance{name: name, notices: map[string]*notice{}}
		v.instances[name] = o
	}
	return o
}

// forgetInstance forgets an instance without waiters and notices.
func (v *view) forgetInstance(o *otherInstance) {
	if o.waiters+len(o.notices) == 0 {
		delete(v.instances, o.name)
	}
}

// waitsFor returns what a claim of this instance waits for if the engine does not watch its
// pools: as it is read from etcd. It is nil if they are watched, or can't be read in time.
func (e *Engine) waitsFor(ctx context.Context, id string) *Reason {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	watched, err := query(ctx, e, func(c *core) bool {
		w := c.entries[id]
		return w == nil || !c.anyStale(w.needs) || c.trouble(time.Now()) != nil
	})
	if err != nil || watched {
		return nil
	}
	w, err := e.Why(ctx, e.cfg.Host+"/"+e.cfg.Instance+"/"+id)
	if err != nil || w.Waiter == nil {
		return nil
	}
	return &w.Reason
}
