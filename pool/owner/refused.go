package owner

import (
	"errors"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// refusal says what a refusal by etcd is about.
type refusal int

const (
	ofNone  refusal = iota // the login: the same can be sent again
	ofLease                // a lease is gone
	ofPart                 // something in the transaction
)

// refusalOf returns what an error with a known outcome is about.
func refusalOf(err error) refusal {
	switch {
	case errors.Is(err, store.ErrTokenExpired), errors.Is(err, store.ErrNoLogin):
		return ofNone
	case errors.Is(err, store.ErrLeaseNotFound):
		return ofLease
	}
	return ofPart
}

// refused takes a transaction that etcd has not carried out, and never will. If that is about one of several parts, each is
// sent in a transaction of its own, to find out which.
func (o *commits) refused(b *batch, err error) {
	about := refusalOf(err)
	foreign := false
	for _, it := range b.items {
		foreign = foreign || it.foreign()
	}
	switch {
	case about == ofNone:
		o.resend(b.items)
	case about == ofLease && !foreign:
		for _, it := range b.items {
			o.leaseless(it)
		}
	case len(b.items) == 1:
		o.refusedAlone(b.items[0], err)
	default:
		var each []*item
		for _, it := range b.items {
			switch it.kind {
			case marks:
			default:
				it.noticeAlone()
				each = append(each, it)
			}
		}
		o.resend(each)
		o.isolate(len(each))
	}
}

// leaseless records that an item was not committed because a lease is gone, which may be that of its claim.
func (o *commits) leaseless(it *item) {
	if it.kind == takes {
		o.suspects.add(it.claim.lease)
		it.claim.unreserve(o.leases)
	}
	o.putOff(it)
}

// refusedAlone records that etcd has refused an item. What has to be done is tried again later; a claim is refused.
func (o *commits) refusedAlone(it *item, err error) {
	switch it.kind {
	case moves:
		o.queue.stay(it.key)
		return
	case frees:
		if it.claim.combined != nil {
			o.stay(it.claim, err)
			return
		}
		it.claim.become(releasing) // but not yet
		o.shelf.put(it)
		return
	case drops:
		o.shelf.put(it)
		return
	case marks:
		return
	}
	c, reason := it.claim, "the claim was refused"
	if refusalOf(err) == ofLease {
		o.suspects.add(c.lease)
		reason = "what claim " + c.request.ID + " was to happen with can't be written"
	}
	if from := it.from; from != nil { // it is not known yet which of them it is about
		from.separate()
		c.accuse()
		o.release(from)
		o.retry(it)
		return
	}
	o.end(it, store.Problem(reason, err))
}

// unshelve has what was refused some time ago tried again.
func (o *commits) unshelve(now time.Duration) {
	for _, it := range o.shelf.take(now) {
		switch {
		case it.kind == drops:
			o.drops.add(it.offer)
		case it.claim.state == releasing:
			o.release(it.claim)
		}
	}
	if at := o.shelf.wakes(); at > 0 {
		o.wake(at)
	}
}

// unmet records that an item was not committed because a condition of the caller of a claim does not hold.
func (o *commits) unmet(it *item, p part) {
	switch of := p.unmet; {
	case it.kind == frees:
		o.stay(of, store.ErrChanged)
		return
	case of == it.from:
		it.rise() // while it is known whose place it is
		o.stay(of, store.ErrChanged)
		o.retry(it)
		return
	}
	err := precondition(it.claim.request.ID)
	if len(p.responses) > 0 {
		err = inUse(it.claim.request.ID, p.responses[0].GetResponseRange().GetKvs())
	}
	o.end(it, err)
}

// end refuses the claim of an item that takes slots, and will not be sent again.
func (o *commits) end(it *item, err error) {
	it.rise()
	if it.from != nil {
		o.release(it.from)
	}
	o.memory.giveUp(it)
	o.offers.close(it.offer, it.of, 0)
	o.refuse(it.claim, err)
}

// precondition returns the error for a claim with a condition that does not hold.
func precondition(id string) error {
	return problem.New(problem.Precondition, "what claim %q was to happen with is no longer so", id)
}

// refusedPart is what etcd has refused of the wait queue: a demands key, or that a pool becomes pending.
type refusedPart struct {
	key  *demandKey
	pool string
}

// refused takes a transaction that etcd has not carried out, and never will. If that is about one of several parts, each is
// sent in a transaction of its own, to find out which. What is refused alone is put aside: its claims wait with the
// stamps that they have, where no other instance sees them.
func (q *queue) refused(b *batch, err error) {
	about, parts := refusalOf(err), len(b.items)+len(b.pending)
	for _, it := range b.items {
		if about == ofLease {
			q.suspects.add(it.key.lease)
		}
		if q.stay(it.key); about == ofPart && parts == 1 {
			q.shelve(it.key)
		}
	}
	q.pend()
	switch {
	case about != ofPart:
	case parts > 1:
		q.isolate(parts)
	case len(b.pending) == 1:
		q.shelf.put(refusedPart{pool: b.pending[0]})
	}
}

// refusesPending reports whether it was refused, some time ago, that a pool becomes pending.
func (q *queue) refusesPending(pool string) bool {
	return slices.ContainsFunc(q.shelf.list, func(x shelved[refusedPart]) bool { return x.what.pool == pool })
}
