package owner

import (
	"cmp"
	"slices"

	"github.com/berthhq/berth/pool/list"
)

// Waiters returns the claims that wait, in the order in which they came: those that are not in etcd yet, too.
func (o *Owner) Waiters() (all []list.OwnDemand) {
	var demands []*demand
	for _, k := range o.queue.all() {
		demands = append(demands, k.live()...)
	}
	demands = append(demands, o.queue.fresh...)
	slices.SortStableFunc(demands, func(a, b *demand) int { return cmp.Compare(a.claim.came, b.claim.came) })
	for _, d := range demands {
		all = append(all, d.shown())
	}
	return all
}

// Waits returns a claim as it waits, false if it does not.
func (c *Claim) Waits() (list.OwnDemand, bool) {
	if c.demand == nil || c.demand.over {
		return list.OwnDemand{}, false
	}
	return c.demand.shown(), true
}

// Combined reports whether the claim is being released together with other writes.
func (c *Claim) Combined() bool {
	return c.combined != nil && (c.state == releasing || c.state == freeing)
}

// shown returns a demand as it is put, which no later change concerns.
func (d *demand) shown() list.OwnDemand {
	w := list.OwnDemand{Demand: d.wire()}
	if d.key != nil {
		w.Created = d.key.created
	}
	if s := d.stamp; s != nil {
		stamp := *s
		w.Stamp = &stamp
	}
	return w
}
