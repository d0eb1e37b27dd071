package owner

import (
	"slices"
	"time"

	"github.com/berthhq/berth/pool/wire"
)

// demand is a place in the wait queue.
type demand struct {
	claim *Claim
	// short are its pools that had no free slots for it, or could not grant: it keeps them pending.
	short []string
	// reserves has slots kept for it while it does not fit.
	reserves bool

	// key is where it is, or shall be, in etcd, with an index. The stamp is nil while it is that of the key.
	key   *demandKey
	index int
	stamp *wire.Stamp
	// fits is since when it has fitted without an offer, 0 if it does not.
	fits time.Duration
	// over is set when it has ended; its key may list it still.
	over bool
}

// ref names the demand. It is the zero value if it is not known to be in etcd.
func (d *demand) ref() wire.DemandRef {
	if d.key == nil || d.key.created == 0 {
		return wire.DemandRef{}
	}
	return wire.DemandRef{Pool: d.key.pools[0], Name: d.key.name, Created: d.key.created, Index: d.index}
}

// stamped returns its stamp, false if it has none yet.
func (d *demand) stamped() (wire.Stamp, bool) {
	switch {
	case d.stamp != nil:
		return *d.stamp, true
	case d.key != nil && d.key.created != 0:
		return wire.Stamp{Revision: d.key.created, Index: d.index}, true
	}
	return wire.Stamp{}, false
}

// keep keeps its stamp for another key.
func (d *demand) keep() {
	if s, ok := d.stamped(); ok {
		d.stamp = &s
	}
}

// placeAs gives it the place of an earlier demand of its claim.
func (d *demand) placeAs(p Place) {
	d.stamp, d.reserves = &p.stamp, p.reserves
}

// placeAt gives it the place of what has waited since a revision.
func (d *demand) placeAt(revision int64) { d.stamp = &wire.Stamp{Revision: revision} }

// placeIn gives it an index in a key.
func (d *demand) placeIn(k *demandKey, index int) { d.key, d.index = k, index }

// unplace takes it out of its key, to be put elsewhere with its stamp.
func (d *demand) unplace() {
	d.keep()
	d.key = nil
}

// fit records that it fits, and returns whether it has for some time.
func (d *demand) fit(now time.Duration) bool {
	if d.fits == 0 {
		d.fits = now
	}
	return now-d.fits >= fitsFor
}

// unfit records that it does not fit, or has an offer.
func (d *demand) unfit() { d.fits = 0 }

// reserve has slots kept for it.
func (d *demand) reserve() { d.reserves = true }

// end marks its end.
func (d *demand) end() { d.over = true }

// wire returns it as it is put.
func (d *demand) wire() wire.Demand {
	r := d.claim.request
	return wire.Demand{
		Index: d.index, Claim: r.ID, Pools: r.Slots, Priority: r.Priority, Stamp: d.stamp, Reserve: d.reserves,
		Pending: d.short, Sole: r.Sole, Since: wire.Time(d.claim.since), Holder: r.Holder,
	}
}

// bytes is about how many bytes it takes in a key: at least as many.
func (d *demand) bytes() int { return d.claim.spelled.Len() + 512 }

// keyState says what is known of a demands key.
type keyState int

const (
	absent  keyState = iota // it is not in etcd
	placed                  // it is, since the revision that created it
	moving                  // a transaction that puts or deletes it is under way
	removed                 // it is not in use any longer
)

// partly says instead of the revision that created a key that it may be in some of its pools, and is to be deleted there.
const partly = -1

// demandKey is demands that share a key in each of their pools.
type demandKey struct {
	pools   []string
	name    int
	created int64 // 0 if it is not known, or partly
	state   keyState
	changed bool // it is to be put again, or deleted
	lease   leaseOf
	list    []*demand
}

// live returns its demands that have not ended.
func (k *demandKey) live() (all []*demand) {
	return slices.DeleteFunc(slices.Clone(k.list), func(d *demand) bool { return d.over })
}

// left returns how many demands would be left without some that end.
func (k *demandKey) left(ending map[*demand]bool) (n int) {
	for _, d := range k.list {
		if !d.over && !ending[d] {
			n++
		}
	}
	return n
}

// lists reports whether the key may list a demand still.
func (k *demandKey) lists(d *demand) bool { return slices.Contains(k.list, d) }

// add adds a demand.
func (k *demandKey) add(d *demand) {
	index := 0
	if n := len(k.list); n > 0 {
		index = k.list[n-1].index + 1
	}
	k.list = append(k.list, d)
	d.placeIn(k, index)
}

// move marks that a transaction with some of its demands is under way.
func (k *demandKey) move() { k.state, k.changed = moving, false }

// put records that it was put with some demands, in a key that was created at a revision. Those that were put elsewhere
// meanwhile are no longer its own.
func (k *demandKey) put(list []*demand, created int64) {
	k.state, k.created = placed, created
	k.list = slices.DeleteFunc(slices.Clone(list), func(d *demand) bool { return d.key != k })
}

// forget takes a demand out that was put elsewhere.
func (k *demandKey) forget(d *demand) {
	k.list = slices.DeleteFunc(k.list, func(o *demand) bool { return o == d })
}

// worthPutting reports whether at least half of the demands that it lists have ended, or end.
func (k *demandKey) worthPutting(ending map[*demand]bool) bool {
	return k.left(ending)*2 <= len(k.list)
}

// change has it put again.
func (k *demandKey) change() { k.changed = true }

// stay records that a transaction with it was not carried out.
func (k *demandKey) stay() {
	if k.state, k.changed = absent, true; k.created != 0 {
		k.state = placed
	}
}

// vanish records that it is not in etcd. Its demands keep their stamps.
func (k *demandKey) vanish() {
	for _, d := range k.list {
		d.keep()
	}
	k.state, k.created, k.changed = absent, 0, true
	k.list = k.live()
}

// moveTo has its demands put in another key.
func (k *demandKey) moveTo(n *demandKey) {
	for _, d := range k.list {
		n.add(d)
	}
	k.list = nil
}

// remain records that it may be in some of its pools.
func (k *demandKey) remain() { k.state, k.created = placed, partly }

// rename gives it another name.
func (k *demandKey) rename(name int) { k.name = name }

// remove marks its end.
func (k *demandKey) remove() { k.state, k.list = removed, nil }

// onLease puts its keys on a lease.
func (k *demandKey) onLease(l leaseOf) { k.lease = l }
