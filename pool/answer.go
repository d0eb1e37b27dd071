package pool

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// fencePause and refusedPause are the delays after etcd failed or refused a
	// call, so that a dead etcd is not called in a tight loop.
	fencePause   = 100 * time.Millisecond
	refusedPause = 500 * time.Millisecond
	// shelfTime is how long what etcd refused is put aside.
	shelfTime = 10 * time.Second
)

// answer takes the answer to a call.
func (c *core) answer(call *call, resp *pb.TxnResponse, err error, now time.Time) {
	c.calling, c.inFlight = false, nil
	if err == nil && call.restores != c.restores {
		err = fmt.Errorf("the answer was on its way: %w", store.ErrRestored)
	}
	if errors.Is(err, store.ErrNoSpace) {
		c.fullUntil = now.Add(fullPause)
	}
	if err == nil {
		c.seen = max(c.seen, resp.Header.Revision)
	}
	switch {
	case call.batch == nil:
		c.fenceAnswer(resp, err, now)
	case err == nil && resp.Succeeded:
		c.committed(call.batch, resp, now)
	case err == nil:
		c.failed(call.batch, resp)
	case call.batch.shape == freeing:
		// Sending it again does no harm; after the others, if it was refused.
		c.releases = append(c.releases, call.batch.releases[0].e)
		c.sendAt = now.Add(refusedPause)
	case store.OutcomeUnknown(err):
		c.metrics.outcomeUnknown.Inc()
		c.log.Warn("the outcome of a write to etcd is unknown and is being resolved", "error", err)
		c.unresolved = call.batch
		c.phase = fencing
	default:
		c.refused(call.batch, err, now)
	}
}

func (c *core) fenceAnswer(resp *pb.TxnResponse, err error, now time.Time) {
	if err != nil {
		if c.fenceErr == nil { // once in a row
			c.log.Warn("earlier writes could not be fenced, trying again", "error", err)
		}
		c.fenceErr = err
		c.fenceAt = now.Add(fencePause)
		return
	}
	c.fenceErr = nil
	if c.guard.Answer(resp) {
		c.noteWitnesses(resp)
		c.phase = resolving
		c.resolveAt, c.refollow = resp.Header.Revision, true
		c.progress()
	}
}

// committed takes a batch that was carried out, in part if it is nested.
func (c *core) committed(b *batch, resp *pb.TxnResponse, now time.Time) {
	rev := resp.Header.Revision
	if b.shape != freeing {
		c.guard.Committed(rev)
		c.fullUntil = time.Time{}
	}
	c.metrics.batch(b)
	conflicts := 0
	for _, g := range b.releases {
		switch o := givenOf(b, g, resp); {
		case o == granted && g.kept:
			c.keepCommitted(g, rev, now)
		case o == granted:
			for _, s := range g.e.slots {
				c.view.committedDelete(s.ref, rev)
			}
			g.e.answerCombined(rev, nil)
			c.done(g.e)
		case o == precondition:
			c.stay(g.e, store.ErrChanged, now)
		default: // the keys are no longer the claim's: it is over too
			c.done(g.e)
		}
	}
	b.observe(resp, now)
	for _, g := range b.grants {
		switch outcomeOf(b, g, resp) {
		case granted:
			c.grant(g, extrasOf(b, g, resp), rev, now)
		case conflict:
			conflicts++
			g.e.conflicts++
			c.ungrant(g, rev, now)
		case precondition:
			c.ungrant(g, 0, now)
			c.refusePrecondition(g.e)
		}
	}
	for _, g := range b.rewrites {
		if b.shape == nested && !b.result(resp, g.op).Succeeded {
			c.unwritten(g.e, true)
		} else {
			c.rewritten(g.e, rev)
		}
	}
	for _, l := range b.puts {
		l.e.written = l.e.waiterLease == l.lease && l.e.lease == l.slots // else that lease was lost meanwhile
		l.e.writtenReserve, l.e.writtenAt = l.reserve, rev
		l.e.waitsSince(l.e.waited.at, rev)
	}
	for p := range b.queued {
		p.queued.know(rev, rev)
	}
	for _, m := range b.marks {
		c.marks(m.pool, resp.Responses[m.op:m.op+3], rev-1, now) // what follows in the batch came later
		if m.pool.dispatcher.rev == 0 {
			c.dutiesAt = time.Time{} // its waiter is to take the role
		}
	}
	for i, n := range b.acks {
		if b.result(resp, b.ackOps[i]).Succeeded {
			c.view.committedNoticeDelete(n.pool, n.key, rev)
		} else if c.view.notices[n.key] == n {
			c.view.removeNotice(n.key) // what is there instead is delivered
		}
	}
	for _, o := range b.duties {
		c.onDuty(o, b.result(resp, o.op).Succeeded, rev, now)
	}
	for _, d := range b.drops {
		c.view.committedWaiterDelete(d.pools, d.order, rev)
		c.dropped[d.order.Claim] = deletion{d.pools[0], rev}
		c.releaseDropped(d)
	}
	c.calm(b, conflicts)
	c.isolate = max(0, c.isolate-1)
	c.dirty = c.dirty || len(c.queue) > 0
}

