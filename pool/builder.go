package pool

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// builder makes one batch. It takes operations as long as they fit into what etcd
// allows in a transaction, and reports false for one that does not.
type builder struct {
	c     *core
	b     *batch
	place *placer
	since stamp
	now   time.Time

	cmps  []*pb.Compare
	ops   []*pb.RequestOp // at the root
	slots int             // operations that deletes of slots will need
	kept  int             // operations that are kept for what is granted
	bytes int

	have compared // by the root of a flat batch
	// overwritten are keys given back that a grant takes in place.
	overwritten map[slotRef]bool
	over        map[*poolView]bool // overfull, once asked
	granted     map[*entry]bool
	// dispatched are the waiters of others that the batch grants, and notified how many of
	// each instance; queued are the pools whose claims it has wait.
	dispatched map[*waiter]bool
	queued     map[*poolView]bool
	next       *entry // too wide for company: to be sent alone
}

func (c *core) newBuilder(s shape, now time.Time) *builder {
	return &builder{
		c: c, b: &batch{shape: s, sent: map[slotRef]sentSlot{}, at: now, rev: c.seen}, place: newPlacer(c.view), since: stampOf(now), now: now,
		overwritten: map[slotRef]bool{}, over: map[*poolView]bool{},
		granted: map[*entry]bool{}, dispatched: map[*waiter]bool{}, queued: map[*poolView]bool{},
	}
}

// fits reports whether the root can take so many more compares, operations and bytes.
// One compare and one operation are the guard's.
func (b *builder) fits(cmps, ops, bytes int) bool {
	if b.c.isolate > 0 && b.things() > 0 {
		return false
	}
	most := maxOps
	if b.b.shape == nested {
		most = maxChildren
	}
	return len(b.cmps)+cmps < maxOps && len(b.ops)+b.slots+b.kept+ops < most && b.bytes+bytes <= maxBytes
}

// things is how many entries and keys the batch is about.
func (b *builder) things() int { return b.b.things() }

// release gives the slots of an entry back.
func (b *builder) release(e *entry) bool {
	var x store.Extra
	if e.combined != nil {
		x = e.combined.extra
	}
	ops, cmps, bytes := len(e.slots)+len(x.Then), 1+grantCompares+len(x.If), bytesOf(x.Then)
	if b.b.shape == nested {
		ops, cmps = 1, 0
	}
	if len(e.slots) > maxChildOps && b.b.shape != freeing {
		// Too many keys for one level: alone, and in children.
		return b.releaseWide(e)
	}
	fits := func() bool { return b.b.shape == freeing || b.fits(cmps, ops, bytes) }
	reserved := b.kept
	b.kept = 0 // waiters do not get slots that are kept
	kept := fits() && b.keepReleased(e, bytes)
	if b.kept = reserved; kept || !fits() {
		return kept
	}
	g := releaseOp{e: e}
	b.c.noteGiven(e, true) // so the next release of this batch may keep its slots
	if b.b.shape == nested {
		then := append(slotDeletes(b.c.view.keys, e.slots, nil), x.Then...)
		g.op = b.nestUnder(x.If, []*pb.Compare{heldCompare(b.c.view, e)}, then)
	} else {
		b.cmps = append(append(b.cmps, heldCompare(b.c.view, e)), x.If...)
		b.ops = append(b.ops, x.Then...)
		b.slots += len(e.slots)
		if b.b.shape == flat {
			for _, s := range e.slots {
				b.place.free(s)
			}
		}
	}
	b.bytes += bytes
	b.b.releases = append(b.b.releases, g)
	return true
}

// releaseWide gives back a claim of more keys than a child can delete.
func (b *builder) releaseWide(e *entry) bool {
	if len(b.ops) > 0 || len(b.cmps) > 0 {
		return false
	}
	b.b.shape = wide
	b.cmps = append(b.cmps, heldCompare(b.c.view, e))
	b.ops = children(slotDeletes(b.c.view.keys, e.slots, nil), len(b.cmps)+1)
	b.b.releases = append(b.b.releases, releaseOp{e: e})
	return true
}

// nest adds a child and returns its index among the operations of the root.
func (b *builder) nest(cmps []*pb.Compare, then []*pb.RequestOp) int {
	b.ops = append(b.ops, store.Nest(&pb.TxnRequest{Compare: cmps, Success: then}))
	return len(b.ops) - 1
}

