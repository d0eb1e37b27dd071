package owner

import (
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

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

// same reports whether it is the same key, put once.
func (of *offered) same(other *offered) bool {
	return of.key == other.key && of.created == other.created
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

// add adds what is offered, in place of an older key of that name.
func (o *offers) add(of *offered) {
	if of.key != "" {
		if slices.ContainsFunc(o.open.list, of.same) {
			return
		}
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
	o.removeIf(func(of *offered) bool { return of.key == key })
}

// keep removes all keys but some.
func (o *offers) keep(kvs []*mvccpb.KeyValue) {
	created := map[string]int64{}
	for _, kv := range kvs {
		created[string(kv.Key)] = kv.CreateRevision
	}
	o.removeIf(func(of *offered) bool { return of.key != "" && created[of.key] != of.created })
}

func (o *offers) removeIf(is func(*offered) bool) {
	o.open.remove(is)
	maps.DeleteFunc(o.advance, func(_ string, of *offered) bool { return is(of) })
}

// setAdvance records the advance offer of a pool.
func (o *offers) setAdvance(pool string, of *offered) { o.advance[pool] = of }

// ownAhead reports whether this instance may hand slots of some pools on as the dispatcher.
func (o *offers) ownAhead(pools []string) bool {
	return o.own.may != nil && !slices.ContainsFunc(pools, func(p string) bool { return !o.own.may(p) })
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
