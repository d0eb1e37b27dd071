package dispatch

import (
	"slices"
	"time"

	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// loan is what is offered to one demand, or that it is refused.
type loan struct {
	demand  *demand
	held    []slots.Held // of each of the pools that it needs; none if it is refused
	refused bool
	whole   bool // no other offer may be open in its pools
}

// offer returns it as the owner reads it.
func (l *loan) offer() wire.Offer {
	o := wire.Offer{Demand: l.demand.ref, Refused: l.refused}
	for i, h := range l.held {
		if o.Take == nil {
			o.Take = map[string]wire.Take{}
		}
		o.Take[l.demand.needs[i].pool.name] = wire.TakeOf(h)
	}
	return o
}

// openStage is how far an offers key has come.
type openStage int

const (
	sending  openStage = iota // its put has no answer
	put                       // it is there, or may be
	revoking                  // its deletion was sent
	closed                    // it is gone
)

// open is an offers key whose offers can be committed, as far as is known.
type open struct {
	key   wire.OfferKey
	owner *owner
	loans []*loan
	stage openStage
	// at is the revision of the put, or one after which it can't happen, and since the time of the answer.
	at    int64
	since time.Duration
	there bool  // the view shows the key
	gone  int64 // the revision of a view that no longer has it; 0 is not known
	keys  int   // that the claims take
}

// own reports whether it is an offer to the dispatcher's own instance, in memory.
func (o *open) own() bool { return o.key.Host == "" }

// book is the offers that are open.
type book struct {
	keys map[wire.OfferKey]*open
	// own are those to the dispatcher's own instance, which are in memory: by demand, and the revisions at which they
	// were committed.
	own     map[wire.DemandRef][]*open
	queue   []*open                // in the order in which they were put; some are closed
	perPool counts[*followed]      // claims in open offers
	whole   counts[*followed]      // of those, claims that are alone in their pools
	leaving []*open                // those that are gone when the view is at a revision, unless it shows them
	strays  map[wire.OfferKey]bool // keys that are in etcd and to be deleted, as they are none of these
}

func newBook() book {
	return book{keys: map[wire.OfferKey]*open{}, own: map[wire.DemandRef][]*open{}, perPool: counts[*followed]{}, whole: counts[*followed]{}, strays: map[wire.OfferKey]bool{}}
}

// count counts a claim in an open offer, or with -1 one that is no longer open.
func (b *book) count(l *loan, n int) {
	if l.refused {
		return
	}
	l.demand.owner.offered(l.demand, n)
	for _, need := range l.demand.needs {
		b.perPool.add(need.pool, n)
		if l.whole {
			b.whole.add(need.pool, n)
		}
	}
}

// add adds an offers key that is about to be put.
func (b *book) add(o *open) { b.keys[o.key] = o }

// addOwn adds an offer in memory.
func (b *book) addOwn(o *open) {
	o.stage = put
	b.own[o.loans[0].demand.ref] = append(b.own[o.loans[0].demand.ref], o)
}

// put records that a key was put at a revision, or that it can't be after it. When the view is at that revision it shows the key,
// or the key is gone.
func (b *book) put(o *open, revision int64, now time.Duration) {
	if o.stage != sending {
		return
	}
	o.stage, o.since = put, now
	b.queue = append(b.queue, o)
	if !o.there {
		o.at = revision
		b.leave(o, revision)
	}
}

// revoke records that the deletion of a key was sent or, if not, that it was not carried out.
func (b *book) revoke(o *open, sent bool) {
	switch {
	case sent && o.stage == put:
		o.stage = revoking
	case !sent && o.stage == revoking:
		o.stage = put
	}
}

// leave records that an offer can't be committed after a revision. When the view is at that revision, the offer is gone, unless its
// key is shown.
func (b *book) leave(o *open, revision int64) {
	o.gone = revision
	b.leaving = append(b.leaving, o)
}

// left returns the offers that are gone at a revision of the view.
func (b *book) left(revision int64) (all []*open) {
	kept := b.leaving[:0]
	for _, o := range b.leaving {
		switch {
		case o.gone == 0: // it was shown
		case o.gone <= revision:
			all = append(all, o)
		default:
			kept = append(kept, o)
		}
	}
	b.leaving = kept
	return all
}

// show records that a key of the dispatcher was seen.
func (b *book) show(o *open, revision int64) { o.there, o.at, o.gone = true, revision, 0 }

// hide records that no key has been seen: those that had to be there at a revision are gone, unless they are shown.
func (b *book) hide(revision int64) {
	for _, o := range b.keys {
		if o.there || o.stage != sending && o.at <= revision {
			b.leave(o, revision)
		}
		o.there = false
	}
	clear(b.strays)
}

// remove removes a key that is gone.
func (b *book) remove(o *open) {
	o.stage = closed
	delete(b.keys, o.key)
	for _, l := range o.loans {
		b.count(l, -1)
	}
}

// takeOwn removes an offer in memory, nil if there is none.
func (b *book) takeOwn(ref wire.DemandRef) *open {
	all := b.own[ref]
	if len(all) == 0 {
		return nil
	}
	o := all[0]
	if b.own[ref] = all[1:]; len(all) == 1 {
		delete(b.own, ref)
	}
	return o
}

// opened returns the keys that are open, in the order in which they were put.
func (b *book) opened() []*open {
	b.queue = slices.DeleteFunc(b.queue, func(o *open) bool { return o.stage == closed })
	return b.queue
}

// see records whether a key is in etcd that is to be deleted: its name is not used before it is gone.
func (b *book) see(k wire.OfferKey, there bool) {
	if b.strays[k] = true; !there {
		delete(b.strays, k)
	}
}

// newKey returns the offers key of an owner with the lowest free name, which is then in use.
func (b *book) newKey(o *owner) wire.OfferKey {
	key := o.offersKey(0)
	for {
		key.Name = o.newName(key.Name)
		if !b.strays[key] {
			return key
		}
		o.unname(key.Name)
		key.Name++
	}
}

// fits reports whether a claim that takes so many keys may be offered by this key, too.
func (o *open) fits(keys int) bool {
	return len(o.loans) < wire.MaxOffers && o.keys+keys <= wire.MaxOfferKeys
}

// add adds a claim that takes so many keys.
func (o *open) add(l *loan, keys int) { o.loans, o.keys = append(o.loans, l), o.keys+keys }
