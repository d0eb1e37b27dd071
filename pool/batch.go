package pool

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// maxOps is etcd's default for compares, and for operations, of one
	// transaction (max-txn-ops); a nested one may have what its parent's larger
	// number leaves.
	maxOps = 128
	// maxChildren bounds the operations at the root of a nested batch, so that
	// its children may have as many again: 64 × 64 is the most that etcd takes.
	maxChildren = 60
	// grantCompares are kept free by releases for the compares of what is granted in
	// the same batch: usually those of a pool or two, and a few of their groups.
	grantCompares = 8
	// maxChildOps bounds a child that is part of a wide claim.
	maxChildOps = 60
	// wideKeys is from how many keys on a claim goes alone.
	wideKeys = 32
	// maxBytes bounds the values of a batch; etcd's limit is 1.5 MiB in all.
	maxBytes = 1 << 20
)

// shape of a batch.
type shape int

const (
	// flat: all compares at the root, so all happens or nothing. What it gives
	// back can be overwritten in place.
	flat shape = iota
	// nested: a child per claim and release, each failing alone.
	nested
	// wide: one claim of many keys, alone.
	wide
	// freeing: releases only, without the guard: a full etcd takes nothing else.
	// Its outcome need not be resolved, since a release can be repeated.
	freeing
)

// batch is one transaction and what it is about.
type batch struct {
	shape     shape
	txn       *pb.TxnRequest
	grants    []*grant
	releases  []releaseOp
	rewrites  []releaseOp
	puts      []waiterPut
	drops     []drop
	acks      []*notice
	ackOps    []int // the operation of each
	withdrawn []*notice
	queued    map[*poolView]bool // pools whose claims are to wait
	duties    []dutyOp
	marks     []markRead
	revokes   []string
	leases    []store.LeaseID
	sent      map[slotRef]sentSlot
	at        time.Time // when it was planned
	rev       int64     // of the view then
}

// grant is an entry that gets its slots.
type grant struct {
	e      *entry
	slots  []placed
	groups []groupRef  // compared
	whole  []*poolView // compared as a whole
	op     int         // its operation in a nested batch
	// extraAt is the first operation of what it carries along, in the batch or in the
	// nested one.
	extraAt int
	notice  *notice // of a grant to another instance
	// kept, if it is not nil, are slots that this instance has already and whose keys stay as they
	// are: idle ones, or those of a claim that the batch releases.
	kept *idleSlots
	idle bool
}

// releaseOp is an entry that gives its slots back, or whose keys are put again.
type releaseOp struct {
	e  *entry
	op int
	// kept is set if the slots stay with this instance: next is the entry that gets them, nil if
	// none does.
	kept bool
	next *entry
}

// waiterPut is an entry whose waiter is written.
type waiterPut struct {
	e       *entry
	reserve bool
	lease   store.LeaseID // of the waiter
	slots   store.LeaseID // for the slots
}

// markRead is a read of who dispatches a pool, in a batch.
type markRead struct {
	pool *poolView
	op   int
}

// size is how many entries a batch is about.
func (b *batch) size() int {
	return len(b.grants) + len(b.releases) + len(b.rewrites) + len(b.puts) + len(b.drops)
}

// things is how many entries and keys a batch is about.
func (b *batch) things() int {
	return b.size() + len(b.revokes) + len(b.acks) + len(b.withdrawn) + len(b.duties)
}

// result returns the response to the operation with that index of a nested batch.
func (b *batch) result(resp *pb.TxnResponse, op int) *pb.TxnResponse {
	return resp.Responses[op].GetResponseTxn()
}

// carries reports whether the batch has writes other than those of claims.
func (b *batch) carries() bool {
	return slices.ContainsFunc(b.releases, func(g releaseOp) bool { return g.e.combined != nil }) ||
		slices.ContainsFunc(b.grants, func(g *grant) bool { return len(g.e.req.Extra.Then)+len(g.e.req.Extra.Leased) > 0 })
}

// conditional reports whether the batch has conditions other than those of claims.
func (b *batch) conditional() bool {
	return slices.ContainsFunc(b.releases, func(g releaseOp) bool { return g.e.combined != nil && len(g.e.combined.extra.If) > 0 }) ||
		slices.ContainsFunc(b.grants, func(g *grant) bool { return len(g.e.req.Extra.If) > 0 })
}

