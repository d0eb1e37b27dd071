package owner

import (
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
