package owner

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// localWait is for how long a claim waits for releases of its own instance in a full pool, before it waits in etcd.
	localWait = 20 * time.Millisecond
	// servedWait is for how long it does so while those before it get slots, none of them more than localWait after the last one.
	servedWait = 5 * localWait
	// maxServed is up to how many claims that are to be taken directly any of them does so.
	maxServed = 1000
)

// commits takes and releases slots: it is the half of the writer that changes slot keys and blocks, and with them
// offers keys and the demands that end.
type commits struct {
	memory   *memory
	queue    *queue
	offers   *offers
	outcomes *outcomes
	leases   Leases
	sender

	want     todo[*Claim] // to be taken directly
	routed   int          // so many of the first ones were judged since something was read, and a transaction is under way
	releases todo[*Claim]
	drops    todo[*offered] // offers keys to be deleted
	again    todo[*item]    // of a transaction that failed, to be sent with a child for each
	shelf    shelf[*item]
	split    int // so many more transactions have a child for each item
	wakes    time.Duration
	turn     *turn // of demands, nil if none has its turn
	surveys  *surveys
}

// Next returns the next transaction, false if there is none, or one is under way.
func (o *commits) Next(now time.Duration, at time.Time) (*pb.TxnRequest, bool) {
	if o.flight != nil {
		(&plan{commits: o, now: now, at: at, reuse: newReuse()}).route()
		return nil, false
	}
	o.wakes = 0
	kind := o.kind(now)
	if kind == probes {
		return o.send(newProbe(), now)
	}
	b := newBatch(kind, kind == onlyDeletes || o.again.len() > 0 || o.split > 0, o.isolated > 0)
	o.unshelve(now)
	o.reroute()
	p := &plan{commits: o, b: b, now: now, at: at, reuse: newReuse()}
	if kind == onlyDeletes {
		o.putAllOff()
		p.deletions()
	} else if o.repeat(b); o.again.len() == 0 {
		p.all()
	}
	if len(b.items) == 0 {
		return nil, false
	}
	o.split = max(0, o.split-1)
	return o.send(b, now)
}

// repeat adds what failed together with others, as far as there is space.
func (o *commits) repeat(b *batch) {
	for _, it := range o.again.take() {
		if it.kind == takes && !o.leases.Valid(it.claim.lease) {
			o.leaseless(it)
		} else if b.full || !b.add(it) {
			o.again.add(it)
		}
	}
}

// resend has items sent again, each as a child. The queue puts the demands keys among them, if they still need that: a demand is not
// to leave the queue while its claim may not be taken.
func (o *commits) resend(items []*item) {
	for _, it := range items {
		if it.kind == moves {
			o.queue.stay(it.key)
		} else {
			o.again.add(it)
		}
	}
}

// wake has Next called at a time.
func (o *commits) wake(at time.Duration) {
	if o.wakes == 0 || at < o.wakes {
		o.wakes = at
	}
}

// reroute has all claims judged again.
func (o *commits) reroute() { o.routed = 0 }

// noteRouted records that all were judged.
func (o *commits) noteRouted() { o.routed = o.want.len() }

// serve has demands committed whose turn it is, instead of those of an earlier survey that are left: in a full etcd none are.
func (o *commits) serve(t *turn) { o.turn = t }

// takeTurn returns the turn of demands, and forgets it.
func (o *commits) takeTurn() *turn {
	t := o.turn
	o.turn = nil
	return t
}

// Answer takes the answer to Next, or the error that there was instead. It returns true if the outcome is unknown, or
// another process has written as this instance.
func (o *commits) Answer(resp *pb.TxnResponse, err error) (unknown bool) {
	b, is := o.answer(resp, err)
	switch is {
	case isRefused:
		o.refused(b, err)
	case isFailed:
		o.resend(b.items)
	case isDone:
		o.outcomes.counts.sent(len(b.items))
		o.answered(b, resp, true) // a demand that ends is not in its key any longer
		o.answered(b, resp, false)
	}
	return is == isUnknown
}

// answered records what has become of the items that move demands keys, or of the others.
func (o *commits) answered(b *batch, resp *pb.TxnResponse, move bool) {
	for i, p := range b.parts(resp) {
		switch it := b.items[i]; {
		case (it.kind == moves) != move:
		case p.done:
			o.done(it, resp.Header.Revision, p.responses)
		case p.unmet != nil:
			o.unmet(it, p)
		default:
			if it.kind == takes {
				o.outcomes.counts.conflict(it.how())
			}
			o.split = splitFor
			o.lost(it, p.responses, resp.Header.Revision)
		}
	}
}

