package owner

import (
	"maps"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxRaces is how many races a claim loses before it has to wait for its turn.
	maxRaces = 4
	// readRaces is how many it loses before its pools are read: what is remembered of them is of little use then.
	readRaces = 2
)

// State says where a claim is on its way.
type State int

const (
	wanted    State = iota // it is to be taken directly
	waiting                // it is in the wait queue
	taking                 // a transaction that takes its slots is under way
	held                   // it has its slots
	releasing              // its slots are to be released
	freeing                // a transaction that releases them is under way
	ended                  // it is refused, withdrawn, released or lost
)

// Claim is a claim of this instance.
type Claim struct {
	request *pool.Request
	pools   []string        // sorted
	blocks  map[string]bool // pools of which it takes blocks
	kind    string          // the same for all claims that can take over each other's keys; "" if none can
	spelled wire.Spelled

	state State
	wish
	lease   store.LeaseID
	came    time.Duration
	arrived uint64 // reads that had begun when it came, or had to be read for
	races   int
	alone   bool // it is committed or released without another claim
	accused bool // etcd has refused a transaction in which it takes over keys
	demand  *demand
	place   *Place // in which it waits if it has to; nil for a new one

	keys  map[string]slots.Held
	main  wire.Ref
	fence int64
	since time.Time // when it was asked for, and then when it was granted
	extra []*pb.ResponseOp

	found    bool      // its keys were found in etcd, and only these are reserved on its lease
	transfer *transfer // what is taken over; nil if it takes slots, or has them
	combined *combined // with what it is released; nil if it is released by itself
	passing  passing   // those that wait
}

// NewClaim returns a claim for a valid request, which must not be changed.
func NewClaim(r *pool.Request) *Claim {
	c := &Claim{request: r, pools: slices.Sorted(maps.Keys(r.Slots)), blocks: slots.ByBlocks(r.Slots), spelled: wire.Spell(r)}
	if len(c.blocks) == 0 {
		for _, p := range c.pools {
			c.kind += p + "=" + strconv.Itoa(r.Slots[p]) + " "
		}
	}
	return c
}

// NewTakeOver returns a claim that another instance holds, to be taken over. Nothing of the request may be changed.
func NewTakeOver(r *pool.TakeOver) *Claim {
	c := NewClaim(&pool.Request{ID: r.ID, Slots: r.Slots, Holder: r.Holder, Extra: r.Extra})
	c.transfer = &transfer{revision: r.Fence.Revision()}
	return c
}

// find records what etcd has of a claim that is to be taken over.
func (c *Claim) find(t *transfer) {
	r := *c.request
	r.Slots, r.Priority = t.record.Pools, t.record.Priority
	n := NewClaim(&r)
	c.request, c.pools, c.blocks, c.kind, c.spelled, c.transfer = n.request, n.pools, n.blocks, n.kind, n.spelled, t
}

// foundClaim returns a claim whose keys were found on a lease, put in a revision.
func foundClaim(r *pool.Request, lease store.LeaseID, keys map[string]slots.Held, revision int64, since time.Time) *Claim {
	c := NewClaim(r)
	c.lease, c.found = lease, true
	c.hold(keys, revision, since, nil)
	return c
}

// Request returns the request of the claim.
func (c *Claim) Request() *pool.Request { return c.request }

// Fence returns the fencing token of a claim that was granted.
func (c *Claim) Fence() store.Fence { return store.FenceAt(c.fence) }

// Since returns when it was asked for, and once it is granted, when that was.
func (c *Claim) Since() time.Time { return c.since }

// Lease returns the lease of its keys; 0 if it has none.
func (c *Claim) Lease() store.LeaseID { return c.lease }

// Keys returns how many keys it has on its lease.
func (c *Claim) Keys() int { return len(wire.Refs(c.keys)) + otherKeys(c.request) }

// Extra returns the responses to [store.Extra.Then] of a claim that was granted; nil if they were lost.
func (c *Claim) Extra() []*pb.ResponseOp { return c.extra }