const (
	// opsBuffer is how many operations can be queued before their callers block.
	opsBuffer = 256
	// collectIdle is after how many yields of the processor without a new operation a
	// batch of several is sent: some 20 µs where nothing else runs, against the
	// 300 µs or more that a batch takes.
	collectIdle = 128
	// collectMax bounds the time that a batch waits for more operations.
	collectMax = 150 * time.Microsecond
	// collectWrites bounds the time that a batch waits after one that carried other writes, such
	// as the ends of steps: it is no longer than a quarter of what that one took.
	collectWrites = time.Millisecond
)

// collector collects the operations for a core, so that they share one transaction.
//
// Clients that the last batch answered send their next operation in a moment. If
// that batch was of several, the next waits while they keep coming: else half of
// them would miss it, and each half would wait for the other's. A batch of one is
// not followed by any wait, so a single client never waits.
//
// If the last batch carried other writes, those that it answered are not clients that wait for
// nothing else: their next operations take longer to come. The next batch waits for as many, but
// not for long.
type collector struct {
	ops    chan func(*core, time.Time)
	urgent *urgent
	// direct is set if callers may carry out their operations themselves: see [Engine.inline].
	// They may not while a batch is collected, which is to have them.
	direct atomic.Bool

	asked   bool // an operation came since the last batch was sent
	several bool // that batch was of several
	// taken counts the operations since the last batch was sent, at sentAt. Until late, the next one
	// waits for want of them.
	taken, want  int
	sentAt, late time.Time
}

// all takes all operations, and waits for more if that pays.
func (g *collector) all(c *core) {
	g.take(c)
	if !g.asked || !g.several || c.calling {
		return
	}
	g.direct.Store(false)
	end := time.Now().Add(collectMax)
	for quiet := 0; quiet < collectIdle && time.Now().Before(end); quiet++ {
		runtime.Gosched()
		if g.take(c) {
			quiet = 0
		}
	}
}

// take takes the operations that are there now, and reports whether there were any.
func (g *collector) take(c *core) (any bool) {
	for range opsBuffer {
		g.urgent.run(c)
		select {
		case op := <-g.ops:
			g.do(c, op)
			any = true
		default:
			return any
		}
	}
	return any
}

// do runs one operation.
func (g *collector) do(c *core, op func(*core, time.Time)) {
	slow := c.slow
	c.fast = false
	op(c, time.Now())
	if c.fast { // it was granted without a write, or released so
		c.slow = slow || c.rewrites // a rewrite may have been demanded
		return
	}
	c.slow, g.asked = true, true
	g.taken++
}

// sent notes that the collected operations were sent in b, which is nil if earlier writes
// are being fenced.
func (g *collector) sent(b *batch) {
	g.asked, g.taken, g.want = false, 0, 0
	g.several, g.sentAt = b != nil && b.size() > 1, time.Now()
}

// answered notes that a batch was answered.
func (g *collector) answered(b *batch, now time.Time) {
	if b == nil || !g.several || !b.carries() {
		return
	}
	g.want, g.late = g.taken+b.size(), now.Add(min(collectWrites, now.Sub(g.sentAt)/4))
}

// waits reports whether the next batch waits for more operations, and until when.
func (g *collector) waits(now time.Time) (late time.Time, more bool) {
	return g.late, g.taken > 0 && g.taken < g.want && now.Before(g.late)
}

// urgent holds operations that have priority over claims and reads: lease events.
// add never blocks, so the keeper of the leases can go on renewing.
type urgent struct {
	wake chan struct{} // coalesces

	mu  sync.Mutex
	ops []func(*core, time.Time)
}

