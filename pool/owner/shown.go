package owner

import (
	"cmp"
	"slices"

	"github.com/berthhq/berth/pool/wire"
)

// Waiter is a claim that waits, as its owner knows it.
type Waiter struct {
	wire.Demand
	// Created is the revision that has created its key, 0 while it is not known to be in etcd.
	Created int64
}

// Waiters returns the claims that wait, in the order in which they came: those that are not in etcd yet, too.
func (o *Owner) Waiters() (all []Waiter) {
	var list []*demand
	for _, k := range o.queue.all() {
		list = append(list, k.live()...)
	}
	list = append(list, o.queue.fresh...)
	slices.SortStableFunc(list, func(a, b *demand) int { return cmp.Compare(a.claim.came, b.claim.came) })
	for _, d := range list {
		all = append(all, d.shown())
	}
	return all
}

// Waits returns a claim as it waits, false if it does not.
func (c *Claim) Waits() (Waiter, bool) {
	if c.demand == nil || c.demand.over {
		return Waiter{}, false
	}
	return c.demand.shown(), true
}

// Combined reports whether the claim is being released together with other writes.
func (c *Claim) Combined() bool {
	return c.combined != nil && (c.state == releasing || c.state == freeing)
}

// shown returns a demand as it is put, which no later change concerns.
func (d *demand) shown() Waiter {
	w := Waiter{Demand: d.wire()}
	if d.key != nil {
		w.Created = d.key.created
	}
	if s := d.stamp; s != nil {
		stamp := *s
		w.Stamp = &stamp
	}
	return w
}
