package dispatch

import (
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/pool/wire"
)

// applyOffer records a key below offers/ that was put or deleted.
func (d *Dispatcher) applyOffer(kv *mvccpb.KeyValue, key string, deleted bool, now time.Duration) {
	name, err := d.keys.OfferKey(key)
	if err != nil {
		return // it is below the prefix of no instance, or of none that can be named
	}
	of := instance{name.Host, name.Instance}
	if name.Advance != "" {
		_, sent := d.await[key]
		d.advances.show(name, deleted, sent, now)
		return
	}
	if name.Passed() {
		d.applyPassed(name, kv.ModRevision, deleted)
		return
	}
	o := d.book.keys[name]
	switch {
	case o == nil:
		d.book.see(name, !deleted)
	case !deleted:
		d.book.show(o, kv.ModRevision)
	default:
		if o.stage != revoking {
			d.owners.write(of, kv.ModRevision)
		}
		d.book.leave(o, kv.ModRevision)
	}
}

// closed records that the offers of a key can no longer be committed. The view has all that was committed from it.
func (d *Dispatcher) closed(o *open, now time.Duration) {
	if o.stage == closed {
		return
	}
	declined := o.stage != revoking && (o.there || o.own())
	if d.book.remove(o); !o.own() {
		o.owner.unname(o.key.Name)
	}
	for _, l := range o.loans {
		x := l.demand
		for i, h := range l.held {
			x.needs[i].pool.slots.Return(h)
		}
		x.returned()
		how := Withdrawn
		switch {
		case x.stage == ended:
			how = Committed
			d.silence.took(now, now-o.since)
		case x.stage == waits && declined:
			x.declined(now)
			d.failed(x)
			how = Declined
		}
		if !l.refused {
			d.counts.add(how)
		}
		d.queue(x)
	}
	d.owners.forget(o.owner)
	d.touch()
}

// offerOwn offers to the dispatcher's own instance.
func (d *Dispatcher) offerOwn(o *open) {
	d.book.addOwn(o)
	d.own = append(d.own, o.loans[0].offer())
}

// Offers returns what was offered to the dispatcher's own instance since the last call. Each is to be committed under a
// compare of the role, and reported by Committed or Declined.
func (d *Dispatcher) Offers() []wire.Offer {
	all := d.own
	d.own = nil
	return all
}

// Committed records that an offer to the dispatcher's own instance was committed at a revision.
func (d *Dispatcher) Committed(demand wire.DemandRef, revision int64, now time.Duration) {
	if o := d.book.takeOwn(demand); o != nil {
		d.book.leave(o, revision)
		d.shown(now)
	}
}

// Declined records that an offer to the dispatcher's own instance was not committed, and can't be any longer.
func (d *Dispatcher) Declined(demand wire.DemandRef, now time.Duration) {
	if o := d.book.takeOwn(demand); o != nil {
		d.closed(o, now)
	}
}

// all returns all that is open.
func (b *book) all() (all []*open) {
	for _, o := range b.keys {
		all = append(all, o)
	}
	for _, own := range b.own {
		all = append(all, own...)
	}
	for _, o := range b.leaving {
		if o.own() {
			all = append(all, o)
		}
	}
	return all
}
