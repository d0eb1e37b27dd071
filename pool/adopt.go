package pool

import (
	"slices"

	"github.com/berthhq/berth/internal/store"
)

// adoptClaims takes over what an earlier life of this instance holds: every
// slot on one of its leases. What does not add up to a claim of ours is given
// back. It runs once, when the door is closed and the view is at or above it,
// so that no write of the earlier life can come later.
func (c *core) adoptClaims() {
	if c.adopt == nil {
		return
	}
	found := map[string][]placed{}
	lease := map[string]store.LeaseID{}
	rev := map[string]int64{}
	for _, p := range c.view.order {
		for g, gv := range p.groups {
			for i, s := range gv.slots {
				if c.adopt[s.lease] {
					found[s.claim] = append(found[s.claim], placed{ref: slotRef{p.name, g, i}, n: s.n})
					lease[s.claim], rev[s.claim] = s.lease, s.rev
				}
			}
		}
	}
	c.adopt = nil
	for _, id := range sortedKeys(found) {
		c.takeOver(id, found[id], lease[id], rev[id])
	}
}

func (c *core) takeOver(id string, slots []placed, lease store.LeaseID, rev int64) {
	cv := c.view.claims[id]
	rec, err := cv.full(c.view.keys)
	ours := err == nil && cv.keys == len(slots) &&
		rec.Holder.Host == c.host && rec.Holder.Instance == c.instance
	if !ours {
		rec, lease = &record{}, 0 // nobody counts its keys on the lease
	}
	// The main key first, as everywhere.
	slices.SortFunc(slots, func(a, b placed) int {
		switch {
		case a.ref == cv.main:
			return -1
		case b.ref == cv.main:
			return 1
		}
		return 0
	})
	e := &entry{
		req: &Request{
			ID: id, Slots: rec.Pools, Priority: rec.Priority, Holder: rec.Holder,
		},
		needs: needsOf(rec.Pools), record: rec, waiting: &Waiting{Mine: true},
		lease: lease, slots: slots, order: Order{Priority: rec.Priority, Claim: id},
	}
	if early := c.entries[id]; early != nil {
		c.refuse(early, c.elsewhere(id)) // asked for before anybody could know
	}
	c.entries[id] = e
	c.hold(e, nil, rev, c.heard)
	if !ours {
		c.log.Warn("giving back slots on a lease of this host that belong to no claim of it", "claim", id, "error", err)
		c.giveBack(e, nil)
		return
	}
	c.adopted = append(c.adopted, e.claim)
}