// done records that an item was committed in a revision, with the responses unless they were lost.
func (o *commits) done(it *item, revision int64, responses []*pb.ResponseOp) {
	switch it.kind {
	case frees:
		o.released(it.claim, revision, nil)
	case moves:
		o.queue.moved(it, true, revision)
	case takes:
		o.granted(it, revision, responses)
	}
}

// granted records that the slots of a claim were taken.
func (o *commits) granted(it *item, revision int64, responses []*pb.ResponseOp) {
	c, keys := it.claim, map[string]slots.Held{}
	o.outcomes.counts.granted(it.how())
	o.offers.close(it.offer, it.of, revision)
	for name, h := range it.held {
		o.memory.pools[name].grant()
		switch {
		case it.from != nil:
		case c.transfer != nil:
			o.memory.pools[name].Adopt(h)
		default:
			h = o.memory.pools[name].Took(h, revision)
		}
		keys[name] = h
	}
	since := it.at
	if c.transfer != nil {
		since = c.transfer.record.Since
	}
	if c.demand != nil {
		o.queue.collecting.served(it.at.Sub(c.since))
		o.queue.end(c.demand, it.ended == c.demand.ref()) // it may have been put elsewhere while the outcome was unknown
	}
	c.hold(keys, revision, since, it.responses(responses))
	if c.passing.turn != nil && c.demand != nil {
		o.surveys.served()
	}
	c.passing.give(nil)
	if from := it.from; from != nil {
		o.finish(from)
		o.outcomes.news.add(Result{Claim: from, Outcome: Released, Revision: revision})
	}
	if c.withdrawn && !c.kept {
		c.request.Place.Give()
		o.release(c)
		return
	}
	o.outcomes.news.add(Result{Claim: c, Outcome: Granted})
	if c.request.Bridge { // another instance may take it over and release it
		for name, h := range c.keys {
			o.memory.pools[name].Vanished(h)
		}
	}
}

// release has a claim released.
func (o *commits) release(c *Claim) {
	c.become(releasing)
	o.releases.add(c)
}

// released records that the slots of a claim are free, or were gone.
func (o *commits) released(c *Claim, revision int64, err error) {
	o.forget(c, err == nil)
	o.outcomes.news.add(Result{Claim: c, Outcome: Released, Revision: revision, Err: err})
}

// forget ends a claim whose keys were deleted, by a transaction of this instance or without it.
func (o *commits) forget(c *Claim, mine bool) {
	for name, h := range c.keys {
		k := o.memory.pools[name]
		if k.use(-1); mine {
			k.Freed(h)
		} else {
			k.Vanished(h)
		}
	}
	if !mine {
		o.dropID(c.request, c.fence)
	}
	o.finish(c)
}

// finish ends a claim that has no slots any longer. Its demand is taken out of its key, if that lists it still.
func (o *commits) finish(c *Claim) {
	if k := c.listed(); k != nil {
		o.queue.change(k)
	}
	c.unreserve(o.leases)
	c.end()
}

// lost records that an item was not committed, because one of its compares failed, and what was read instead.
func (o *commits) lost(it *item, responses []*pb.ResponseOp, revision int64) {
	switch it.kind {
	case frees:
		o.released(it.claim, 0, ErrGone)
		return
	case moves:
		o.queue.moved(it, false, revision)
		return
	case drops, marks:
		return // it is gone, or has changed
	}
	if it.claim.transfer != nil {
		o.unmet(it, part{unmet: it.claim})
		return
	}
	c := it.claim
	if c.passing.turn != nil && c.demand != nil {
		o.surveys.again()
	}
	c.passing.give(nil)
	if from := it.from; from != nil {
		from.separate()
		c.separate()
		o.release(from)
	} else {
		for name, h := range it.held {
			o.memory.pools[name].Lost(h)
			o.memory.pools[name].use(-1)
		}
		c.lose(o.memory.begun)
	}
	at := 0
	for _, r := range it.reads { // which may show that another compare has failed, and the numbers are free
		if len(responses) > 0 {
			at += o.memory.answer(r, responses[at:], revision)
		}
	}
	o.retry(it)
}

// retry has a claim taken again, or wait again, after a transaction that did not take its slots.
func (o *commits) retry(it *item) {
	it.rise()
	o.offers.close(it.offer, it.of, 0)
	c := it.claim
	c.passing.give(nil)
	switch {
	case c.withdrawn:
		o.refuse(c, nil)
	case c.demand == nil:
		c.unwait()
		o.want.add(c)
	default:
		c.wait(c.demand)
	}
}

