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
	unsure                    // the outcome of its put is unknown
	put                       // it can be seen
	revoking                  // its deletion was sent
	revoked                   // it was deleted or, in memory, committed, which the view does not show yet
	closed                    // it is gone
)

// open is an offers key whose offers can be committed, as far as is known.
type open struct {
	key   wire.OfferKey
	owner *owner
	loans []*loan
	stage openStage
	// at is the revision of the put, or from revoked on that of the deletion, and since the time of the put.
	at    int64
	since time.Duration
	there bool // the view shows the key
	keys  int  // that the claims take
}

// book is the offers that are open.
type book struct {
	keys map[wire.OfferKey]*open
	// own are those to the dispatcher's own instance, which are in memory: by demand, and the revisions at which they
	// were committed.
	own     map[wire.DemandRef][]*open
	queue   []*open           // in the order in which they were put; some are closed
	perPool map[*followed]int // claims in open offers
	whole   map[*followed]int // of those, claims that are alone in their pools
	leaving []*open           // those that are gone when the view is at a revision
	// foreign are keys that are in etcd and that are none of these, and whether their deletion was sent.
	foreign map[wire.OfferKey]bool
}

func newBook() book {
	return book{keys: map[wire.OfferKey]*open{}, own: map[wire.DemandRef][]*open{}, perPool: map[*followed]int{}, whole: map[*followed]int{}, foreign: map[wire.OfferKey]bool{}}
}

// lend counts a loan, which an offer is going to have.
func (b *book) lend(l *loan) { b.count(l, 1) }

func (b *book) count(l *loan, n int) {
	for _, need := range l.demand.needs {
		if l.refused {
			continue
		}
		if b.perPool[need.pool] += n; b.perPool[need.pool] <= 0 {
			delete(b.perPool, need.pool)
		}
		if !l.whole {
			continue
		}
		if b.whole[need.pool] += n; b.whole[need.pool] <= 0 {
			delete(b.whole, need.pool)
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

// answered records that the put of a key was answered, or has been seen after its outcome was unknown.
func (b *book) answered(o *open, revision int64, now time.Duration) {
	if o.stage == sending || o.stage == unsure {
		o.stage, o.at, o.since = put, revision, now
		b.queue = append(b.queue, o)
	}
}

// unanswered records that the outcome of a put is unknown, and with a revision that it can't happen later.
func (b *book) unanswered(o *open, revision int64, now time.Duration) {
	switch {
	case o.stage != sending && o.stage != unsure:
	case o.there:
		b.answered(o, o.at, now)
	default:
		o.stage = unsure
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

// leave records that an offer can't be committed after a revision. When the view is at that revision, the offer is gone,
// or its key is there.
func (b *book) leave(o *open, revision int64) {
	if o.stage == closed {
		return
	}
	if o.stage == revoking || o.key.Host == "" {
		o.stage = revoked
	}
	if o.at = revision; revision > 0 {
		b.leaving = append(b.leaving, o)
	}
}

// left returns the offers that are gone at a revision of the view.
func (b *book) left(revision int64) (all []*open) {
	kept := b.leaving[:0]
	for _, o := range b.leaving {
		switch {
		case o.stage != revoked && o.stage != unsure: // it was seen
		case o.at <= revision:
			all = append(all, o)
		default:
			kept = append(kept, o)
		}
	}
	b.leaving = kept
	return all
}

// show records that a key of the dispatcher was seen.
func (b *book) show(o *open, revision int64, now time.Duration) {
	switch o.there = true; o.stage {
	case sending:
		o.at = revision
	case unsure:
		b.answered(o, revision, now)
	}
}

// hide records that no key has been seen, and returns the offers whose keys had to be there at a revision.
func (b *book) hide(revision int64) (had []*open) {
	for _, o := range b.keys {
		if o.there || o.stage != sending && o.stage != unsure && o.at <= revision {
			had = append(had, o)
		}
		o.there = false
	}
	clear(b.foreign)
	return had
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

// expired returns the keys that were put at or before a time and are open, for the caller to judge, and when the next
// one was.
func (b *book) expired(before time.Duration) (all []*open, next time.Duration, ok bool) {
	kept := b.queue[:0]
	for i, o := range b.queue {
		if o.stage == closed {
			continue
		}
		kept = append(kept, o)
		if o.since <= before {
			if o.stage == put {
				all = append(all, o)
			}
			continue
		}
		next, ok = o.since, true
		kept = append(kept, b.queue[i+1:]...)
		break
	}
	b.queue = kept
	return all, next, ok
}

// see records whether a key is in etcd that is none of the dispatcher's. It is to be deleted, and its name is not used
// before it is gone.
func (b *book) see(k wire.OfferKey, there bool) {
	if _, ok := b.foreign[k]; !ok && there {
		b.foreign[k] = false
	} else if !there {
		delete(b.foreign, k)
	}
}

// dropping records whether the deletion of such a key is under way or was carried out.
func (b *book) dropping(k wire.OfferKey, sent bool) {
	if _, ok := b.foreign[k]; ok {
		b.foreign[k] = sent
	}
}

// strays returns the keys that are to be deleted.
func (b *book) strays() (all []wire.OfferKey) {
	for k, sent := range b.foreign {
		if !sent {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, compareKeys)
	return all
}

// newKey returns the offers key of an owner with the lowest free name, which is then in use.
func (b *book) newKey(o *owner) wire.OfferKey {
	key := wire.OfferKey{Host: o.host, Instance: o.name}
	for {
		key.Name = o.newName(key.Name)
		if _, ok := b.foreign[key]; !ok {
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
