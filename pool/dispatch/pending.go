package dispatch

import (
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// wait is what the demands of a pool ask for: that it may stop being pending, that it stays so if it is, or that it is
// pending, and why.
type wait int

const (
	free wait = iota
	stays
	failed
	reserves
	short
)

// pending is what the dispatcher has done about the keys of pending pools.
type pending struct {
	// asked is what demands asked for in the last plan, by pool.
	asked map[*followed]wait
	part  bool          // the last plan has not seen all demands
	again time.Duration // when a pool that is pending for its crowd is to be checked again
	// ending is set while the dispatcher ends, and no other follows: none is pending for its crowd then.
	ending bool
}

// End has the dispatcher leave no pool pending for which no claim waits: it ends, and there may be no other one. It is false if that was
// known.
func (d *Dispatcher) End() (first bool) { return d.pending.end() }

func (p *pending) end() (first bool) {
	first, p.ending = !p.ending, true
	return first
}

func newPending() pending {
	return pending{asked: map[*followed]wait{}, again: never}
}

// ask records what a demand asks for.
func (p *pending) ask(of *followed, w wait) { p.asked[of] = max(p.asked[of], w) }

// begin begins a plan.
func (p *pending) begin() { clear(p.asked); p.part = false }

// check begins a check of pending pools.
func (p *pending) check() { p.again = never }

// wakeAt has pending pools checked again at a time.
func (p *pending) wakeAt(at time.Duration) { p.again = min(p.again, at) }

// partly records that a plan ends before it has seen all demands.
func (p *pending) partly() { p.part = true }

// maybeEnded returns the pools that are pending, if all of their demands are known and have been decided about.
func (d *Dispatcher) maybeEnded() []string {
	if len(d.view.pending) == 0 || d.pending.part || !d.view.complete() {
		return nil
	}
	return slices.Sorted(maps.Keys(d.view.pending))
}

// changePending adds which pools become pending, and which stop being so.
func (d *Dispatcher) changePending(f *flight, now time.Duration) {
	n := 0
	change := func(key string, op *pb.RequestOp, count Count) {
		if n < maxPending && d.change(f, key, op) {
			n++
			d.counts.add(count)
		}
	}
	d.pending.check()
	for _, name := range d.maybeEnded() {
		p := d.view.pools[name]
		if p != nil && d.pending.asked[p] != free {
			continue
		}
		if p != nil && !d.pending.ending {
			if until, many := p.crowd.many(now); many {
				d.pending.wakeAt(until)
				continue
			}
		}
		key := d.keys.Pending(name)
		change(key, store.Nest(&pb.TxnRequest{
			Compare: []*pb.Compare{store.ModEquals(key, d.view.pending[name])}, Success: []*pb.RequestOp{store.Delete(key)},
		}), PendingEnded)
	}
	for _, p := range d.view.byIndex {
		if p == nil || d.pending.asked[p] < failed || d.view.pending[p.name] != 0 {
			continue
		}
		why := map[wait]Count{failed: PendingFailed, reserves: PendingReserved, short: PendingShort}[d.pending.asked[p]]
		key := d.keys.Pending(p.name)
		change(key, store.Put(key, wire.EncodeEmpty(), 0), why)
	}
}
