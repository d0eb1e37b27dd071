package pool

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// While claims wait for a pool, one instance grants them: the pool's dispatcher. It holds the
// key `dispatcher` of the pool, and each of its grants compares that it still does. While the
// key `queued` exists, no other instance grants claims of the pool. So a full pool costs one plan
// for each release, and not one on each instance.

const (
	// beatEvery is how often a dispatcher puts its key again while claims wait.
	beatEvery = 500 * time.Millisecond
	// silentAfter is for how long a dispatcher may not have put its key before another instance takes
	// its place: three beats, and a part of silentSpread, which differs by host.
	silentAfter  = 3 * beatEvery
	silentSpread = 500 * time.Millisecond
	// idleGrants is how long a claim that fits may wait at a dispatcher that lives: then
	// it does not put its key again, so that another instance tries.
	idleGrants = 2 * time.Second
	// queueAfter is after how many lost races a claim joins the wait queue, which has none.
	queueAfter = 4
)

// duty is what an instance has to do about the dispatcher of a pool.
type duty int

const (
	noDuty      duty = iota
	takeRole         // become the dispatcher: there is none
	replace          // become the dispatcher in place of one that is silent
	beat             // put the key again
	recallSlots      // have hosts give back what they retain
	stepDown         // delete the key: no claim waits
	tidy             // delete what is left of a queue: no claim waits, and the dispatcher is gone
)

// dispatchState is what decides about the dispatcher of a pool.
type dispatchState struct {
	exists bool // there is a dispatcher
	mine   bool // it is this instance
	former bool // it was this instance, which has lost the role, perhaps with a lease
	queued bool // the key is there that has claims wait
	// blind: too little is known of the pool to do more than take a role that no instance has.
	blind bool
	// waits: this instance wants claims of the pool to be granted; queue: some wait.
	waits, queue bool
	// silent is for how long the dispatcher's key has not been put, and patience how long
	// this instance accepts that.
	silent, patience time.Duration
	// recall is set if slots are to be recalled that are not, or for another claim.
	recall bool
	// fits: a claim that waits could be granted, or a grant withdrawn or slots recalled for one.
	fits bool
	// idle is for how long a claim that fits has not been granted.
	idle time.Duration
}

// duty decides what an instance has to do about the dispatcher of a pool.
func (s dispatchState) duty() duty {
	switch {
	case s.blind && !((!s.exists || s.former) && s.waits):
		return noDuty
	case s.mine && !s.queue:
		return stepDown
	case s.mine && s.silent >= beatEvery && s.idle < idleGrants:
		return beat
	case s.mine && s.recall:
		return recallSlots
	case (!s.exists || s.former) && s.waits:
		return takeRole
	case s.exists && !s.mine && s.waits && s.fits && s.silent >= s.patience:
		return replace
	case (s.exists || s.queued) && !s.mine && !s.queue && s.silent >= s.patience:
		return tidy
	}
	return noDuty
}

// dispatcher is the key of a pool's dispatcher as the view has it.
type dispatcher struct {
	mark
	by    instanceName
	lease store.LeaseID
	// noticed is the revision that was seen last when roles were checked, and since when:
	// by this instance's clock, which decides about silence only.
	noticed int64
	since   time.Time
}

// put takes the state of the key at a revision.
func (d *dispatcher) put(kv *mvccpb.KeyValue, at int64) error {
	by, err := decodeDispatcher(string(kv.Key), kv.Value)
	if d.know(kv.ModRevision, at) {
		d.by, d.lease = by, store.LeaseID(kv.Lease) // what can't be read counts, and is replaced
	}
	return err
}

// String is the dispatcher as HOST/INSTANCE, empty if there is none.
func (d *dispatcher) String() string {
	if d.rev == 0 || d.by == (instanceName{}) {
		return ""
	}
	return d.by.host + "/" + d.by.instance
}

// role is the part of a dispatcher that an instance has, or tries to get.
type role struct {
	lease store.LeaseID
	// rev is the revision of the last put that was answered; 0 while none was. If claims waited
	// under another dispatcher before, inherited is the revision at which this one took the role.
	rev, inherited int64
	recalled       int64 // the revision of the last recall; the next is put when the watch has shown it
	// idleSince is since when a claim that fits has not been granted; zero if none waits.
	idleSince time.Time
}

// dutyOp is a duty that a batch carries out.
type dutyOp struct {
	duty     duty
	pool     *poolView
	role     *role
	op       int  // its operation in the batch
	inherits bool // claims wait that another dispatcher was to grant
}