// calm counts the batches without a conflict. After a batch with other conditions, batches
// are flat again as soon as each suspect was tried.
func (c *core) calm(b *batch, conflicts int) {
	maps.DeleteFunc(c.suspects, func(e *entry, _ bool) bool { return c.entries[e.req.ID] != e || e.state != queued })
	switch {
	case conflicts > 0:
		c.metrics.conflicts.Add(float64(conflicts))
		c.nested, c.suspects = calmBatches, nil
		if b.conditional() {
			c.nested = 1 // what it gives back is to be taken in place again
		}
	case b.shape == nested && c.suspects != nil && len(c.suspects) == 0:
		c.nested, c.suspects = 0, nil
	case b.shape == nested:
		c.nested--
	}
}

// grantOutcome is what a committed batch did for one grant.
type grantOutcome int

const (
	granted grantOutcome = iota
	conflict
	precondition
)

// givenOf is what a committed batch did for one release.
func givenOf(b *batch, g releaseOp, resp *pb.TxnResponse) grantOutcome {
	if b.shape != nested {
		return granted
	}
	return nestedOutcome(b.result(resp, g.op), g.e.combined != nil && len(g.e.combined.extra.If) > 0)
}

func outcomeOf(b *batch, g *grant, resp *pb.TxnResponse) grantOutcome {
	if b.shape != nested {
		return granted
	}
	return nestedOutcome(b.result(resp, g.op), len(g.e.req.Extra.If) > 0)
}

// nestedOutcome reads the answer to a child, in which what else must hold goes around
// the claim's own compares.
func nestedOutcome(child *pb.TxnResponse, conditions bool) grantOutcome {
	if conditions {
		if !child.Succeeded {
			return precondition
		}
		child = child.Responses[0].GetResponseTxn()
	}
	if !child.Succeeded {
		return conflict
	}
	return granted
}

// extrasOf are the answers to what a grant carried along.
func extrasOf(b *batch, g *grant, resp *pb.TxnResponse) []*pb.ResponseOp {
	all, n := resp.Responses, len(g.e.req.Extra.Then)
	switch {
	case n == 0 || b.shape == wide: // it may be in several children
		return nil
	case b.shape == nested:
		child := b.result(resp, g.op)
		if len(g.e.req.Extra.If) > 0 {
			child = child.Responses[0].GetResponseTxn()
		}
		all = child.Responses
	}
	return all[g.extraAt : g.extraAt+n]
}

// failed takes a batch of which nothing happened, since a compare at its root
// failed.
func (c *core) failed(b *batch, resp *pb.TxnResponse) {
	now := c.updatedAt
	switch {
	case b.shape == freeing:
		c.done(b.releases[0].e) // its keys are no longer the claim's
		return
	case b.shape == nested || c.guard.Foreign(resp):
		// Another instance swept the guard, or etcd was restored: read its present revision.
		c.phase = fencing
		c.requeue(b, now)
		return
	}
	c.requeue(b, now)
	if b.shape == wide && len(b.grants) > 0 && !b.result(resp, 1).Succeeded {
		c.refusePrecondition(b.grants[0].e)
		return
	}
	c.metrics.conflicts.Inc()
	c.nested, c.suspects = calmBatches, nil
	if b.conditional() {
		c.suspects = map[*entry]bool{}
	}
	for _, g := range b.grants {
		if b.conditional() { // the next batches, which are nested, show which one failed
			c.suspects[g.e] = true
		} else {
			g.e.conflicts++
		}
		g.e.retryAt = resp.Header.Revision
		if g.e.other != nil {
			g.e.other.retryAt, c.retryOthers = resp.Header.Revision, resp.Header.Revision
		}
	}
	c.refollow = true
}

