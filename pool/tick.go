package pool

import (
	"cmp"
	"slices"
	"time"
)

// forgetLost is how long a lost lease is remembered: longer than any batch is
// under way that could still put slots on it.
const forgetLost = 10 * time.Minute

// tick does what time brings. It is to be called a few times a second.
func (c *core) tick(now time.Time) {
	c.view.prune()
	c.unshelve(now)
	c.endRevocations(now)
	for id, p := range c.places {
		if now.After(p.until) {
			delete(c.places, id)
		}
	}
	for id, l := range c.lost {
		if now.Sub(l.at) > forgetLost {
			delete(c.lost, id)
		}
	}
	for _, e := range slices.Clone(c.queue) {
		c.age(e, now)
		c.losePatience(e, now)
	}
	for _, e := range c.entries {
		if len(e.successors) > 0 {
			c.loseSuccessors(e, now)
		}
	}
	for _, e := range slices.Clone(c.takes) {
		if err := c.trouble(now); err != nil && e.state == queued && now.Sub(e.arrived) >= patience {
			c.refuse(e, err)
		}
	}
	c.revoking = slices.DeleteFunc(c.revoking, func(e *entry) bool {
		if e.parting != nil || e.state == held && now.Sub(e.revoked) < RevokeGrace {
			return false // one that parts may come to stay
		}
		if e.state == held {
			c.giveBack(e, nil)
		}
		return true
	})
	// Waiters of others may come to yield.
	c.dirty = c.dirty || len(c.queue)+len(c.view.line) > 0
}

// age makes a waiter reserve when it has waited long enough.
func (c *core) age(e *entry, now time.Time) {
	if e.state != queued || e.order.Since == 0 || e.reserve {
		return
	}
	if after := c.reserveAfter(e); after >= 0 && now.Sub(e.waited) >= after {
		e.reserve = true
		c.dirty = true
	}
}

// losePatience refuses who is not to wait and can't be served for a reason that
// has nothing to do with room.
func (c *core) losePatience(e *entry, now time.Time) {
	if e.state != queued || now.Sub(e.arrived) < patience {
		return
	}
	if err := c.trouble(now); err != nil {
		c.refuseAtOnce(e, func() error { return err })
	}
}

// leaseDuration of an entry: the shortest of its pools'. A claim that is taken over
// may be of pools that were deleted meanwhile.
func (c *core) leaseDuration(e *entry) time.Duration {
	shortest := time.Duration(0)
	for _, n := range e.needs {
		if p := c.view.pool(n.Pool); p.known() && (shortest == 0 || p.spec.LeaseDuration < shortest) {
			shortest = p.spec.LeaseDuration
		}
	}
	return cmp.Or(shortest, DefaultSpec().LeaseDuration)
}

// reserveAfter of an entry: the shortest of its pools', [NeverReserve] if none
// of them has one.
func (c *core) reserveAfter(e *entry) time.Duration {
	shortest := NeverReserve
	for _, n := range e.needs {
		if d := c.view.pool(n.Pool).spec.ReserveAfter; d >= 0 && (shortest < 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}
