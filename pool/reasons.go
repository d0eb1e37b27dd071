package pool

import (
	"cmp"
	"slices"
)

// maxReasonHolders bounds the holders that a reason names for one pool.
const maxReasonHolders = 10

// reason returns why an entry is not granted.
func (c *core) reason(e *entry) Reason {
	r := c.view.reasonFor(e.req.Slots, maxReasonHolders, own{})
	r.Since = e.arrived
	r.Position, r.Waiting = c.position(e.order, e.req.Slots)
	if r.Text == "" {
		r.Text = r.Turn(c.leases.Trouble())
	}
	return r
}

// reasonFor returns which pools block a claim of these slots, and up to so many
// holders of each. Its text is empty if the claim fits.
func (v *view) reasonFor(slots map[string]int, holders int, o own) Reason {
	var r Reason
	var all []shortage
	for i, need := range needsOf(slots) {
		p := v.pool(need.Pool)
		if i == 0 {
			r.Dispatcher = p.dispatcher.String() // that of the first pool grants claims of several
		}
		s := shortage{
			Shortage: Shortage{
				Pool: p.name, Wanted: need.N, Limit: p.spec.Limit, Claimed: p.used, Paused: p.spec.Paused,
				Short: short(p.spec.Limit, p.used, need.N),
			},
			unknown: !p.known(), unreadable: p.corrupt > 0,
		}
		if s.Short == 0 && p.grants() {
			continue
		}
		if holders > 0 {
			s.Holders = p.holderRefs(v, holders, o)
		}
		r.Pools, all = append(r.Pools, s.Shortage), append(all, s)
	}
	r.Text = shortageText(all)
	return r
}

// holderRefs names up to so many holders of a pool, first come first.
func (p *poolView) holderRefs(v *view, most int, o own) []HolderRef {
	first := make([]slot, 0, most+1)
	for _, g := range p.groups {
		for _, s := range g.slots {
			i, _ := slices.BinarySearchFunc(first, s, func(a, b slot) int {
				return cmp.Or(cmp.Compare(a.rev, b.rev), cmp.Compare(a.claim.id, b.claim.id), a.claim.main.compare(b.claim.main))
			})
			if i >= most || slices.ContainsFunc(first, func(o slot) bool { return o.claim == s.claim }) {
				continue
			}
			first = slices.Insert(first, i, s)
			first = first[:min(len(first), most)]
		}
	}
	var refs []HolderRef
	for _, s := range first {
		h := v.holder(v.claim(s.claim), o)
		refs = append(refs, HolderRef{Claim: h.Claim, Host: h.Host, Run: h.Run, Step: h.Step, Slots: h.Pools[p.name]})
	}
	return refs
}

// position of a waiter among those that wait for one of its pools.
func (c *core) position(o Order, slots map[string]int) (pos, waiters int) {
	pos, waiters = 1, 1
	count := func(other Order, pools map[string]int) {
		if other.Claim == o.Claim || !overlap(pools, slots) {
			return
		}
		waiters++
		if o.Since == 0 || other.Compare(o) < 0 {
			pos++
		}
	}
	for _, w := range c.view.waiters {
		if !c.ours(w) {
			count(w.order, w.value.Pools)
		}
	}
	for _, e := range c.queue {
		if e.state == queued && e.order.Since > 0 {
			count(e.order, e.req.Slots)
		}
	}
	return pos, waiters
}