// otherKeys returns how many keys go with the slots of a claim on its lease.
func otherKeys(r *pool.Request) int {
	if r.Chosen {
		return len(r.Extra.Leased) + 1
	}
	return len(r.Extra.Leased)
}

// mostKeys returns how many keys a claim may need at most.
func mostKeys(r *pool.Request, blocks map[string]bool) (n int) {
	n = otherKeys(r)
	for name, keys := range r.Slots {
		if blocks[name] {
			keys = slots.MaxAreas
		}
		n += keys
	}
	return n
}

// listed returns the key that lists its demand, nil if none does.
func (c *Claim) listed() *demandKey {
	if d := c.demand; d != nil && d.key != nil && d.key.lists(d) {
		return d.key
	}
	return nil
}

// offered returns what is offered to it, false if that is not what it needs, or something that no transaction can put.
func (c *Claim) offered(of wire.Offer) (map[string]slots.Held, bool) {
	all := map[string]slots.Held{}
	for name, take := range of.Take {
		h, err := take.Held()
		if err != nil || h.Slots() != c.request.Slots[name] || h.Repeats() {
			return nil, false
		}
		all[name] = h
	}
	return all, len(all) == len(c.pools)
}

// arrive records when it came, also in time of day, and which reads began before that. One with a place came when the claim came
// that has waited there first.
func (c *Claim) arrive(now time.Duration, at time.Time, begun uint64) {
	c.came, c.since, c.arrived = now, at, begun
	if p := c.place; p != nil {
		c.came, c.since = p.came, p.since
	}
}

// reserve reserves its keys on a lease, if they are not on one that is valid. It is false while a lease is being granted.
func (c *Claim) reserve(l Leases, d time.Duration) bool {
	if c.lease != 0 && !l.Valid(c.lease) {
		c.unreserve(l)
	}
	if c.lease == 0 {
		id, ok := l.Acquire(d, mostKeys(c.request, c.blocks))
		if !ok {
			return false
		}
		c.lease = id
	}
	return true
}

// unreserve ends the reservation of its keys.
func (c *Claim) unreserve(l Leases) {
	if c.lease != 0 {
		if c.found {
			l.Release(c.lease, c.Keys())
		} else {
			l.Release(c.lease, mostKeys(c.request, c.blocks))
		}
		c.lease = 0
	}
}

// become changes its state: its slots are being taken, are to be released, or are being released.
func (c *Claim) become(s State) { c.state = s }

// wait makes it one of the wait queue.
func (c *Claim) wait(d *demand) { c.state, c.demand = waiting, d }

// unwait makes it one that is to be taken directly.
func (c *Claim) unwait() { c.state, c.demand = wanted, nil }

// lose records that it has lost a race: after some of them, what is remembered of its pools must be read.
func (c *Claim) lose(begun uint64) {
	if c.races++; c.races == readRaces {
		c.arrived = begun
	}
}

// separate has it committed and released by itself.
func (c *Claim) separate() { c.alone = true }

// accuse has it committed by itself, since etcd has refused a transaction with it.
func (c *Claim) accuse() { c.alone, c.accused = true, true }

// hold records that its keys were put in a revision, and the responses to what its caller has put with them.
func (c *Claim) hold(keys map[string]slots.Held, revision int64, since time.Time, extra []*pb.ResponseOp) {
	c.state, c.keys, c.fence, c.since, c.alone, c.extra = held, keys, revision, wire.Time(since), false, extra
	c.main, c.transfer = wire.Refs(keys)[0], nil
}

// combine marks it as one whose slots are to be released together with other writes.
func (c *Claim) combine(w *combined) { c.combined = w }

// stay marks it as held: its combined release has not happened.
func (c *Claim) stay() { c.state, c.combined, c.alone = held, nil, false }

// end marks its end.
func (c *Claim) end() { c.state, c.keys, c.demand = ended, nil, nil }
