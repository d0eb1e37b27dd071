package dispatch

import (
	"time"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// orderHolds is for how long claims may be served before a demand that is first: slots that an owner hands on to its own
// next demand are used for 70 instead of 58% of the time, with 64 clients on 8 slots of four hosts for 5 ms each.
const orderHolds = 20 * time.Millisecond

// declinedFor is for how long an owner that has deleted an advance offer gets none.
const declinedFor = time.Second

// advances is the advance offers: while its key is there, an owner may hand each claim of a pool that it releases on to its
// next demand.
type advances struct {
	there    map[wire.OfferKey]bool // as the view shows it
	wanted   map[wire.OfferKey]bool // by the last plan
	declined map[wire.OfferKey]time.Duration
	own      map[string]bool // pools in which the dispatcher's own instance may do so
}

func newAdvances() advances {
	return advances{there: map[wire.OfferKey]bool{}, wanted: map[wire.OfferKey]bool{}, declined: map[wire.OfferKey]time.Duration{}, own: map[string]bool{}}
}

// show records that the view shows a key, or that it was deleted: by its owner, unless that was sent.
func (a *advances) show(key wire.OfferKey, deleted, sent bool, now time.Duration) {
	if !deleted {
		a.there[key] = true
		return
	}
	if a.there[key] && !sent {
		a.declined[key] = now
	}
	delete(a.there, key)
}

// hide records that no key was seen, before all is read.
func (a *advances) hide() {
	clear(a.there)
}

// begin begins a plan.
func (a *advances) begin(now time.Duration) {
	clear(a.wanted)
	clear(a.own)
	for key, at := range a.declined {
		if now-at > declinedFor {
			delete(a.declined, key)
		}
	}
}

// want records that a key may be there, until the next plan.
func (a *advances) want(key wire.OfferKey) { a.wanted[key] = true }

// allow has the dispatcher's own instance hand on claims of a pool.
func (a *advances) allow(pool string) { a.own[pool] = true }

// missing returns the keys that are to be put.
func (a *advances) missing() (all []wire.OfferKey) {
	for key := range a.wanted {
		if _, declined := a.declined[key]; !declined && !a.there[key] {
			all = append(all, key)
		}
	}
	return all
}

// surplus returns the keys that are to be deleted.
func (a *advances) surplus() (all []wire.OfferKey) {
	for key := range a.there {
		if !a.wanted[key] {
			all = append(all, key)
		}
	}
	return all
}

// advanced reports whether there is an advance offer in a pool, or may be.
func (d *Dispatcher) advanced(pool string) bool {
	for key := range d.await {
		if of, err := d.keys.OfferKey(key); err == nil && of.Advance == pool {
			return true
		}
	}
	for of := range d.advances.there {
		if of.Advance == pool {
			return true
		}
	}
	return false
}

// maxAdvances bounds the advance offers that a transaction puts, and those that it deletes.
const maxAdvances = 5

// Advance reports whether the dispatcher's own instance may hand claims of a pool that it releases on to its next demand
// there, in a transaction that compares the role.
func (d *Dispatcher) Advance(pool string) bool { return d.advances.own[pool] }

// rank is what the demands of a pool without offers mean for advance offers.
type rank struct {
	first   *demand            // with or without an offer
	next    *demand            // without an offer
	blocks  *demand            // the first that reserves, or fits
	byOwner map[*owner]*demand // the first of each owner without an offer
	late    bool               // the first one has been so for too long
}

func before(x, y *demand) *demand {
	if x == nil || y != nil && y.compare(x) < 0 {
		return y
	}
	return x
}

// planAdvances decides which owners have advance offers. The order holds but for orderHolds: while a demand was first for
// longer, and while one of a higher priority, one that reserves or one that fits has no offer, no owner whose first demand
// ranks behind it has one.
func (p *plan) planAdvances() {
	a := &p.d.advances
	a.begin(p.now)
	ranks := map[*followed]*rank{}
	for _, f := range p.d.view.byIndex {
		if f != nil && p.advancing(f) {
			ranks[f] = &rank{byOwner: map[*owner]*demand{}}
		}
	}
	if len(ranks) > 0 {
		p.rank(ranks)
	}
	for f, r := range ranks {
		p.advance(f, r)
	}
	for key := range a.there {
		f := p.d.view.pools[key.Advance]
		r, o := ranks[f], p.d.owners.all[instance{key.Host, key.Instance}]
		if r == nil || o == nil || o.passing != served {
			continue
		}
		if r.byOwner[o] == nil && !r.late && r.blocks == nil { // what it wants next ranks behind all that wait
			a.want(key)
		}
	}
}

// advancing reports whether there can be advance offers in a pool: it is full, no claim waits for the whole of it, and at
// most half as many owners wait as there are slots, or one.
func (p *plan) advancing(f *followed) bool {
	c := f.capacity()
	if !c.Open || c.Limit == pool.Unlimited || f.slots.Held() > c.Limit {
		return false
	}
	whole := p.stopped[f] == everything || p.d.book.whole[f] > 0
	return !whole && len(f.waiting) > 0 && 2*len(f.waiting) <= max(2, c.Limit) && p.walk.Free()[f.index] <= 0
}

// rank collects what the demands of pools mean for advance offers.
func (p *plan) rank(ranks map[*followed]*rank) {
	for _, l := range p.d.order.lanes {
		x := l.heap.all[0]
		if !p.fits[x] && !x.possible() {
			continue
		}
		for _, n := range x.needs {
			r := ranks[n.pool]
			if r == nil {
				continue
			}
			r.first, r.next = before(r.first, x), before(r.next, x)
			r.byOwner[x.owner] = before(r.byOwner[x.owner], x)
			if x.reserve || p.fits[x] {
				r.blocks = before(r.blocks, x)
			}
		}
	}
	for _, o := range p.d.book.all() {
		for _, l := range o.loans {
			x := l.demand
			if x.stage != waits || !x.possible() {
				continue
			}
			for _, n := range x.needs {
				if r := ranks[n.pool]; r != nil {
					r.first = before(r.first, x)
				}
			}
		}
	}
}

// possible reports whether a demand could be served if nothing were held, and its owner is not passed.
func (x *demand) possible() bool {
	if x.owner.passing != served {
		return false
	}
	for _, n := range x.needs {
		if c := n.pool.capacity(); !c.Open || c.Limit != pool.Unlimited && n.n > c.Limit {
			return false
		}
	}
	return true
}

// advance decides about the owners that wait for a pool.
func (p *plan) advance(f *followed, r *rank) {
	if r.first != nil {
		since := r.first.firstSince(p.now)
		if r.late = p.now-since > orderHolds; !r.late {
			p.wakeAt(since + orderHolds + 1)
		}
	}
	for o, x := range r.byOwner {
		may := !r.late || r.first.owner == o
		may = may && x.rank.Priority == r.next.rank.Priority && (r.blocks == nil || r.blocks.compare(x) >= 0)
		holds := f.holds[o.instance] > 0
		key := wire.OfferKey{Host: o.host, Instance: o.name, Name: -1, Advance: f.name}
		switch {
		case !may:
		case o.instance != p.d.self:
			if holds || p.d.advances.there[key] {
				p.d.advances.want(key)
			}
		case holds:
			p.d.advances.allow(f.name)
		}
	}
}