func (u *urgent) add(op func(*core, time.Time)) {
	u.mu.Lock()
	u.ops = append(u.ops, op)
	u.mu.Unlock()
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// run runs all operations that were added, in order.
func (u *urgent) run(c *core) {
	u.mu.Lock()
	ops := u.ops
	u.ops = nil
	u.mu.Unlock()
	for _, op := range ops {
		op(c, time.Now())
	}
	c.slow = c.slow || len(ops) > 0
}

// claimTxn is the transaction of one claim, in its parts. Claim compares are written
// here and nowhere else. It is built from a view in which every put up to the compared
// revisions is known.
type claimTxn struct {
	cmps   []*pb.Compare
	puts   []*pb.RequestOp // of slots
	others []*pb.RequestOp // writes other than slots
	groups []groupRef
	whole  []*poolView
	bytes  int
}

// compares returns what must hold for slots to be taken:
//
//   - The spec of each pool is the one that the view has.
//   - No key that exists was put into a group that is touched, beyond what the
//     view has of it. So the group has the free slots that the view says, or more.
//   - In a pool with a group over its capacity, the same of the whole pool: then
//     only the sum counts.
//
// What another claim under the same root has compared already is omitted.
func (t *claimTxn) compares(v *view, slots []placed, overfull func(*poolView) bool, have *compared) {
	for _, s := range slots {
		p := v.pool(s.ref.pool)
		if !slices.Contains(have.pools, p) {
			t.spec(v, p, have)
			have.pools = append(have.pools, p)
			if overfull(p) {
				t.whole = append(t.whole, p)
				t.cmps = append(t.cmps, wholeCompare(v, p))
			}
		}
		g := groupRef{p, s.ref.group}
		if slices.Contains(have.groups, g) || overfull(p) {
			continue
		}
		have.groups = append(have.groups, g)
		t.groups = append(t.groups, g)
		t.cmps = append(t.cmps, groupCompare(v, g))
	}
}

// spec compares that the spec of a pool is the one that the view has.
func (t *claimTxn) spec(v *view, p *poolView, have *compared) {
	if !slices.Contains(have.specs, p) {
		have.specs = append(have.specs, p)
		t.cmps = append(t.cmps, store.ModEquals(v.keys.Spec(p.name), p.specRev))
	}
}

// compared holds the pools and groups of some compares. They are few: a search is faster than
// a map.
type compared struct {
	pools, specs, roles []*poolView
	groups              []groupRef
}

func groupCompare(v *view, g groupRef) *pb.Compare {
	return store.NonePutSince(v.keys.Group(g.pool.name, g.group), g.pool.groupPutsKnown(g.group))
}

func wholeCompare(v *view, p *poolView) *pb.Compare {
	return store.NonePutSince(v.keys.Slots(p.name), p.putsKnown())
}

// writes returns the keys of a claim: the first carries the record, the others
// point to it.
func (t *claimTxn) writes(v *view, e *entry, slots []placed, lease store.LeaseID, since stamp) {
	rec := *e.record
	rec.Since = since.at
	rec.Keys = keysOf(slots) // there may be those of an earlier try
	e.record = &rec
	for i, s := range slots {
		var val []byte
		if i == 0 {
			val = encodeMain(s.n, e.req.ID, e.spelled, &rec, since)
		} else {
			val = encodeOther(s.n, e.req.ID, rec.Keys[0])
		}
		t.put(v.keys.Slot(s.ref.pool, s.ref.group, s.ref.index), val, lease)
	}
}

// extras adds the writes of a claim other than its slots.
func (t *claimTxn) extras(v *view, e *entry, lease store.LeaseID) {
	t.others = append(t.others, e.req.Extra.Then...)
	for _, op := range e.req.Extra.Leased {
		p := op.GetRequestPut()
		t.others = append(t.others, store.Put(string(p.Key), p.Value, lease))
	}
	t.bytes += bytesOf(t.others)
	if e.inQueue {
		t.others = append(t.others, waiterDeletes(v, poolNames(e.req.Slots), e.order)...)
	}
}

// bytesOf returns how many bytes the operations put.
func bytesOf(ops []*pb.RequestOp) (n int) {
	for _, op := range ops {
		n += len(op.GetRequestPut().GetValue())
	}
	return n
}

func (t *claimTxn) put(key string, value []byte, lease store.LeaseID) {
	t.bytes += len(key) + len(value)
	t.puts = append(t.puts, store.Put(key, value, lease))
}

// held compares that the keys of a claim with these slots are still those of that revision.
func (t *claimTxn) held(v *view, slots []placed, rev int64) {
	ref := slots[0].ref
	t.cmps = append(t.cmps, store.ModEquals(v.keys.Slot(ref.pool, ref.group, ref.index), rev))
}

// heldCompare holds while a claim still has its slots. One key is enough: the keys
// share a revision and a lease, and are only deleted together.
func heldCompare(v *view, e *entry) *pb.Compare {
	ref := e.slots[0].ref
	return store.ModEquals(v.keys.Slot(ref.pool, ref.group, ref.index), e.rev)
}

// slotDeletes deletes all keys of a claim but those that are overwritten in the
// same transaction.
func slotDeletes(keys store.Keys, slots []placed, overwritten map[slotRef]bool) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, 0, len(slots))
	for _, s := range slots {
		if !overwritten[s.ref] {
			ops = append(ops, store.Delete(keys.Slot(s.ref.pool, s.ref.group, s.ref.index)))
		}
	}
	return ops
}

