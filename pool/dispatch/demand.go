package dispatch

import (
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// demandsKey is one of the keys of demands of one batch, one in each of their pools.
type demandsKey struct {
	created int64
	wire.Demands
}

// first returns the pool of the key that has the demands, of a key in a pool.
func (k demandsKey) first(pool string) string {
	if k.First != "" {
		return k.First
	}
	return pool
}

// batch is the demands of one batch: they count only if the keys of all their pools were created with the first one.
type batch struct {
	created int64
	demands map[int]*demand // by index
}

// need is how many slots a demand needs of a pool.
type need struct {
	pool   *followed
	n      int
	blocks bool // it takes blocks
}

// stage is how far a demand has come.
type stage int

const (
	waits stage = iota
	ended       // it has slots, though it may be in etcd still
	gone        // it is no longer in etcd, and was not seen to have slots
)

// demand is a claim that waits for slots.
type demand struct {
	ref     wire.DemandRef
	owner   *owner
	claim   string
	rank    wire.Rank
	needs   []need
	lists   []string // pools that it keeps pending
	reserve bool

	stage stage
	open  bool // an offer is
	fails int  // offers that came to nothing
	again time.Duration

	first time.Duration // when it was first in a pool for the first time, plus 1; 0 before
	lane  *lane
	pos   int // in the lane
}

// newDemand returns a demand as the first key of its batch has it, which was created at a revision.
func (d *Dispatcher) newDemand(key wire.DemandKey, created int64, w *wire.Demand) *demand {
	x := &demand{ref: key.Ref(created, w.Index), owner: d.owners.of(instance{key.Host, key.Instance}), claim: w.Claim}
	x.change(w, created)
	blocks := slots.ByBlocks(w.Pools)
	for _, p := range slices.Sorted(maps.Keys(w.Pools)) {
		x.needs = append(x.needs, need{d.view.pools[p], w.Pools[p], blocks[p]})
	}
	return x
}

// change records what the key of a demand says of it now: its claim and pools stay.
func (x *demand) change(w *wire.Demand, created int64) {
	x.rank = wire.Rank{Priority: w.Priority, Stamp: w.Stamped(created), Claim: x.claim, Demand: x.ref}
	x.lists, x.reserve = w.Pending, w.Reserve
}

// compare ranks demands: the first one is served first.
func (x *demand) compare(y *demand) int { return x.rank.Compare(&y.rank) }

// waiter returns what a demand needs.
func (x *demand) waiter() *admit.Waiter {
	w := &admit.Waiter{Reserve: x.reserve}
	for _, n := range x.needs {
		w.Needs = append(w.Needs, admit.Need{Pool: n.pool.index, N: n.n})
	}
	return w
}

// end records that a demand has its slots, or is no longer in etcd.
func (x *demand) end(s stage) { x.stage = s }

// offered records an open offer, or that the demand is being refused.
func (x *demand) offered() { x.open = true }

// mayHave reports whether it may get an offer: one at a time.
func (x *demand) mayHave() bool { return x.stage == waits && !x.open }

const (
	// firstPause and mostPause are after what time a demand gets another offer, after the first one and after many that
	// came to nothing.
	firstPause = 10 * time.Millisecond
	mostPause  = time.Second
)

// returned records that an offer is no longer open.
func (x *demand) returned() { x.open = false }

// declined records that the owner has not taken an offer.
func (x *demand) declined(now time.Duration) {
	pause := mostPause
	if x.fails < 7 {
		pause = min(mostPause, firstPause<<x.fails)
	}
	x.fails, x.again = x.fails+1, now+pause
}

// firstSince returns when a demand that is first in a pool was so for the first time.
func (x *demand) firstSince(now time.Duration) time.Duration {
	if x.first == 0 {
		x.first = now + 1
	}
	return x.first - 1
}

// moved records where a demand is in the order.
func (x *demand) moved(l *lane, pos int) { x.lane, x.pos = l, pos }
