package pool

import (
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// release gives a held claim back, and answers reply when the keys are gone. A
// claim that ended before is left alone, though its id may stand for another.
func (c *core) release(cl *Claim, reply chan<- error) {
	e := c.entries[cl.ID]
	if e == nil || e.claim != cl {
		reply <- nil // a release that is repeated is done
		return
	}
	e.waiters = append(e.waiters, reply)
	if e.state == held {
		c.giveBack(e, nil)
	}
}

// giveBack ends a held claim and puts its keys up for deletion.
func (c *core) giveBack(e *entry, cause error) {
	e.state = releasing
	e.claim.end(cause)
	c.releases = append(c.releases, e)
	c.dirty = true // the next in line may take them in the same transaction
}

// done ends an entry that had slots.
func (c *core) done(e *entry) {
	if e.state == over {
		return
	}
	e.state = over
	e.claim.end(nil) // one that parted is trusted until then
	c.leases.Release(e.lease, e.leased(e.slots))
	if !e.req.Bridge {
		c.publish(ClaimReleased, e, "")
	}
	if !e.revoked.IsZero() {
		c.revokes = append(c.revokes, c.view.keys.Revocation(c.host, e.req.ID))
	}
	e.parted(0, ErrApart)
	e.released()
	c.forget(e)
}

// leaseLost ends all claims on a lease that can't be trusted any more. Their
// keys stay: they go with the lease, or when the holder says that it has stopped.
func (c *core) leaseLost(id store.LeaseID, cause error, now time.Time) {
	c.lost[id] = lostLease{cause, now}
	for _, e := range c.queue {
		if e.waiterLease == id {
			c.releaseWaiterKeys(e)
			e.written, c.dirty = false, true
		}
	}
	for _, e := range c.sorted() {
		if e.state == held && e.lease == id && e.claim.Err() == nil {
			c.endTrust(e, lostError(e, cause))
		}
	}
}

func lostError(e *entry, cause error) error {
	return problem.New(problem.ClaimLost, "claim %q is lost: %w", e.req.ID, cause)
}

// endTrust tells a claim's holder that it must stop.
func (c *core) endTrust(e *entry, cause error) {
	if e.claim.Err() != nil {
		return // it was told before
	}
	c.metrics.lost(problem.CodeOf(cause))
	c.log.Warn("claim lost", "claim", e.req.ID, "pools", e.req.Slots, "reason", cause)
	e.claim.end(cause)
	c.publish(ClaimEnded, e, cause.Error())
}

// end ends trust in all claims, also in those that are granted later, because
// this instance is at its end.
func (c *core) end(cause error) {
	c.endCause = cause
	c.stop()
	for _, e := range c.sorted() {
		if e.state == held && e.claim.Err() == nil {
			c.endTrust(e, cause)
		}
	}
}

// abandon ends this instance's part in its claims, which a later one takes over.
func (c *core) abandon(cause error) {
	c.endCause = cause
	c.stop()
	for _, e := range c.sorted() {
		if (e.state == held || e.parting != nil) && e.claim.Err() == nil {
			e.claim.end(cause)
			c.publish(ClaimEnded, e, cause.Error())
		}
	}
}

// wanted is a claim that is to be revoked: its fence, and the revision of the key that says
// so, 0 if there is none.
type wanted struct{ fence, rev int64 }

// revoke takes the wish of an operator to have a claim back: the one of that
// fence, which may not have been granted to the engine's knowledge yet. It is
// withdrawn when the fence is 0.
func (c *core) revoke(id string, fence, rev int64, now time.Time) {
	if fence == 0 {
		delete(c.wanted, id)
		return
	}
	e := c.entries[id]
	c.wanted[id] = wanted{fence, rev}
	if fence == waitingFence {
		c.out(e, id)
		return
	}
	if e != nil && e.state == held {
		c.obey(e, now)
	}
	if cv := c.view.fenced(id, fence); cv != nil && c.leases.Keeps(cv.lease) && (e == nil || e.claim == nil || e.fence() != fence) {
		c.reconcileAt = time.Time{} // it may be orphaned
	}
}

// endRevocations deletes the keys of revocations whose claims are gone without them: one was
// released, or ended with its lease, before any instance of the host had learned of the
// revocation. No instance would do it otherwise.
func (c *core) endRevocations(now time.Time) {
	if c.phase != normal || !c.fresh(now) {
		return
	}
	for _, id := range sortedKeys(c.wanted) {
		w := c.wanted[id]
		if w.rev == 0 || w.rev > c.view.rev || c.entries[id] != nil || c.view.fenced(id, w.fence) != nil ||
			w.fence == waitingFence && c.waits(id) {
			continue
		}
		delete(c.wanted, id)
		c.revokes = append(c.revokes, c.view.keys.Revocation(c.host, id))
	}
}

// waits reports whether a claim of that id waits on any instance of this host.
func (c *core) waits(id string) bool {
	return slices.ContainsFunc(c.view.line, func(w *waiter) bool {
		return w.order.Claim == id && w.value.Holder.Host == c.host
	})
}

// out takes a claim out of the line that is not wanted any more.
func (c *core) out(e *entry, id string) {
	if e == nil || e.state > claiming {
		return // it is another instance's, or its end is on its way
	}
	if e.state == claiming {
		e.unwanted = true // its slots may be taken already
		return
	}
	c.revokes = append(c.revokes, c.view.keys.Revocation(c.host, id))
	c.refuse(e, problem.New(problem.ClaimRevoked, "claim %q was taken out of the line: what it is for has ended", id))
}

// obey acts on the wish to have a held claim back, if there is one.
func (c *core) obey(e *entry, now time.Time) {
	if c.wanted[e.req.ID].fence != e.fence() || !e.revoked.IsZero() {
		return
	}
	e.revoked = now
	if e.req.Bridge {
		c.giveBack(e, nil) // nobody has to stop
		return
	}
	c.revoking = append(c.revoking, e)
	if e.claim.Err() == nil {
		c.endTrust(e, problem.New(problem.ClaimRevoked, "claim %q was revoked by an operator", e.req.ID))
	}
}

// ended takes the slots that were taken from their claims.
func (c *core) ended(changes []change) {
	for _, ch := range changes {
		e := c.entries[ch.claim.id]
		if e != nil && e.claim != nil && (e.state == held || e.state == releasing) && ch.claim == e.key() && ch.rev == e.fence() {
			c.gone(e)
		}
	}
}

// gone ends an entry whose keys are no longer there, by no doing of ours that
// has been answered.
func (c *core) gone(e *entry) {
	switch e.state {
	case held:
		if e.req.Bridge {
			e.claim.end(errHandedOver)
		}
		if e.claim.Err() == nil {
			c.endTrust(e, problem.New(problem.ClaimLost, "claim %q is lost: its slots were taken away (its lease expired, or an operator released it by force)", e.req.ID))
		}
		c.done(e)
	case releasing:
		for _, list := range []*[]*entry{&c.releases, &c.shelf.releases} {
			if i := slices.Index(*list, e); i >= 0 {
				*list = slices.Delete(*list, i, i+1)
				c.done(e)
			}
		} // else the answer of the batch in flight ends it
	}
}
