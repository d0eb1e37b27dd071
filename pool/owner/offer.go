package owner

import (
	"maps"
	"slices"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// offered is what a dispatcher offers together: in an offers key, or in memory if it is this instance.
type offered struct {
	key     string // "" in memory
	created int64  // of the key
	role    string // the key of the role, in memory
	list    []wire.Offer
}

// condition is the compare under which it can be committed: the dispatcher has not taken it back.
func (of *offered) condition() shared {
	if of.key == "" {
		return share(store.ModEquals(of.role, of.created))
	}
	return share(store.CreateEquals(of.key, of.created))
}

// offers are those to this instance that are open.
type offers struct {
	open    todo[*offered]
	advance map[string]*offered
	closed  todo[OwnOffer] // of those in memory
	own     ownAdvance
	// declined are demands that were offered and that this instance does not have.
	declined map[wire.DemandRef]bool
}

// maxDeclined bounds the demands that are remembered as declined.
const maxDeclined = 1000

// ownAdvance says which pools this instance may hand slots on in as the dispatcher, under which role.
type ownAdvance struct {
	may  func(pool string) bool // nil if it does not dispatch
	role offered
}

// OwnOffer is what has become of an offer in memory.
type OwnOffer struct {
	Demand wire.DemandRef
	// Revision that has committed it; 0 if it was not committed, and can't be any longer.
	Revision int64
}

func newOffers() *offers {
	return &offers{advance: map[string]*offered{}, declined: map[wire.DemandRef]bool{}}
}

// decline records that a demand was offered that this instance does not have. It is true if that was so before: the dispatcher
// has not missed its end, it is in etcd.
func (o *offers) decline(demand wire.DemandRef) bool {
	if o.declined[demand] {
		delete(o.declined, demand)
		return true
	}
	if len(o.declined) >= maxDeclined {
		clear(o.declined)
	}
	o.declined[demand] = true
	return false
}

// add adds an offers key, instead of an older one of that name.
func (o *offers) add(of *offered) {
	if of.key != "" {
		o.withdraw(of.key)
	}
	o.open.add(of)
}

// close records what has become of an offer, if it is one in memory under the role that this instance has now.
func (o *offers) close(of *offered, demand wire.DemandRef, revision int64) {
	if of != nil && of.key == "" && of.created == o.own.role.created {
		o.closed.add(OwnOffer{demand, revision})
	}
}

// setOwn records in which pools this instance may hand slots on as the dispatcher. Offers in memory end with their role.
func (o *offers) setOwn(own ownAdvance) {
	o.own = own
	o.closed.take()
	o.withdraw("")
}

// withdraw removes a key.
func (o *offers) withdraw(key string) {
	o.open.remove(func(of *offered) bool { return of.key == key })
}

// setAdvance records the advance offer of a pool, nil if there is none.
func (o *offers) setAdvance(pool string, of *offered) {
	if of == nil {
		delete(o.advance, pool)
		return
	}
	o.advance[pool] = of
}

// reset replaces all that are in etcd by what was read.
func (o *offers) reset(list []*offered, advance map[string]*offered) {
	o.open.remove(func(of *offered) bool { return of.key != "" && !slices.ContainsFunc(list, of.same) })
	for _, of := range list {
		if !slices.ContainsFunc(o.open.list, of.same) {
			o.open.add(of)
		}
	}
	o.advance = maps.Clone(advance)
}

func (of *offered) same(other *offered) bool {
	return of.key == other.key && of.created == other.created
}

// ahead returns the advance offers for some pools, false if one of them has none.
func (o *offers) ahead(pools []string) (all []*offered, ok bool) {
	for _, p := range pools {
		of := o.advance[p]
		if of == nil && o.own.may != nil && o.own.may(p) {
			of = &o.own.role
		}
		if of == nil {
			return nil, false
		}
		all = append(all, of)
	}
	return all, true
}