// dispatches reports whether this instance is the dispatcher of a pool.
func (c *core) dispatches(p *poolView) bool {
	r := c.roles[p.name]
	return r != nil && r.rev > 0 && p.dispatcher.rev > 0 && p.dispatcher.lease == r.lease
}

// route is how the slots of a claim can be granted.
type route int

const (
	routeDirect   route = iota // by its own instance: no claim waits for its pools
	routeDispatch              // by this instance, which is the dispatcher
	routeQueue                 // by another instance, which is, or is to be, the dispatcher
	routeUnknown               // too little is known of its pools
)

// routeOf is how claims with those needs are granted now. The dispatcher of the first pool
// grants a claim of several.
func (c *core) routeOf(needs []Need) route {
	if len(needs) == 0 || c.dispatches(c.view.pool(needs[0].Pool)) {
		return routeDispatch
	}
	r := routeDirect
	for _, n := range needs {
		switch p := c.view.pool(n.Pool); {
		case p.unseen:
			return routeUnknown
		case p.queued.rev > 0:
			r = routeQueue
		case p.stale && r == routeDirect:
			r = routeUnknown
		}
	}
	return r
}

// entryRoute is [core.routeOf] for an entry. One that has lost many races waits for a
// dispatcher, even if no claim waits yet.
func (c *core) entryRoute(e *entry) route {
	r := c.routeOf(e.needs)
	if r == routeDirect && e.conflicts >= queueAfter && c.waiterLeases != nil && !e.unwritable {
		return routeQueue
	}
	return r
}

// dispatching reports whether this instance is the dispatcher of any pool.
func (c *core) dispatching() bool {
	for name := range c.roles {
		if c.dispatches(c.view.pool(name)) {
			return true
		}
	}
	return false
}

// checkRoles forgets the roles that other instances have taken, or that ended with their
// leases.
func (c *core) checkRoles() {
	for _, name := range sortedKeys(c.roles) {
		r, p := c.roles[name], c.view.pool(name)
		switch mine := p.dispatcher.rev > 0 && p.dispatcher.lease == r.lease; {
		case mine && r.rev == 0:
			r.rev = p.dispatcher.rev // the outcome of the put was unknown
		case !mine && p.dispatcher.at >= r.rev:
			c.endRole(name)
		}
	}
}

// checkDispatchers notes which dispatchers have put their keys since the last check.
func (c *core) checkDispatchers(now time.Time) {
	for _, p := range c.view.order {
		if d := &p.dispatcher; d.noticed != d.rev {
			d.noticed, d.since = d.rev, now
		}
	}
}

// silent is for how long the key of the dispatcher is known not to have been put.
func (p *poolView) silent(now time.Time) time.Duration {
	d := &p.dispatcher
	if p.stale {
		now = p.markedAt
	}
	if d.noticed != d.rev {
		return 0
	}
	return max(0, now.Sub(d.since))
}

// endRole forgets that this instance is the dispatcher of a pool.
func (c *core) endRole(pool string) {
	if r := c.roles[pool]; r != nil {
		delete(c.roles, pool)
		c.waiterLeases.Release(r.lease, 1)
	}
}

// state returns what decides about the dispatcher of a pool, once the batch is carried out.
// Concerned is set if this instance keeps slots of another pool for claims that wait for both.
func (c *core) state(p *poolView, b *builder, concerned bool, now time.Time) dispatchState {
	s := dispatchState{
		exists: p.dispatcher.rev > 0, mine: c.dispatches(p), former: p.dispatcher.by == c.name() && !c.dispatches(p), queued: p.queued.rev > 0,
		silent: p.silent(now), patience: c.patience(), blind: p.stale,
	}
	s.waits = slices.ContainsFunc(b.b.puts, func(l waiterPut) bool { return l.e.wants(p) }) ||
		slices.ContainsFunc(c.queue, func(e *entry) bool {
			return (e.inQueue || e.deferred) && e.state == queued && !b.leaves(e) && e.wants(p)
		})
	s.queue = s.waits || c.othersWait(p, b)
	s.waits = s.waits || concerned
	if r := c.roles[p.name]; s.mine && !r.idleSince.IsZero() {
		s.idle = now.Sub(r.idleSince)
	}
	if s.mine && !s.blind {
		short := c.short(p, now)
		s.recall = short != nil && p.recall.at >= c.roles[p.name].recalled && p.recall.lacks(short, p.spec.Retain, now)
	}
	if s.exists && !s.mine && s.waits && s.silent >= s.patience && !s.blind {
		s.fits = p.spec.Retain > 0 || c.anyFits(p) || c.anyOverdue(p, now)
	}
	return s
}

// patience is for how long this instance accepts that a dispatcher does not put its key.
func (c *core) patience() time.Duration {
	return silentAfter + time.Duration(hash(c.host+"/"+c.instance))%silentSpread
}