// drop takes a waiter out of its wait queues.
func (b *builder) drop(d drop) bool {
	if !b.fits(0, len(d.pools), 0) {
		return false
	}
	b.ops = append(b.ops, waiterDeletes(b.c.view, d.pools, d.order)...)
	b.b.drops = append(b.b.drops, d)
	return true
}

// revocation deletes the key by which an operator revoked a claim.
func (b *builder) revocation(key string) bool {
	if !b.fits(0, 1, 0) {
		return false
	}
	b.ops = append(b.ops, store.Delete(key))
	b.b.revokes = append(b.b.revokes, key)
	return true
}

// waiter writes an entry's waiter, and has other claims wait for the pools that it is short of.
func (b *builder) waiter(e *entry) bool {
	if b.dropping(e.order) {
		return true // its keys are on their way out: the next batch writes them
	}
	ops := waiterPuts(b.c.view, e, e.waiterLease)
	bytes := len(ops) * len(ops[0].GetRequestPut().Value)
	pools := b.c.shortPools(e.needs, e.reserve || e.conflicts >= queueAfter)
	for _, p := range pools {
		if !b.queued[p] {
			ops = append(ops, queuedPut(b.c.view, p.name))
		}
	}
	if !b.fits(0, len(ops), bytes) {
		return false
	}
	for _, p := range pools {
		b.queued[p] = true
	}
	b.ops = append(b.ops, ops...)
	b.readMarks(b.c.view.pool(e.needs[0].Pool))
	b.bytes += bytes
	b.b.puts = append(b.b.puts, waiterPut{e: e, reserve: e.reserve, lease: e.waiterLease, slots: e.lease})
	return true
}

// readMarks has the batch read who dispatches a pool that is not watched. If the pool retains slots, it
// does so in each batch, because the role ends often.
func (b *builder) readMarks(p *poolView) {
	gets := b.c.markGets(p)
	if !p.stale || p.spec.Retain == 0 && b.now.Sub(p.markedAt) < pollEvery/2 || !b.fits(0, len(gets), 0) ||
		slices.ContainsFunc(b.b.marks, func(m markRead) bool { return m.pool == p }) {
		return
	}
	b.b.marks = append(b.b.marks, markRead{p, len(b.ops)})
	b.ops = append(b.ops, gets...)
}

// dropping reports whether the batch takes that waiter out of its wait queues.
func (b *builder) dropping(o Order) bool {
	for _, d := range b.b.drops {
		if d.order == o {
			return true
		}
	}
	return false
}

// grantResult is the outcome of adding a grant.
type grantResult int

const (
	taken    grantResult = iota // in the batch
	unfit                       // not now: its keys do not fit as its slots do
	unplaced                    // its holder could not use its slots now
	unleased                    // no lease is ready
	tooWide                     // to be sent alone
	overrun                     // the batch is full
)

// takePlace takes the place of an entry that needs one: one that is free, or that of a claim
// which the batch releases, if the two happen only together.
func (b *builder) takePlace(e *entry) bool {
	if e.req.Place.Take() {
		return true
	}
	if b.b.shape != flat {
		return false
	}
	for _, g := range b.b.releases {
		if p := g.e.combined; p != nil && p.place.Pass(e.req.Place) {
			e.placeFrom = g.e
			return true
		}
	}
	return false
}

// grant takes the slots of an entry, and its place. One that is not granted although its
// slots fit keeps its place for the next try, unless that is still another entry's.
func (b *builder) grant(e *entry) grantResult {
	start := b.c.start
	if e.other != nil {
		start = hash(e.req.Holder.Host)
	}
	slots := b.place.place(e.needs, start)
	if slots == nil {
		return unfit
	}
	if !b.takePlace(e) {
		b.place.undo(slots)
		return unplaced
	}
	r := b.take(e, slots, func(t *claimTxn) {
		have := &compared{}
		if b.b.shape == flat {
			have = &b.have
		}
		b.c.roleCompares(t, e, have)
		t.compares(b.c.view, slots, b.overfull, have)
	})
	if r == taken {
		return r
	}
	if r != unleased { // else later entries leave it its slots: its lease may be ready for them
		b.place.undo(slots)
	}
	if e.placeFrom != nil {
		e.returnPlace()
	}
	return r
}

