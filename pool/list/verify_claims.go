package list

import (
	"maps"

	"github.com/berthhq/berth/pool/wire"
)

// allClaims finds claims that are not whole, and keys that belong to none.
func (v *verifier) allClaims() {
	listed := map[*claim]map[wire.Ref]bool{} // of claims with more keys than they list
	for _, c := range v.claims {
		if own := v.claim(c); len(own) < c.keys {
			listed[c] = own
		}
	}
	if len(listed) == 0 {
		return
	}
	for _, p := range v.pools {
		for ref, is := range p.slots {
			own, incomplete := listed[is.claim]
			switch {
			case !incomplete || own[ref]:
			case own == nil:
				v.add(ref.Key(v.keys), "it belongs to claim %q, and %s is not the main key of that", is.claim.id, is.claim.main.Key(v.keys))
			default:
				v.add(ref.Key(v.keys), "claim %q does not list it", is.claim.id)
			}
		}
	}
}

// claim checks the keys that a claim lists, and returns those that it has, nil without a main key.
func (v *verifier) claim(c *claim) (own map[wire.Ref]bool) {
	main := c.main.Key(v.keys)
	rec, refs, err := c.full()
	if c.of == nil {
		return nil
	}
	own = map[wire.Ref]bool{c.main: true}
	if err != nil {
		v.add(main, "%v", err)
		return own
	}
	sum := map[string]int{}
	for _, ref := range refs {
		is, ok := v.slot(ref)
		switch {
		case !ok || is.claim != c:
			v.add(ref.Key(v.keys), "claim %q lists it, and it is not that claim's", c.id)
			continue
		case own[ref] && ref != c.main:
			v.add(main, "claim %q lists %s twice", c.id, ref)
		case is.rev != c.rev || is.lease != c.lease:
			v.add(ref.Key(v.keys), "claim %q is torn: its keys have several revisions or leases", c.id)
		}
		own[ref] = true
		sum[ref.Pool] += is.n
	}
	if !maps.Equal(sum, rec.Pools) {
		v.add(main, "claim %q claimed %v and holds %v", c.id, rec.Pools, sum)
	}
	return own
}

// slot returns a slot key or a block.
func (s *State) slot(ref wire.Ref) (slot, bool) {
	p := s.pools[ref.Pool]
	if p == nil {
		return slot{}, false
	}
	is, ok := p.slots[ref]
	return is, ok
}

// allIDs finds ids without a claim.
func (v *verifier) allIDs() {
	for id, owner := range v.ids {
		key, by := v.keys.ID(id), instance{owner.Host, owner.Instance}
		unknown := false
		var held *claim
		for _, c := range v.claimsOf(id) {
			_, _, err := c.full()
			unknown = unknown || err != nil
			if c.by() == by {
				held = c
			}
		}
		switch {
		case held == nil && !unknown:
			v.add(key, "%s holds no claim %q", by, id)
		case held != nil && held.lease != v.leases[key]:
			v.add(key, "claim %q is torn: its id is on another lease", id)
		}
	}
}