// leaves reports whether the batch takes an entry out of the wait queue, unless nothing of it
// happens.
func (b *builder) leaves(e *entry) bool { return b.granted[e] && b.b.shape == flat }

// othersWait reports whether others than the entries of this instance wait for a pool, or hold
// slots of it under a condition that they have not confirmed, once the batch is carried out.
func (c *core) othersWait(p *poolView, b *builder) bool {
	if p.waiting > 0 {
		for _, w := range c.view.waiters {
			gone := b.dispatched[w] && b.b.shape == flat
			if c.ours(w) { // an entry represents it, or it is about to be deleted
				e := c.entries[w.order.Claim]
				gone = e != nil && e.order == w.order && e.inQueue || b.dropping(w.order)
			}
			if !gone && slices.Contains(w.in, p) {
				return true
			}
		}
	}
	for _, n := range c.view.notices {
		if n.conditional && n.pool == p && n.by.name != c.name() {
			return true
		}
	}
	return slices.ContainsFunc(b.b.grants, func(g *grant) bool {
		return g.notice != nil && g.notice.conditional && c.view.pool(g.e.needs[0].Pool) == p
	})
}

// anyFits reports whether a claim that waits for a pool could be granted.
func (c *core) anyFits(p *poolView) bool {
	var waiting []*admit.Waiter
	for _, w := range c.view.waiters {
		w.waiting.Yielded, w.waiting.Mine = c.passed(w), true
		waiting = append(waiting, w.waiting)
	}
	for _, i := range admit.Admit(c.view.capacities(), waiting).Grants {
		if slices.ContainsFunc(waiting[i].Needs, func(n admit.Need) bool { return n.Pool == p.number }) {
			return true
		}
	}
	return false
}

// beats has this instance put its keys of dispatchers again where that is due: before the
// grants, of which there may be more than a batch takes.
func (c *core) beats(b *builder, now time.Time) {
	if c.alone != nil || c.waiterLeases == nil || now.Before(c.shelf.until) && c.shelf.duties {
		return
	}
	for _, name := range sortedKeys(c.roles) {
		p, r := c.view.pool(name), c.roles[name]
		s := dispatchState{mine: c.dispatches(p), blind: p.stale, queue: len(c.queue) > 0 || p.waiting > 0, silent: p.silent(now)}
		if !r.idleSince.IsZero() {
			s.idle = now.Sub(r.idleSince)
		}
		if s.duty() == beat {
			b.duty(p, beat)
		}
	}
}

// duties adds to the batch what this instance has to do about dispatchers.
func (c *core) duties(b *builder, now time.Time) {
	if c.waiterLeases == nil || now.Before(c.shelf.until) && c.shelf.duties {
		return
	}
	var concerned map[*poolView]bool
	pools := map[*poolView]bool{}
	for name := range c.roles {
		pools[c.view.pool(name)] = true
	}
	for _, l := range b.b.puts {
		pools[c.view.pool(l.e.needs[0].Pool)] = true
	}
	others := now.Sub(c.dutiesAt) >= beatEvery/4 // the dispatchers of pools that claims wait for
	if others {
		for _, e := range c.queue {
			if e.state != queued || !e.written && !e.deferred {
				continue
			}
			pools[c.view.pool(e.needs[0].Pool)] = true
		}
		concerned = c.concerned(b)
	}
	for p := range b.queued {
		pools[p] = true
	}
	if others {
		for _, p := range c.view.order {
			pools[p] = pools[p] || p.queued.rev+p.dispatcher.rev > 0
		}
	}
	byNumber := func(a, b *poolView) int { return cmp.Compare(a.number, b.number) }
	for _, p := range slices.SortedFunc(maps.Keys(pools), byNumber) {
		if pools[p] && !b.duty(p, c.state(p, b, concerned[p], now).duty()) {
			return
		}
	}
	if others && len(b.b.duties) == 0 {
		c.dutiesAt = now
	}
}

// concerned returns the pools of claims of several pools of which this instance is the
// dispatcher of one: it keeps its slots for them. Claims of pools that those are short of now
// are to wait.
func (c *core) concerned(b *builder) map[*poolView]bool {
	pools := map[*poolView]bool{}
	for _, w := range c.view.waiters {
		if len(w.in) < 2 || !slices.ContainsFunc(w.in, c.dispatches) {
			continue
		}
		for _, p := range w.in {
			pools[p] = true
		}
		for _, p := range c.shortPools(w.needs, w.value.Reserve) {
			if p.queued.rev == 0 && !b.queued[p] && !c.passed(w) && b.fits(0, 1, 0) {
				b.queued[p] = true
				b.ops = append(b.ops, queuedPut(c.view, p.name))
			}
		}
	}
	return pools
}

