package owner

import "slices"

// Restored forgets all that is known of etcd: it was restored from a snapshot, or is another cluster. Demands are put again
// with the stamps that they had. What claims hold must be audited before anything else is written: a revision can mean
// something else now.
func (o *Owner) Restored() {
	o.memory.restored()
	o.offers.keep(nil)
	o.queue.restored()
	o.surveys.restored()
	releasing := slices.DeleteFunc(slices.Clone(o.orphans.list), func(c *Claim) bool { return c.state == ended })
	o.commits.leaseLost(releasing) // what is left is found again
}
