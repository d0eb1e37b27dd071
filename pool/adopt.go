package pool

import (
	"cmp"
	"context"
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
	leases := c.adopt
	c.adopt = nil
	for _, part := range c.view.on(func(id store.LeaseID) bool { return leases[id] }) {
		if !c.takeOver(part) {
			c.giveBackOrphaned(part)
		}
	}
}

// part is what some leases have of one claim: all its slots, unless it is torn.
type part struct {
	claim *claimView
	rev   int64
	lease store.LeaseID
	slots []placed
}

// on returns the claims that have slots on some leases, by id and with the newest of
// an id first. The slots of a claim that were put at several revisions, or are on
// several leases, are parts of their own.
func (v *view) on(lease func(store.LeaseID) bool) []part {
	type one struct {
		claim claimKey
		rev   int64
		lease store.LeaseID
	}
	found := map[one][]placed{}
	for _, p := range v.order {
		for g, gv := range p.groups {
			for i, s := range gv.slots {
				if lease(s.lease) {
					key := one{s.claim, s.rev, s.lease}
					found[key] = append(found[key], placed{ref: slotRef{p.name, g, i}, n: s.n})
				}
			}
		}
	}
	all := make([]part, 0, len(found))
	for key, slots := range found {
		// The main key first, as everywhere.
		slices.SortFunc(slots, func(a, b placed) int {
			switch {
			case a.ref == key.claim.main:
				return -1
			case b.ref == key.claim.main:
				return 1
			}
			return a.ref.compare(b.ref)
		})
		all = append(all, part{claim: v.claim(key.claim), rev: key.rev, lease: key.lease, slots: slots})
	}
	slices.SortFunc(all, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.claim.id, b.claim.id), cmp.Compare(b.rev, a.rev), a.slots[0].ref.compare(b.slots[0].ref))
	})
	return all
}

// takeOver makes a claim that an earlier life holds one of this life's, and tells
// whether it could: not if it is torn, somebody else's, or older than another of
// its id.
func (c *core) takeOver(p part) bool {
	rec, err := p.claim.full(c.view.keys)
	early := c.entries[p.claim.id]
	switch {
	case err != nil || p.claim.keys != len(p.slots) || !p.claim.isOf(c.view.keys, c.host, c.instance):
		return false
	case early != nil && early.state != queued:
		return false
	case early != nil:
		c.refuse(early, c.elsewhere(p.claim.id)) // asked for before anybody could know
	}
	e := &entry{
		req: &Request{
			ID: p.claim.id, Slots: rec.Pools, Priority: rec.Priority, Holder: rec.Holder,
		},
		needs: needsOf(rec.Pools), record: rec, waiting: &Waiting{Mine: true},
		lease: p.lease, slots: p.slots, order: Order{Priority: rec.Priority, Claim: p.claim.id},
	}
	c.entries[e.req.ID] = e
	c.hold(e, nil, p.rev, c.heard)
	c.adopted = append(c.adopted, e.claim)
	return true
}

// giveBackOrphaned frees slots on a lease of this instance that no claim of it has.
// They are no entry's: another claim of that id may be.
func (c *core) giveBackOrphaned(p part) *entry {
	c.log.Warn("giving back slots on a lease of this instance that no claim of it has",
		"claim", p.claim.id, "fence", p.rev, "keys", len(p.slots))
	ctx, cancel := context.WithCancelCause(context.Background())
	e := &entry{
		req:   &Request{ID: p.claim.id, Bridge: true}, // nobody has to stop, or is told
		slots: p.slots, waiting: &Waiting{Mine: true},
		claim: &Claim{ID: p.claim.id, Fence: p.rev, ctx: ctx, cancel: cancel},
	}
	c.giveBack(e, nil)
	return e
}