// refusePrecondition refuses an entry, unless its request was canceled meanwhile.
func (c *core) refusePrecondition(e *entry) {
	if c.entries[e.req.ID] == e {
		c.refuse(e, problem.New(problem.Precondition, "what claim %q was to happen with is no longer so", e.req.ID))
	}
}

// refused takes a batch that etcd did not carry out and never will.
func (c *core) refused(b *batch, err error, now time.Time) {
	c.requeue(b, now)
	switch {
	case errors.Is(err, store.ErrLeaseNotFound):
		c.leaseless(b, err, now)
		c.leases.Suspect(b.leases...)
		for _, e := range slices.Concat(c.queue, c.takes) {
			if e.state == queued && e.offer == nil && slices.Contains(b.leases, e.lease) {
				c.releaseLease(e) // another one is reserved, and its waiter names that
				e.written = false
			}
		}
		for _, l := range b.puts {
			c.waiterLeases.Suspect(l.e.waiterLease)
			c.releaseWaiterKeys(l.e)
		}
		for _, o := range b.duties {
			c.waiterLeases.Suspect(o.role.lease)
			c.endRole(o.pool.name)
		}
		c.skipOther(b)
		return
	case errors.Is(err, store.ErrTokenExpired):
		return
	case errors.Is(err, store.ErrNoLogin):
		c.sendAt = now.Add(refusedPause)
		return
	}
	c.log.Error("etcd refused a write", "error", err)
	if b.things() > 1 {
		c.isolate = b.things() // find out which
		return
	}
	c.sendAt = now.Add(refusedPause)
	c.refusedAlone(b, err, now)
}

// skipOther passes the waiters of another instance whose lease is gone, once it is known which
// of several it is.
func (c *core) skipOther(b *batch) {
	if !slices.ContainsFunc(b.grants, func(g *grant) bool { return g.e.other != nil }) {
		return
	}
	if b.things() > 1 {
		c.isolate = b.things()
		return
	}
	g := b.grants[0]
	if g.notice.conditional {
		c.waiterLeases.Suspect(g.notice.lease)
		return
	}
	for _, w := range c.view.waiters {
		if w.value.Lease == g.e.lease {
			w.skip = w.rev
		}
	}
}

// leaseless refuses what can't be written as it is if the lease that is gone is not one
// of the claims'.
func (c *core) leaseless(b *batch, err error, now time.Time) {
	for _, g := range b.grants {
		if c.entries[g.e.req.ID] == g.e && onForeignLeases(&g.e.req.Extra) {
			c.refuse(g.e, store.Problem("what claim %s was to happen with can't be written", err))
		}
	}
	c.stayAll(&c.releases, err, now, func(p *combinedRelease) bool { return onForeignLeases(&p.extra) })
}

// refusedAlone takes a batch of one thing that etcd refused. What can't be given
// up is put aside for a while, so that it does not spoil every batch.
func (c *core) refusedAlone(b *batch, err error, now time.Time) {
	for _, g := range b.grants {
		if w := g.e.other; w != nil && errors.Is(err, store.ErrDenied) && !g.notice.conditional {
			c.denied[w.by.name] = true // it is to confirm its grants
		} else if w != nil {
			w.skip = w.rev
			c.shelf.skipped = append(c.shelf.skipped, w)
		} else if c.entries[g.e.req.ID] == g.e {
			c.refuse(g.e, store.Problem("the claim was refused", err))
		}
	}
	c.shelf.duties = len(b.duties) > 0
	for _, o := range b.duties {
		c.endRole(o.pool.name)
	}
	for _, n := range b.withdrawn {
		n.conditional = false // it ends with its lease
	}
	for _, g := range b.rewrites {
		g.e.regranted = now.Add(shelfTime) // it is tried again after that
	}
	for _, l := range b.puts {
		l.e.unwritable = true // it waits where only this host sees it
		l.e.waitsSince(l.e.waited.at, c.seen)
	}
	c.shelf.until = now.Add(shelfTime)
	n := len(b.releases)
	given := c.releases[:n]
	c.releases = c.releases[n:]
	c.stayAll(&given, err, now, anyCombined)
	c.shelf.releases = append(c.shelf.releases, given...)
	n = len(b.drops)
	c.shelf.drops = append(c.shelf.drops, c.drops[:min(n, len(c.drops))]...)
	c.drops = c.drops[min(n, len(c.drops)):]
	c.revokes = c.revokes[len(b.revokes):] // its own lease ends it
	c.acks = c.acks[len(b.acks):]          // so does the claim's
}