// shortPools returns the pools whose other claims are to wait for a claim: those that it is
// short of, or where others wait already; all, if it reserves.
func (c *core) shortPools(needs []Need, reserves bool) []*poolView {
	var short []*poolView
	for _, n := range needs {
		p := c.view.pool(n.Pool)
		if reserves && p.spec.Limit != Unlimited || p.queued.rev > 0 || !p.stale && !p.has(n.N) {
			short = append(short, p)
		}
	}
	if len(short) == 0 {
		short = append(short, c.view.pool(needs[0].Pool))
	}
	return short
}

// duty adds one duty to the batch.
func (b *builder) duty(p *poolView, d duty) bool {
	if d == noDuty || slices.ContainsFunc(b.b.duties, func(o dutyOp) bool { return o.pool == p }) {
		return true
	}
	c := b.c
	r := &role{}
	if d != tidy {
		if r = c.role(p); r == nil {
			return true // it is tried again when its lease is there
		}
	}
	const ops = 3
	if !b.fits(0, ops+1, 0) {
		return false
	}
	key, queued, recall := c.view.keys.Dispatcher(p.name), c.view.keys.Queued(p.name), c.view.keys.Recall(p.name)
	put := store.Put(key, store.Encode(dispatcherValue{V: store.Now, Host: c.host, Instance: c.instance}), r.lease)
	noneWaits := store.NonePutSince(c.view.keys.Waiters(p.name), p.rev)
	t := &pb.TxnRequest{Compare: []*pb.Compare{store.LeaseEquals(key, r.lease)}, Success: []*pb.RequestOp{put}}
	switch d {
	case takeRole, replace:
		t.Compare = []*pb.Compare{store.ModEquals(key, p.dispatcher.rev)}
		if p.spec.Retain > 0 { // it finds out whether it must when it knows the pool
			t.Success = append(t.Success, store.Put(recall, store.Encode(c.firstRecall(b, p)), r.lease))
		}
	case recallSlots:
		t.Success = []*pb.RequestOp{store.Put(recall, store.Encode(c.short(p, b.now)), r.lease)}
	case stepDown:
		t.Compare = append(t.Compare, noneWaits)
		t.Success = []*pb.RequestOp{store.Delete(key), store.Delete(queued)}
	case tidy:
		t.Compare = []*pb.Compare{store.ModEquals(key, p.dispatcher.rev), noneWaits}
		t.Success = []*pb.RequestOp{store.Delete(key), store.Delete(queued)}
	}
	if (d == stepDown || d == tidy) && (p.recall.rev > 0 || p.spec.Retain > 0) {
		t.Success = append(t.Success, store.Delete(recall))
	}
	b.ops = append(b.ops, store.Nest(t))
	b.kept = max(b.kept, ops) // a child may have as many operations as the root leaves to it
	inherits := d == replace || d == takeRole && p.queued.rev > 0 && !b.queued[p]
	b.b.duties = append(b.b.duties, dutyOp{d, p, r, len(b.ops) - 1, inherits})
	return true
}

// role returns the role of this instance in a pool, or one that it can try to get; nil while
// there is no lease for it.
func (c *core) role(p *poolView) *role {
	r := c.roles[p.name]
	if r == nil {
		lease, ok := c.waiterLeases.Acquire(WaiterTTL, 1)
		if !ok {
			return nil
		}
		r = &role{lease: lease}
		c.roles[p.name] = r
	}
	return r
}

// onDuty takes what a committed batch did about a dispatcher.
func (c *core) onDuty(o dutyOp, done bool, rev int64, now time.Time) {
	name := o.pool.name
	switch {
	case o.duty == tidy:
		if done {
			o.pool.noneWaits(rev)
		}
	case c.roles[name] != o.role: // its lease was lost meanwhile
	case !done && (o.duty == takeRole || o.duty == replace):
		c.endRole(name) // another instance was faster
	case !done: // the view will show why
	case o.duty == stepDown:
		o.pool.noneWaits(rev)
		c.endRole(name)
	case o.duty == recallSlots:
		c.metrics.recalls.Inc()
		o.role.recalled = rev
	default:
		o.role.rev = rev
		if o.inherits {
			o.role.inherited = rev
		}
		o.pool.dispatcher.noticed, o.pool.dispatcher.since = rev, now
		if o.pool.dispatcher.know(rev, rev) {
			o.pool.dispatcher.by, o.pool.dispatcher.lease = c.name(), o.role.lease
		}
		c.dirty, c.refollow = true, c.refollow || o.duty != beat
	}
}
