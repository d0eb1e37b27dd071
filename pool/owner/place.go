package owner

import (
	"time"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// Place is a place in the wait queue.
type Place struct {
	stamp    wire.Stamp
	since    time.Time     // as others see it
	came     time.Duration // when its claim came
	reserves bool
}

// Place returns the place of a claim that waits. It is false if it has none, or is not known to be in etcd yet.
func (c *Claim) Place() (Place, bool) {
	d := c.demand
	if d == nil || d.over {
		return Place{}, false
	}
	s, ok := d.stamped()
	return Place{stamp: s, since: c.since, came: c.came, reserves: d.reserves}, ok
}

// keepPlace keeps the place of a claim that waits for when it has to wait again.
func (c *Claim) keepPlace() {
	if p, ok := c.Place(); ok {
		c.place = &p
	}
}

// NewClaimIn is [NewClaim] for a claim that waits in a place if it has to wait.
func NewClaimIn(p Place, r *pool.Request) *Claim {
	c := NewClaim(r)
	c.place = &p
	return c
}

// wish says whether a claim that was not granted is wanted.
type wish struct {
	withdrawn bool // it is not
	kept      bool // unless its slots are being taken: then it has them
}

// withdraw marks that nothing wants it, or that nothing does unless it is granted.
func (w *wish) withdraw(kept bool) { w.withdrawn, w.kept = true, kept }

// renew marks that it is wanted again.
func (w *wish) renew() { w.withdrawn = false }
