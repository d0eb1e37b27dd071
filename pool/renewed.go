package pool

import (
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// renewedAgain is the reason of a [ClaimRenewed] after a gap.
const renewedAgain = "its lease could be renewed again"

// LeaseRenewed tells that a lease was renewed; again, if for the first time after
// renewals had failed, or in this process.
func (e *Engine) LeaseRenewed(id store.LeaseID, again bool) {
	if e.core.broker.runs.Load() { // nobody else asks
		e.urgent.add(func(c *core, _ time.Time) { c.leaseRenewed(id, again) })
	}
}

// leaseRenewed tells of the claims on a lease that carry a run, of each the first
// time and after a gap.
func (c *core) leaseRenewed(id store.LeaseID, again bool) {
	var told []*entry
	for _, e := range c.entries {
		if e.lease == id && e.state == held && e.req.Holder.Run != "" && (again || !e.renewed) && e.claim.Err() == nil {
			told = append(told, e)
		}
	}
	slices.SortFunc(told, func(a, b *entry) int { return strings.Compare(a.req.ID, b.req.ID) })
	for _, e := range told {
		e.renewed = true
		reason := ""
		if again {
			reason = renewedAgain
		}
		c.publish(ClaimRenewed, e, reason)
	}
}