// take takes slots for an entry under compares.
func (b *builder) take(e *entry, slots []placed, compares func(*claimTxn)) grantResult {
	alone := len(slots) > wideKeys || b.b.shape == nested && b.c.childOps(e, slots) > maxChildOps
	if alone && b.things() > 0 {
		return tooWide
	}
	lease, acquired := e.lease, 0
	switch keys := e.leased(slots); {
	case e.other != nil && b.c.confirms(e.other, b.now):
		var ok bool
		if lease, ok = b.c.waiterLeases.Acquire(WaiterTTL, keys+1); !ok {
			return unleased
		}
		e.lease, e.lent = lease, keys+1
	case e.other == nil && e.reserved < keys:
		var ok bool
		if lease, ok = b.c.leases.Acquire(b.c.leaseDuration(e), keys); !ok {
			return unleased
		}
		acquired = keys
	}
	if alone {
		b.b.shape = wide
	}
	if stamp := e.req.Extra.Stamp; stamp != nil {
		stamp(b.now)
	}
	var t claimTxn
	compares(&t)
	t.writes(b.c.view, e, slots, lease, b.sinceOf(e))
	t.extras(b.c.view, e, lease)
	if e.offer != nil {
		t.others = append(t.others, store.Delete(e.offer.key))
	}
	g := &grant{e: e, slots: slots, groups: t.groups, whole: t.whole}
	if e.other != nil {
		var v noticeValue
		g.notice, v = b.c.notifies(e, slots, b.since)
		op := store.Put(g.notice.key, store.Encode(v), lease)
		t.others, t.bytes = append(t.others, op), t.bytes+len(op.GetRequestPut().Value)
	}
	var done bool
	switch b.b.shape {
	case wide:
		done = b.grantWide(e, &t)
	case nested:
		done = b.grantNested(e, &t, g)
	default:
		done = b.grantFlat(e, &t, g)
	}
	switch {
	case !done && acquired > 0:
		b.c.leases.Release(lease, acquired)
		return overrun
	case !done:
		b.c.unlend(e)
		return overrun
	case acquired > 0:
		b.c.releaseLease(e)
		e.lease, e.reserved = lease, acquired
	}
	b.granted[e] = true
	if e.other != nil {
		b.dispatched[e.other] = true
	} else {
		b.b.leases = append(b.b.leases, lease)
	}
	for i, s := range slots {
		own := sentSlot{value: t.puts[i].GetRequestPut().Value, n: s.n, claim: claimKey{e.req.ID, slots[0].ref}}
		if i == 0 {
			own.record = e.record
		}
		b.b.sent[s.ref] = own
	}
	b.b.grants = append(b.b.grants, g)
	return taken
}

// sinceOf is since when an entry that is granted now has its slots.
func (b *builder) sinceOf(e *entry) stamp {
	if e.takes != 0 {
		return stampOf(e.record.Since)
	}
	return b.since
}

// childOps is how many operations, or compares, a child for a grant needs.
func (c *core) childOps(e *entry, slots []placed) int {
	x := &e.req.Extra
	return len(slots) + 2*len(e.needs) + max(len(x.Then)+len(x.Leased), len(x.If)) + 4 // role, waiter, notices
}

func (b *builder) grantFlat(e *entry, t *claimTxn, g *grant) bool {
	var over []slotRef // given back by this batch: a put takes the place of the delete
	for _, s := range g.slots {
		if _, taken := b.c.view.slot(s.ref); taken && e.takes == 0 && g.kept == nil {
			over = append(over, s.ref)
		}
	}
	if !b.fits(len(t.cmps)+len(e.req.Extra.If), len(t.puts)+len(t.others)-len(over), t.bytes) {
		return false
	}
	for _, ref := range over {
		b.overwritten[ref] = true
		b.slots--
	}
	b.cmps = append(append(b.cmps, t.cmps...), e.req.Extra.If...)
	g.extraAt = len(b.ops) + len(t.puts)
	b.ops = append(append(b.ops, t.puts...), t.others...)
	b.bytes += t.bytes
	return true
}

// grantNested makes a child of a grant.
func (b *builder) grantNested(e *entry, t *claimTxn, g *grant) bool {
	if !b.fits(0, 1, t.bytes) {
		return false
	}
	then := slices.Concat(t.puts, t.others)
	g.op = b.nestUnder(e.req.Extra.If, t.cmps, then)
	g.extraAt = len(t.puts)
	b.bytes += t.bytes
	return true
}

// nestUnder is [builder.nest] with other conditions, which go around it, so that the
// answer distinguishes the two failures.
func (b *builder) nestUnder(conditions, cmps []*pb.Compare, then []*pb.RequestOp) int {
	if len(conditions) == 0 {
		return b.nest(cmps, then)
	}
	return b.nest(conditions, []*pb.RequestOp{store.Nest(&pb.TxnRequest{Compare: cmps, Success: then})})
}

