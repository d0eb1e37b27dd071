package list

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// claimName names a claim that holds slots. The id alone does not: two instances may be granted the same id, and hold it
// under main keys of their own.
type claimName struct {
	id   string
	main wire.Ref
}

// claim is a claim that holds slots.
type claim struct {
	claimName
	keys int // that name it
	// of is the record, nil without a main key; rev and lease are those of the main key, 0 without one.
	of     *record
	rev    int64
	lease  store.LeaseID
	demand wire.DemandRef // that it has ended
}

// count counts keys of a claim, and returns how many there are.
func (c *claim) count(n int) int {
	c.keys += n
	return c.keys
}

// record is that of a claim. It is decoded when it is first wanted.
type record struct {
	key  string
	slot wire.Slot

	once sync.Once // guards what follows
	is   *wire.Record
	refs []wire.Ref
	err  error
}

// full returns the record of a claim, and all keys that it lists.
func (c *claim) full() (*wire.Record, []wire.Ref, error) {
	r := c.of
	if r == nil {
		return nil, nil, fmt.Errorf("claim %q has no main key", c.id)
	}
	r.once.Do(func() {
		r.is, r.err = r.slot.Decode(r.key)
		if r.err == nil {
			r.refs, r.err = r.is.Refs(c.main)
		}
		if r.err != nil && r.is != nil {
			r.is, r.err = nil, &store.CorruptError{Key: r.key, Reason: r.err}
		}
		r.slot = wire.Slot{} // it is not needed again
	})
	return r.is, r.refs, r.err
}

// putRecord records what the main key of a claim says, or with nil that it has none.
func (s *State) putRecord(c *claim, r *record, main slot) {
	if c.of != nil && c.demand != (wire.DemandRef{}) {
		if s.ended[c.demand]--; s.ended[c.demand] == 0 {
			delete(s.ended, c.demand)
		}
	}
	c.of, c.rev, c.lease, c.demand = r, main.rev, main.lease, wire.DemandRef{}
	if r != nil && r.slot.Demand != (wire.DemandRef{}) {
		c.demand = r.slot.Demand
		s.ended[c.demand]++
	}
}

// by returns the instance that holds a claim, empty if its record can't be read.
func (c *claim) by() instance {
	r, _, err := c.full()
	if err != nil {
		return instance{}
	}
	return instance{r.Holder.Host, r.Holder.Instance}
}

// status returns what is shown of a claim.
func (c *claim) status() pool.HolderStatus {
	h := pool.HolderStatus{Claim: c.id, Fence: store.FenceAt(c.rev), Lease: c.lease}
	if r, _, err := c.full(); err == nil {
		h.Holder, h.Pools, h.Priority, h.Since, h.Fence = r.Holder, r.Pools, r.Priority, r.Since, r.Fences(c.rev)
		for _, n := range r.Pools {
			h.Slots += n
		}
	}
	h.Granted = h.Fence.Revision()
	return h
}

// holder is what is shown of a claim, with the claim.
type holder struct {
	pool.HolderStatus
	*claim
}

// oldestFirst returns what is shown of claims, the oldest first.
func oldestFirst(all []holder) []pool.HolderStatus {
	slices.SortFunc(all, func(a, b holder) int {
		return cmp.Or(cmp.Compare(a.Fence, b.Fence), cmp.Compare(a.Claim, b.Claim), a.main.Compare(b.main))
	})
	shown := make([]pool.HolderStatus, len(all))
	for i, h := range all {
		shown[i] = h.HolderStatus
	}
	return shown
}

// heldAs returns the claims of an id, the oldest first; with an instance, only those that it holds.
func (s *State) heldAs(by instance, id string) []*claim {
	all := s.claimsOf(id)
	if by == (instance{}) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(c *claim) bool { return c.by() != by })
}

// Claim is a claim that holds slots, for those who change its keys.
type Claim struct {
	ID string
	// Main is its main key, and Keys are all that it lists, Main included, with the revision that has put them.
	Main     string
	Keys     []string
	Revision int64
	Lease    store.LeaseID
	Record   *wire.Record
	// Chosen is the key of its id, if its user has chosen that; else it is empty.
	Chosen string
}

// Fence returns the fencing token of its holder.
func (c *Claim) Fence() store.Fence { return c.Record.Fences(c.Revision) }

// Claim returns the claim that is held under an id, or HOST/INSTANCE/ID. An unknown one is a ClaimNotFound problem, an
// id that several instances hold is an Invalid one, and a record that can't be read a CorruptValue one.
func (s *State) Claim(named string) (*Claim, error) {
	by, id := split(named)
	all := s.heldAs(by, id)
	switch len(all) {
	case 0:
		return nil, problem.New(problem.ClaimNotFound, "no claim %q is held", named)
	case 1:
		return s.export(all[0])
	}
	var names []string
	for _, c := range all {
		names = append(names, c.by().String()+"/"+id)
	}
	return nil, problem.Field("id", "claim %q is held by %d instances: name one of them, as in %s", id, len(all), strings.Join(names, " or "))
}

// Fenced returns the claim that is held under an id with a fencing token. Its errors are those of [State.Claim].
func (s *State) Fenced(id string, fence store.Fence) (*Claim, error) {
	for _, c := range s.claimsOf(id) {
		if c.status().Fence == fence {
			return s.export(c)
		}
	}
	return nil, problem.New(problem.ClaimNotFound, "no claim %q with fence %d is held", id, fence)
}

func (s *State) export(c *claim) (*Claim, error) {
	r, refs, err := c.full()
	if err != nil {
		return nil, problem.New(problem.CorruptValue, "claim %q can't be revoked: %w", c.id, err)
	}
	is := &Claim{ID: c.id, Main: c.main.Key(s.keys), Revision: c.rev, Lease: c.lease, Record: r}
	for _, ref := range refs {
		is.Keys = append(is.Keys, ref.Key(s.keys))
	}
	if by, ok := s.ids[c.id]; ok && c.by() == (instance{by.Host, by.Instance}) {
		is.Chosen = s.keys.ID(c.id)
	}
	return is, nil
}

// Held returns the claims that are held under some ids, by any instance: users choose ids, too.
func (s *State) Held(ids []string) map[string][]pool.HolderStatus {
	held := map[string][]pool.HolderStatus{}
	for _, id := range ids {
		for _, c := range s.claimsOf(id) {
			held[id] = append(held[id], c.status())
		}
	}
	return held
}
