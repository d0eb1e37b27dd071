package pool

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// A claim that is granted together with other writes, such as that of a step, can't be granted without
// a write. But its slots can be kept: if this instance has slots of its kind already, the transaction
// compares that their keys are unchanged, and leaves them as they are. So such a claim costs no more
// than its other writes. The slots are those of a claim that is released in the same transaction, or
// idle ones. From then on they are as if they had been granted again without a write: see [retention].
//
// The keys of kept slots do not show whether a write was committed whose outcome is unknown. The other
// keys on the lease of the claim do: the write has put them, or deleted them. They are its witnesses,
// and are read when earlier writes are fenced.

// idleSlots are slots that this instance retains and that no claim holds.
type idleSlots struct {
	holding
	needs []Need
	since time.Time
}

// regrantable reports whether a claim could be granted slots without a write: it has nothing
// else to write or to compare, and never had a waiter in etcd that may be there still.
func (c *core) regrantable(e *entry) bool {
	if _, kept := c.places[e.req.ID]; kept || e.req.conditional() || e.req.Bridge || e.req.Sole || e.req.Remote || c.grantable(e.req.ID) {
		return false
	}
	known, _ := c.holding(e.req.ID)
	return len(known) == 0
}

// mayRetain reports whether slots may be granted without a write now, as far as this does not
// depend on to whom.
func (c *core) mayRetain(h *holding, needs []Need, now time.Time) bool {
	if c.phase != normal || c.unresolved != nil || c.stopping || c.endCause != nil || c.full(now) || c.lag(c.revokedRev, now) >= newsWithin {
		return false
	}
	if _, lost := c.lost[h.lease]; lost || !c.leases.Valid(h.lease) {
		return false
	}
	for _, n := range needs {
		if p := c.view.pool(n.Pool); p.specRev > h.admitted || c.lag(min(p.specAt, p.recall.at), now) >= newsWithin || c.following(p).restored {
			return false
		}
	}
	return true
}

// keeps reports whether the slots of a claim that is released together with other writes may stay with
// this instance.
func (c *core) keeps(e *entry, now time.Time) bool {
	if e.combined == nil || len(e.combined.extra.Then) == 0 || c.retains(e.needs) == 0 {
		return false
	}
	c.retention(e.kind).released = now // what the rest depends on is asked of etcd more often from now on
	if len(e.slots) > wideKeys || e.former || e.rewriting || e.overdue() ||
		!e.revoked.IsZero() || e.claim.Err() != nil || e.req.Bridge || !c.mayRetain(&e.holding, e.needs, now) {
		return false
	}
	// The other keys on its lease go with it, and show that it has ended.
	deleted := func(put *pb.RequestOp) bool {
		return slices.ContainsFunc(e.combined.extra.Then, func(op *pb.RequestOp) bool {
			d := op.GetRequestDeleteRange()
			return d != nil && len(d.RangeEnd) == 0 && string(d.Key) == string(put.GetRequestPut().GetKey())
		})
	}
	return len(e.req.Extra.Leased) > 0 && !slices.ContainsFunc(e.req.Extra.Leased, func(put *pb.RequestOp) bool { return !deleted(put) })
}

// keepable reports whether a claim that is to be granted can get slots that this instance has.
func (c *core) keepable(e *entry) bool {
	return e.state == queued && e.offer == nil && !e.dropped && c.ready(e) && !e.req.Bridge && !e.req.Remote && len(e.req.Extra.Leased) > 0 &&
		e.retryAt <= c.shown(e) && !c.defers(e) && c.elsewhere(e.req.ID) == nil && c.labels[e.req.ID] == 0 &&
		c.usable(e) && (!e.inQueue || c.waiterRev(e) != 0)
}

// keeper returns the first claim of a kind, in the order of the wait queue, that can get slots which
// this instance has, and that is not granted by a batch already; nil if there is none.
func (c *core) keeper(kind string, h *holding, granted map[*entry]bool) (first *entry) {
	order := func(e *entry) Order {
		o := e.order
		o.Since = cmp.Or(o.Since, e.since(c.seen))
		return o
	}
	for _, e := range c.queue {
		if e.kind == kind && e.leased(h.slots) <= h.reserved && !granted[e] && c.keepable(e) &&
			(first == nil || order(e).Compare(order(first)) < 0) {
			first = e
		}
	}
	return first
}