func (b *builder) grantWide(e *entry, t *claimTxn) bool {
	b.cmps = append(append(b.cmps, t.cmps...), e.req.Extra.If...)
	b.ops = children(slices.Concat(t.puts, t.others), len(b.cmps)+1) // and the guard's
	return true
}

// overfull is [poolView.overfull], asked once a batch. A wide claim compares
// whole pools in any case: that costs one compare instead of fifty.
func (b *builder) overfull(p *poolView) bool {
	if b.b.shape == wide {
		return true
	}
	over, known := b.over[p]
	if !known {
		over = p.overfull()
		b.over[p] = over
	}
	return over
}

// finish returns the batch, nil if there is nothing in it.
func (b *builder) finish() *batch {
	b.b.queued = b.queued
	for _, g := range b.b.releases {
		if !g.kept && (b.b.shape == flat || b.b.shape == freeing) {
			b.ops = append(b.ops, slotDeletes(b.c.view.keys, g.e.slots, b.overwritten)...)
		}
	}
	if b.b.shape == freeing && len(b.ops) > maxChildOps {
		b.ops = children(b.ops, len(b.cmps))
	}
	if len(b.ops) == 0 {
		return nil
	}
	guard := &b.c.guard
	switch b.b.shape {
	case freeing:
		b.b.txn = &pb.TxnRequest{Compare: b.cmps, Success: b.ops}
	case nested:
		// The operations keep their indexes: the guard comes last.
		b.b.txn = &pb.TxnRequest{
			Compare: []*pb.Compare{guard.Compare()},
			Success: append(b.ops, guard.Put()),
		}
	default:
		// The failure branch shows whether the guard failed, or another condition.
		b.b.txn = &pb.TxnRequest{
			Compare: append(b.cmps, guard.Compare()),
			Success: append(b.ops, guard.Put()),
			Failure: []*pb.RequestOp{guard.Get()},
		}
		if b.b.shape == wide && len(b.b.grants) > 0 {
			b.b.txn.Failure = append(b.b.txn.Failure, store.Nest(&pb.TxnRequest{
				Compare: b.b.grants[0].e.req.Extra.If, Success: []*pb.RequestOp{guard.Get()},
			}))
		}
	}
	return b.b
}

// rewrite puts the keys of a claim again, so that they show it.
func (b *builder) rewrite(e *entry) bool {
	var t claimTxn
	t.held(b.c.view, e.slots, e.rev)
	t.writes(b.c.view, e, e.slots, e.lease, stampOf(e.record.Since))
	if b.b.shape == nested {
		if !b.fits(0, 1, t.bytes) {
			return false
		}
		b.b.rewrites = append(b.b.rewrites, releaseOp{e: e, op: b.nest(t.cmps, t.puts)})
	} else {
		if !b.fits(len(t.cmps), len(t.puts), t.bytes) {
			return false
		}
		b.cmps, b.ops = append(b.cmps, t.cmps...), append(b.ops, t.puts...)
		b.b.rewrites = append(b.b.rewrites, releaseOp{e: e})
	}
	b.bytes += t.bytes
	b.b.leases = append(b.b.leases, e.lease)
	e.rewriting = true
	return true
}

// rewriteRegrants has the keys of claims that were granted without a write show them: those that
// have held their slots for long enough, and others that fit into a batch that is sent anyway.
func (c *core) rewriteRegrants(b *builder, now time.Time) {
	if len(c.regrants) == 0 || !c.rewrites && b.things() == 0 {
		return
	}
	c.rewrites = false
	for _, e := range c.sortedRegrants() {
		// A claim that has ended is shown only if that is demanded: its slots can be freed by force.
		_, lost := c.lost[e.lease]
		if e.state != held || e.rewriting || lost || c.endCause != nil || e.claim.Err() != nil && !e.overdue() {
			c.wakeAt(now.Add(tickEvery))
			continue
		}
		if age, within := now.Sub(e.regranted), c.retains(e.needs); age < within/2 || age < within*3/4 && b.things() == 0 {
			continue
		}
		if slices.ContainsFunc(e.needs, func(n Need) bool { return c.following(c.view.pool(n.Pool)).restored }) {
			c.wakeAt(now.Add(tickEvery))
			continue
		}
		if !b.rewrite(e) {
			c.rewrites = true
			return
		}
	}
}