// refuse ends a claim that has no slots. One that is not wanted is withdrawn, whatever the error is.
func (o *commits) refuse(c *Claim, err error) {
	if c.demand != nil {
		o.queue.end(c.demand, false)
	}
	c.request.Place.Give()
	c.unreserve(o.leases)
	c.end()
	if c.withdrawn {
		o.outcomes.news.add(Result{Claim: c, Outcome: Withdrawn})
	} else {
		o.outcomes.news.add(Result{Claim: c, Outcome: Refused, Err: err})
	}
}

// Unresolved returns the transaction that reads what has become of one with an unknown outcome, once that can't happen
// any longer.
func (o *commits) Unresolved() *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for _, it := range o.flight.items {
		t.Success = append(t.Success, together(o.readsOf(it)))
	}
	return t
}

// readsOf returns the reads that show what has become of an item.
func (o *commits) readsOf(it *item) []*pb.RequestOp {
	if it.kind == moves {
		return o.queue.reads(it.key)
	}
	all := []*pb.RequestOp{store.Get(o.mainOf(it))}
	if it.choosesID() {
		all = append(all, store.Get(o.memory.keys.ID(it.claim.request.ID)))
	}
	return all
}

// mainOf returns the key that shows what has become of an item.
func (o *commits) mainOf(it *item) string {
	switch it.kind {
	case frees:
		return it.claim.main.Key(o.memory.keys)
	case drops:
		return it.offer.key
	case marks:
		return it.shared[0].key
	}
	return wire.Refs(it.held)[0].Key(o.memory.keys)
}

// Resolved takes the answer to Unresolved.
func (o *commits) Resolved(resp *pb.TxnResponse) {
	b := o.resolved()
	o.memory.forget()
	for i, it := range b.items {
		read := apart(resp.Responses[i])
		if it.kind == moves {
			o.queue.resolve(it, read)
			continue
		}
		kvs := read[0].GetResponseRange().Kvs
		var id []*mvccpb.KeyValue
		if it.choosesID() {
			id = read[1].GetResponseRange().Kvs
		}
		switch it.kind {
		case marks:
			continue // what is there still is read by the next poll
		case drops:
			if len(kvs) > 0 && kvs[0].CreateRevision == it.offer.created {
				o.drops.add(it.offer)
			}
			continue
		}
		var revision int64
		mine := false // its key is there, on its lease
		if len(kvs) > 0 {
			revision = kvs[0].ModRevision
			_, s, err := o.memory.keys.DecodeSlot(string(kvs[0].Key), kvs[0].Value, kvs[0].CreateRevision)
			mine = err == nil && s.Claim == it.claim.request.ID && store.LeaseID(kvs[0].Lease) == it.claim.lease
		}
		switch held := mine && revision == it.claim.fence; {
		case it.kind == frees && held:
			o.release(it.claim)
		case it.kind == frees && it.claim.combined != nil:
			o.released(it.claim, 0, errOutcomeUnknown)
		case it.kind == frees:
			o.dropID(it.claim.request, it.claim.fence)
			o.released(it.claim, 0, nil)
		case mine:
			o.done(it, revision, nil)
		default:
			o.unresolvedTake(it, id, revision, resp.Header.Revision)
		}
	}
}

// unresolvedTake records that a claim of a transaction with an unknown outcome does not have its slots. They may have come
// and gone: then the dispatcher has seen that its demand has ended, so that is put under another name.
//
// If the keys that it has tried to take over are not of the revision that they had either, it may have taken them over, with
// all that was written with that. The same is true of a claim that another instance may have taken over since.
func (o *commits) unresolvedTake(it *item, id []*mvccpb.KeyValue, is, revision int64) {
	c, d := it.claim, it.claim.demand
	if from := it.from; from != nil && from.combined != nil && is != from.fence {
		it.withoutFrom()
		o.released(from, 0, errOutcomeUnknown)
	}
	switch t := c.transfer; {
	case t != nil && is == t.revision:
		o.memory.giveUp(it)
		o.retry(it)
		return
	case c.tookID(id): // its slots have come and gone
		o.dropID(c.request, id[0].CreateRevision)
		o.end(it, errOutcomeUnknown)
		return
	case t != nil, c.request.Bridge:
		o.end(it, errOutcomeUnknown)
		return
	}
	o.lost(it, nil, revision)
	if d != nil && !d.over && d.key != nil {
		o.queue.renew(d)
	}
}

// leaseLost records that a lease has ended, with the slots of claims. Those that are being released find out by themselves.
func (o *commits) leaseLost(claims []*Claim) {
	for _, c := range claims {
		if c.state == freeing && c.combined != nil {
			c.combined.lose()
		}
		if c.state != held && c.state != releasing {
			continue
		}
		o.releases.remove(func(r *Claim) bool { return r == c })
		o.forget(c, false)
		o.outcomes.news.add(Result{Claim: c, Outcome: Lost})
	}
}