// newcomer returns the claim of a kind that is to be granted by the next write and could as well be
// granted slots without one: the first of the highest priority. It is nil if there is none, or if
// another claim of this instance waits for one of the pools.
func (c *core) newcomer(kind string, needs []Need) (first *entry) {
	for _, e := range c.queue {
		switch {
		case e.state != queued || !slices.ContainsFunc(needs, func(n Need) bool { return e.wants(c.view.pool(n.Pool)) }):
		case e.kind != kind || e.inQueue || e.written || e.waiterLease != 0 || e.order.Since != 0 || e.takes != 0 || e.succeeds ||
			e.offer != nil || e.dropped || c.labels[e.req.ID] > 0 || !c.regrantable(e):
			return nil
		case first == nil || e.req.Priority > first.req.Priority || e.req.Priority == first.req.Priority && e.arrived.Before(first.arrived):
			first = e
		}
	}
	return first
}

// keepReleased has the slots of a claim that is released stay with this instance: with the next claim
// that wants them, or idle. It reports false if they are to be given back.
func (b *builder) keepReleased(e *entry, bytes int) bool {
	c := b.c
	if b.b.shape != flat && b.b.shape != nested || !c.keeps(e, b.now) {
		return false
	}
	next := c.keeper(e.kind, &e.holding, b.granted)
	switch local := c.retention(e.kind).local; {
	case next != nil && !c.recalled(e.needs, e.lease, next.req.Priority):
	case len(local) > 0 && !c.recalled(e.needs, e.lease, local[0].req.Priority):
		next = nil
	case next != nil || len(local) > 0 || c.isRecalled(e.needs) || c.ownShort(e.needs):
		return false
	}
	x := e.combined.extra
	if b.b.shape == nested { // the release may fail alone: the next batch grants them
		op := b.nestUnder(x.If, []*pb.Compare{heldCompare(c.view, e)}, x.Then)
		b.b.releases, b.bytes = append(b.b.releases, releaseOp{e: e, op: op, kept: true}), b.bytes+bytes
		return true
	}
	cmps, ops, size := b.cmps, b.ops, b.bytes
	b.cmps = append(append(b.cmps, heldCompare(c.view, e)), x.If...)
	b.ops = append(b.ops, x.Then...)
	b.bytes += bytes
	b.b.releases = append(b.b.releases, releaseOp{e: e, kept: true, next: next})
	if next == nil || b.keep(next, &idleSlots{holding: e.shownHolding(), needs: e.needs, since: b.now}, false) {
		return true
	}
	b.cmps, b.ops, b.bytes = cmps, ops, size
	b.b.releases = b.b.releases[:len(b.b.releases)-1]
	return false
}

// keep grants a claim slots that this instance has. Idle is set if no claim of the batch releases them.
func (b *builder) keep(e *entry, i *idleSlots, idle bool) bool {
	c := b.c
	if !b.takePlace(e) {
		return false
	}
	if stamp := e.req.Extra.Stamp; stamp != nil {
		stamp(b.now)
	}
	var t claimTxn
	if idle {
		t.held(c.view, i.slots, i.rev)
	}
	have := compared{}
	if b.b.shape == flat {
		have = b.have
	}
	for _, n := range e.needs {
		t.spec(c.view, c.view.pool(n.Pool), &have)
	}
	if e.inQueue {
		t.cmps = append(t.cmps, store.ModEquals(c.view.keys.Waiter(e.needs[0].Pool, e.order.String()), c.waiterRev(e)))
	}
	t.extras(c.view, e, i.lease)
	g := &grant{e: e, slots: i.slots, kept: i, idle: idle}
	if fits := b.b.shape == nested && b.grantNested(e, &t, g) || b.b.shape == flat && b.grantFlat(e, &t, g); !fits {
		if e.placeFrom != nil {
			e.returnPlace()
		}
		return false
	}
	if b.b.shape == flat {
		b.have = have
	}
	b.b.grants, b.b.leases = append(b.b.grants, g), append(b.b.leases, i.lease)
	b.granted[e], e.state = true, claiming // what follows in the plan passes it
	return true
}

// keepIdle grants claims the idle slots of this instance.
func (c *core) keepIdle(b *builder) {
	if c.alone != nil || b.b.shape == wide {
		return
	}
	for _, i := range c.sortedIdle() {
		if !c.mayRetain(&i.holding, i.needs, b.now) {
			continue
		}
		if e := c.keeper(kindOf(i.needs), &i.holding, b.granted); e != nil && b.keep(e, i, true) {
			c.dropIdle(i)
		}
	}
}

// waitsHere reports whether a claim may wait on this instance alone: it can get slots that are kept,
// and some of its kind were released here a moment ago.
func (c *core) waitsHere(e *entry, now time.Time) bool {
	r, within := c.retentions[e.kind], c.retains(e.needs)
	if r == nil || within == 0 || e.inQueue || e.req.Remote || len(e.req.Extra.Leased) == 0 {
		return false
	}
	until := e.arrived.Add(within)
	if turns := r.released.Add(within / turnPart); turns.Before(until) {
		until = turns
	}
	if !now.Before(until) {
		return false
	}
	c.wakeAt(until)
	return true
}