// unshelve tries again what was put aside.
func (c *core) unshelve(now time.Time) {
	if now.Before(c.shelf.until) {
		return
	}
	c.releases = append(c.releases, c.shelf.releases...)
	drops := c.shelf.drops
	c.shelf.releases, c.shelf.drops = nil, nil
	c.redrop(drops)
	for _, e := range c.queue {
		e.unwritable = false
	}
	for _, w := range c.shelf.skipped {
		w.skip = 0
		c.dirty, c.refollow = true, true
	}
	c.shelf.skipped = nil
}

// requeue puts everything back that a batch did not do.
func (c *core) requeue(b *batch, now time.Time) {
	back := make([]*entry, 0, len(b.releases))
	for _, g := range b.releases {
		back = append(back, g.e)
	}
	c.releases = slices.Concat(back, c.releases)
	later := c.drops
	c.drops = nil
	c.redrop(slices.Concat(b.drops, later))
	c.revokes = slices.Concat(b.revokes, c.revokes)
	c.acks = slices.Concat(b.acks, c.acks)
	for _, g := range b.grants {
		c.ungrant(g, 0, now)
	}
	for _, g := range b.rewrites {
		c.unwritten(g.e, false)
	}
	c.dirty, c.refollow = true, true
}

// resolve determines what a batch with an unknown outcome did: writes up to it are
// fenced, and the view has reached that revision.
func (c *core) resolve(b *batch) {
	now := c.updatedAt
	for _, g := range b.releases {
		if g.kept && c.witnessedEnd(g, b) {
			c.keepCommitted(g, 0, now)
			continue
		}
		if c.holdsSlots(g.e) {
			c.releases = append(c.releases, g.e)
			continue
		}
		g.e.answerCombined(0, errOutcomeUnknown)
		c.done(g.e)
	}
	for _, g := range b.grants {
		if g.e.other != nil { // the view shows it
			if n := c.view.notices[g.notice.key]; n != nil && g.e.lent > 0 && n.lease == g.e.lease {
				c.lend(n.key, loan{n.pool.name, g.e.lease, g.e.lent, n.rev})
			} else {
				c.unlend(g.e)
			}
			continue
		}
		if g.kept != nil {
			if rev := c.witnessedStart(g, b); rev != 0 {
				c.grant(g, nil, rev, now)
				continue
			}
			if h := &g.kept.holding; g.idle && c.taken(h, c.resolvedAt(0, h)) {
				c.loseSlots(h)
				g.idle = false
			}
			c.ungrant(g, 0, now)
			continue
		}
		s, ok := c.view.slot(g.slots[0].ref)
		by := ok && c.view.noticed(g.e.req.ID, s.rev, c.name()) // another dispatcher, since then
		if ok && !by && s.claim == g.e.key() && s.lease == g.e.lease && s.rev > max(g.e.takes, b.rev) {
			c.metrics.granted(now.Sub(g.e.arrived))
			c.hold(g.e, nil, s.rev, now)
			continue
		}
		c.ungrant(g, 0, now)
		if g.e.req.Bridge && !by && c.entries[g.e.req.ID] == g.e {
			// Another instance may have taken it over already. An error for lack of
			// capacity would say that it was never granted.
			c.refuse(g.e, errOutcomeUnknown)
		}
	}
	for _, g := range b.rewrites {
		e := g.e
		s, ok := c.view.slot(e.slots[0].ref)
		if own := (claimKey{e.req.ID, e.slots[0].ref}); ok && s.claim == own && s.rev > e.rev && s.lease == e.lease {
			c.rewritten(e, s.rev)
		} else {
			c.unwritten(e, !c.holdsSlots(e))
		}
	}
	// Waiters and drops are the same when they are done twice.
	for _, l := range b.puts {
		l.e.written = false
		// If it is not seen, it may have been written, and have ended with its lease.
		l.e.waitsSince(l.e.waited.at, cmp.Or(c.waiterRev(l.e), b.rev))
	}
	c.redrop(b.drops)
	c.revokes = slices.Concat(b.revokes, c.revokes)
	for _, n := range b.acks {
		if c.view.notices[n.key] == n {
			c.ack(n)
		}
	}
}