// queuedPut has the claims of a pool wait in its queue.
func queuedPut(v *view, pool string) *pb.RequestOp {
	return store.Put(v.keys.Queued(pool), store.Encode(queuedValue{V: store.Now}), 0)
}

// waiterPuts writes an entry into the wait queue of each of its pools.
func waiterPuts(v *view, e *entry, lease store.LeaseID) []*pb.RequestOp {
	val := encodeWaiter(e)
	ops := make([]*pb.RequestOp, 0, len(e.needs))
	for _, n := range e.needs {
		ops = append(ops, store.Put(v.keys.Waiter(n.Pool, e.order.String()), val, lease))
	}
	return ops
}

// waiterDeletes takes a claim out of the wait queue of each of its pools.
func waiterDeletes(v *view, pools []string, order Order) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, 0, len(pools))
	for _, p := range pools {
		ops = append(ops, store.Delete(v.keys.Waiter(p, order.String())))
	}
	return ops
}

// children cuts operations into nested transactions without compares, each with
// no more than so many compares of their parent leave to it.
func children(ops []*pb.RequestOp, compares int) []*pb.RequestOp {
	most := min(maxChildOps, maxOps-compares)
	var all []*pb.RequestOp
	for len(ops) > 0 {
		n := min(len(ops), most)
		all = append(all, store.Nest(&pb.TxnRequest{Success: ops[:n]}))
		ops = ops[n:]
	}
	return all
}

// roleCompares adds to the compares of a claim what makes its grant this instance's: it is
// the dispatcher, or no claim waits. The waiter of the claim, if it has one, is still there.
func (c *core) roleCompares(t *claimTxn, e *entry, have *compared) {
	keys := c.view.keys
	if first := c.view.pool(e.needs[0].Pool); c.dispatches(first) {
		if !slices.Contains(have.roles, first) {
			have.roles = append(have.roles, first)
			t.cmps = append(t.cmps, store.LeaseEquals(keys.Dispatcher(first.name), c.roles[first.name].lease))
		}
	} else {
		for _, n := range e.needs {
			if p := c.view.pool(n.Pool); !slices.Contains(have.roles, p) {
				have.roles = append(have.roles, p)
				t.cmps = append(t.cmps, store.CreateEquals(keys.Queued(p.name), 0))
			}
		}
	}
	if e.inQueue {
		t.cmps = append(t.cmps, store.ModEquals(keys.Waiter(e.needs[0].Pool, e.order.String()), c.waiterRev(e)))
	}
	if e.other != nil {
		t.cmps = append(t.cmps, store.CreateEquals(c.view.noticeKey(e.other), 0))
	}
}

// nextIfSlow is [core.next] if something has happened that could change what it returns.
func (c *core) nextIfSlow(now time.Time) *call {
	if !c.slow {
		return nil
	}
	c.slow = false
	return c.next(now)
}

// wakesAt is when the next call may be due without another event; zero if never.
func (c *core) wakesAt() time.Time {
	if c.waitersAt.IsZero() || !c.retainAt.IsZero() && c.retainAt.Before(c.waitersAt) {
		return c.retainAt
	}
	return c.waitersAt
}