// keepCommitted takes that a claim was released whose slots stay with this instance, at rev, or at an
// unknown revision if that is 0.
func (c *core) keepCommitted(o releaseOp, rev int64, now time.Time) {
	e := o.e
	if rev != 0 {
		e.answerCombined(rev, nil)
	} else {
		e.answerCombined(0, errOutcomeUnknown)
	}
	switch {
	case o.next != nil:
		c.retire(e)
	case c.taken(&e.holding, c.resolvedAt(rev, &e.holding)):
		c.done(e)
	case !c.mayRetain(&e.holding, e.needs, now) || !c.passOn(e, now):
		e.claim.end(nil)
		c.releases, c.dirty = append(c.releases, e), true
	}
}

// witnesses returns the keys that show what a batch did to slots that it kept.
func (b *batch) witnesses() (keys []string) {
	if b == nil {
		return nil
	}
	for _, g := range b.releases {
		if g.kept {
			keys = append(keys, g.e.witness())
		}
	}
	for _, g := range b.grants {
		if g.kept != nil {
			keys = append(keys, g.e.witness())
		}
	}
	return keys
}

// witness is a key that exists while the claim of an entry with other keys on its lease is held.
func (e *entry) witness() string { return string(e.req.Extra.Leased[0].GetRequestPut().Key) }

// noteWitnesses takes the witnesses from the answer to a fence.
func (c *core) noteWitnesses(resp *pb.TxnResponse) {
	c.witnesses = map[string]*mvccpb.KeyValue{}
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			c.witnesses[string(kv.Key)] = kv
		}
	}
}

// witnessedEnd reports whether a claim was released by a batch whose outcome was unknown: together with
// the grant to the next one, if there is one.
func (c *core) witnessedEnd(o releaseOp, b *batch) bool {
	if o.next != nil {
		return slices.ContainsFunc(b.grants, func(g *grant) bool { return g.e == o.next && c.witnessedStart(g, b) != 0 })
	}
	kv := c.witnesses[o.e.witness()]
	return kv == nil || kv.ModRevision != o.e.fence.Revision()
}

// witnessedStart returns the revision at which a claim was granted by a batch whose outcome was
// unknown, 0 if it was not.
func (c *core) witnessedStart(g *grant, b *batch) int64 {
	if kv := c.witnesses[g.e.witness()]; kv != nil && store.LeaseID(kv.Lease) == g.kept.lease && kv.ModRevision > b.rev {
		return kv.ModRevision
	}
	return 0
}

// grantKept makes an entry the holder of slots that this instance has kept, at rev.
func (c *core) grantKept(g *grant, extra []*pb.ResponseOp, rev int64, now time.Time) {
	e, h := g.e, g.kept.holding
	if e.inQueue {
		c.view.committedWaiterDelete(poolNames(e.req.Slots), e.order, rev)
	}
	c.releaseLease(e)
	e.record = e.recordOf(&h, store.FenceAt(rev), rev, now)
	journaled := c.journaled(&h, e)
	c.regrant(e, h, extra, now)
	if !journaled {
		c.rewriteNow(e) // until then, the next life takes its slots for orphaned
	}
	if c.taken(&h, h.rev) {
		c.gone(e)
	}
}

// taken reports whether slots that this instance has kept were taken away, as far as they are known at
// a revision. The watch may show that before the answer to a batch.
func (c *core) taken(h *holding, at int64) bool {
	ref := h.slots[0].ref
	s, ok := c.view.slot(ref)
	p := c.view.pool(ref.pool)
	return p.whole && p.rev >= at && (!ok || s.rev != h.rev)
}

// resolvedAt is the revision at which slots are known that a batch has kept: it was answered at rev. If
// that is 0, its outcome was unknown, and after a restore of etcd the slots may be of another history.
func (c *core) resolvedAt(rev int64, h *holding) int64 {
	if rev != 0 {
		return h.rev
	}
	return min(h.rev, c.resolveAt)
}

// addIdle takes that slots are idle.
func (c *core) addIdle(i *idleSlots) {
	i.regranted = time.Time{}
	c.idle[i.shown] = i
	c.label(i.shown.id, 1)
	r := c.retention(kindOf(i.needs))
	r.idle = append(r.idle, i)
	c.wakeAt(i.since.Add(c.retains(i.needs)))
	if w, ok := c.wanted[i.shown.id]; ok && w.fence == i.shownFence {
		c.revokeRetained(i.shown.id, w.fence, w.forced)
	}
}

// returnIdle gives idle slots back.
func (c *core) returnIdle(i *idleSlots) {
	c.dropIdle(i)
	e := ownerless(i.shown.id, i.slots, i.rev)
	e.holding = i.holding
	c.giveBack(e, nil)
}

// dropIdle forgets idle slots.
func (c *core) dropIdle(i *idleSlots) {
	delete(c.idle, i.shown)
	c.label(i.shown.id, -1)
	r := c.retentions[kindOf(i.needs)]
	if last := len(r.idle) - 1; r.idle[last] == i { // slots are used again from the end
		r.idle[last], r.idle = nil, r.idle[:last]
	} else {
		r.idle = slices.DeleteFunc(r.idle, func(o *idleSlots) bool { return o == i })
	}
}

// returnAllIdle gives all idle slots back for which that is so.
func (c *core) returnAllIdle(which func(*idleSlots) bool) {
	for _, i := range c.sortedIdle() {
		if which(i) {
			c.returnIdle(i)
		}
	}
}

// checkIdle gives idle slots back that are not to be retained under the present specs.
func (c *core) checkIdle(now time.Time) {
	if c.retainedUnder == c.view.specs {
		return
	}
	c.retainedUnder = c.view.specs
	c.returnAllIdle(func(i *idleSlots) bool { return c.retains(i.needs) == 0 || !c.mayRetain(&i.holding, i.needs, now) })
}

// returning counts the idle slots, and those that are being given back.
func (c *core) returning() int {
	n := len(c.idle)
	count := func(e *entry) {
		if e.claim.Fence == 0 { // it never was a claim
			n++
		}
	}
	for _, e := range slices.Concat(c.releases, c.shelf.releases) {
		count(e)
	}
	for _, b := range []*batch{c.inFlight, c.unresolved} {
		if b != nil {
			for _, o := range b.releases {
				count(o.e)
			}
		}
	}
	return n
}

func (c *core) sortedIdle() []*idleSlots {
	return slices.SortedFunc(maps.Values(c.idle), func(a, b *idleSlots) int {
		return cmp.Or(cmp.Compare(a.shown.id, b.shown.id), a.shown.main.compare(b.shown.main))
	})
}

// goneIdle takes that idle slots are no longer this instance's, by no doing of its own.
func (c *core) goneIdle(i *idleSlots) {
	c.dropIdle(i)
	c.loseSlots(&i.holding)
}

// loseSlots takes that slots which no claim holds are gone.
func (c *core) loseSlots(h *holding) {
	c.unjournal(h)
	c.leases.Release(h.lease, h.reserved)
}

// restoreIdle takes that idle slots were not granted.
func (c *core) restoreIdle(i *idleSlots, now time.Time) {
	c.addIdle(i)
	if c.idle[i.shown] != i {
		return // its claim was revoked meanwhile
	}
	if c.taken(&i.holding, i.rev) {
		c.goneIdle(i)
	} else if c.isRecalled(i.needs) || !c.mayRetain(&i.holding, i.needs, now) {
		c.returnIdle(i)
	}
}

// rewritten takes that the keys of a claim show it since a revision.
func (c *core) rewritten(e *entry, rev int64) {
	c.unregrant(e)
	c.unjournal(&e.holding)
	e.rewriting, e.former, e.shown, e.shownFence, e.rev = false, false, claimKey{}, e.fence, rev
	for i, s := range e.slots {
		rec := e.record
		if i > 0 {
			rec = nil
		}
		c.view.committedSlot(s.ref, slot{n: s.n, claim: e.key(), rev: rev, lease: e.lease}, rec)
	}
	if p := c.view.pool(e.slots[0].ref.pool); p.whole && !c.holdsSlots(e) {
		c.gone(e)
	}
}

// unwritten takes that the keys of a claim were not put again: it is tried later, unless they are
// gone.
func (c *core) unwritten(e *entry, gone bool) {
	e.rewriting, c.rewrites, c.dirty = false, true, true
	if gone {
		c.gone(e)
	}
}

// noteGiven records that the slots of a claim are to be given back, or are not after all.
func (c *core) noteGiven(e *entry, given bool) {
	if e.given == given {
		return
	}
	e.given = given
	if given {
		c.noteHeld(e, -1)
	} else {
		c.noteHeld(e, 1)
	}
}

// noteHeld adds the slots of a claim to what recalls count, or with sign -1 subtracts them.
func (c *core) noteHeld(e *entry, sign int) {
	for _, n := range e.needs {
		surplus := c.view.pool(n.Pool).recall.surplus
		if _, listed := surplus[e.lease]; listed {
			surplus[e.lease] += sign * n.N
		}
	}
}
