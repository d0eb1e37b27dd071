package owner

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// itemKind says what an item does.
type itemKind int

const (
	takes itemKind = iota // it takes slots for a claim
	frees                 // it releases those of one
	drops                 // it deletes an offers key
	moves                 // it puts or deletes a demands key
	marks                 // it puts or deletes the key of a pool that is pending
)

// item is a part of a transaction that succeeds or fails by itself.
type item struct {
	kind   itemKind
	claim  *Claim
	from   *Claim // whose keys it takes over
	held   map[string]slots.Held
	offer  *offered        // that it commits, or deletes
	of     wire.DemandRef  // that it was offered to
	ended  wire.DemandRef  // that the record of the claim says has ended with it
	at     time.Time       // when it was made
	key    *demandKey      // that it moves
	list   []*demand       // that the key has then
	notice []*pb.RequestOp // that others put which are sent with it

	shared []shared
	own    []*pb.Compare
	when   []condition // of callers, the outermost one first
	then   []*pb.RequestOp
	extra  int       // where what the caller writes begins in then
	ids    []string  // keys of ids that it puts or deletes
	reads  []reading // what is read if it fails, with their operations
	orElse []*pb.RequestOp
}

// shared is a compare that items of a transaction may have in common.
type shared struct {
	identity
	*pb.Compare
}

// identity is what a compare compares: a key or the prefix of a range, and what its revision must be.
type identity struct {
	key      string
	target   pb.Compare_CompareTarget
	result   pb.Compare_CompareResult
	revision int64
}

// share returns a compare of one key or range with a revision.
func share(c *pb.Compare) shared {
	s := shared{identity{key: string(c.Key), target: c.Target, result: c.Result}, c}
	switch c.Target {
	case pb.Compare_CREATE:
		s.revision = c.GetCreateRevision()
	default:
		s.revision = c.GetModRevision()
	}
	return s
}

// condition is what a caller demands of the part of a transaction that takes or releases the slots of a claim.
type condition struct {
	of    *Claim
	holds []*pb.Compare
	// orElse is what is read if they do not hold: for the id of the claim.
	orElse []*pb.RequestOp
}

// on adds conditions of the caller of a claim. They go around the compares of the item, so that the answer shows which of
// them have failed.
func (it *item) on(of *Claim, holds []*pb.Compare) {
	if len(holds) > 0 {
		it.when = append(it.when, condition{of: of, holds: holds})
	}
}

// absent adds the condition that a key of an id does not exist, which is read if it does.
func (it *item) absent(key string) {
	it.when = append(it.when, condition{of: it.claim, holds: []*pb.Compare{store.CreateEquals(key, 0)}, orElse: []*pb.RequestOp{store.Get(key)}})
}

// id adds the put of the key of an id, or its deletion.
func (it *item) id(key string, op *pb.RequestOp) {
	it.then, it.ids = append(it.then, op), append(it.ids, key)
}

// carry adds the id of a claim, what its caller writes with it, some of that on the lease of the claim, and its conditions.
func (m *memory) carry(it *item, at time.Time) {
	m.takeID(it)
	x := &it.claim.request.Extra
	if x.Stamp != nil {
		x.Stamp(at)
	}
	it.extra = len(it.then)
	it.then = append(it.then, x.Then...)
	for _, op := range x.Leased {
		p := op.GetRequestPut()
		it.then = append(it.then, store.Put(string(p.Key), p.Value, it.claim.lease))
	}
	it.on(it.claim, x.If)
}

// responses returns those to what the caller of a claim has put with it, of those to the item; nil if there are none.
func (it *item) responses(all []*pb.ResponseOp) []*pb.ResponseOp {
	n := len(it.claim.request.Extra.Then)
	if n == 0 || len(all) == 0 {
		return nil
	}
	return all[it.extra : it.extra+n]
}

// callersKeys returns the keys that callers put or delete with it, those of ids, and the key of a pool that is pending.
func (it *item) callersKeys() (keys []string) {
	switch it.kind {
	case drops:
		return []string{it.offer.key}
	case moves:
		return nil
	case marks:
		return []string{it.shared[0].key}
	}
	keys = slices.Clone(it.ids)
	for _, op := range it.then[it.extra:] {
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			keys = append(keys, string(r.RequestPut.Key))
		case *pb.RequestOp_RequestDeleteRange:
			keys = append(keys, string(r.RequestDeleteRange.Key))
		}
	}
	return keys
}

// foreign reports whether it puts a key of a caller on another lease than that of its claim: if that is gone, it can never be
// put.
func (it *item) foreign() bool {
	if it.kind != takes && it.kind != frees {
		return false
	}
	return slices.ContainsFunc(it.then[it.extra:], func(op *pb.RequestOp) bool {
		p := op.GetRequestPut()
		return p != nil && p.Lease != 0 && store.LeaseID(p.Lease) != it.claim.lease
	})
}

// child returns it as a transaction of its own.
func (it *item) child() *pb.TxnRequest {
	t := &pb.TxnRequest{Compare: slices.Clone(it.own), Success: it.then, Failure: it.orElse}
	for _, s := range it.shared {
		t.Compare = append(t.Compare, s.Compare)
	}
	for _, w := range slices.Backward(it.when) {
		t = &pb.TxnRequest{Compare: slices.Clone(w.holds), Success: []*pb.RequestOp{store.Nest(t)}, Failure: w.orElse}
	}
	return t
}

// part returns what the answer to its transaction says.
func (it *item) part(t *pb.TxnResponse) part {
	for _, w := range it.when {
		if !t.Succeeded {
			return part{unmet: w.of, responses: t.Responses}
		}
		t = t.Responses[0].GetResponseTxn()
	}
	return part{done: t.Succeeded, responses: t.Responses}
}

// width is the larger one of the compares and operations that are not for callers' conditions, those of a failure included.
func (it *item) width() int {
	return max(len(it.own)+len(it.shared), it.ops(), len(it.orElse))
}

// size is how many compares or operations a child needs: etcd adds up the levels.
func (it *item) size() int {
	n := it.width()
	for _, w := range it.when {
		n += len(w.holds)
	}
	return n
}

// ops is how many operations it has.
func (it *item) ops() int {
	if it.kind == moves {
		return len(it.key.pools) // which are spelled last
	}
	return len(it.then)
}

// refs returns the slot keys and blocks that it puts or deletes.
func (it *item) refs() []wire.Ref {
	switch it.kind {
	case takes:
		return wire.Refs(it.held)
	case frees:
		return wire.Refs(it.claim.keys)
	}
	return nil
}

// takeOver has a claim take over the keys of another one, which is released.
func (m *memory) takeOver(it *item, at time.Time) {
	it.held = map[string]slots.Held{}
	for name, h := range it.from.keys {
		h.Spec = m.pools[name].Spec().Revision
		it.held[name] = h
	}
	m.put(it, at)
	for _, p := range it.then {
		it.own = append(it.own, store.ModEquals(string(p.GetRequestPut().Key), it.from.fence))
	}
	if w := it.from.combined; w != nil {
		it.on(it.from, w.extra.If)
	}
	m.freeID(it, it.from.request)
	m.carry(it, at)
	if w := it.from.combined; w != nil {
		it.then = append(it.then, w.extra.Then...)
	}
}

// transfer has a claim taken over that another instance holds: its keys are put again, on a lease of this instance, if each of
// them is as it was read. Neither a spec nor claims that wait are of importance: the slots are taken already.
func (m *memory) transfer(it *item, at time.Time) {
	t := it.claim.transfer
	it.held = t.keys
	for name := range t.keys {
		m.pools[name].use(1)
	}
	w := wire.Written{Since: t.record.Since, Admitted: cmp.Or(t.record.Admitted, t.revision)}
	for _, p := range it.claim.spelled.Puts(it.held, w) {
		key := p.Key(m.keys)
		it.own = append(it.own, store.ModEquals(key, t.revision))
		it.then = append(it.then, store.Put(key, p.Value, it.claim.lease))
	}
	m.carry(it, at)
}

// withoutFrom has it take over nothing.
func (it *item) withoutFrom() { it.from, it.held = nil, nil }

// clashes reports whether it needs more than a transaction has, or callers name a key twice.
func (it *item) clashes() bool {
	keys := it.callersKeys()
	slices.Sort(keys)
	return it.size() > maxSize || len(slices.Compact(keys)) < len(it.callersKeys())
}

// takeNew has a claim take slots that are free as far as is known. It returns a pool that has too few, nil if there is none.
func (m *memory) takeNew(it *item, at time.Time) (full *known) {
	c := it.claim
	it.held = map[string]slots.Held{}
	for _, name := range c.pools {
		k := m.pools[name]
		h, ok := k.Take(c.request.Slots[name], c.blocks[name])
		if !ok {
			m.giveUp(it)
			return k
		}
		m.hold(it, k, h)
	}
	m.put(it, at)
	m.carry(it, at)
	return nil
}

// takeOffered has a claim take what it is offered of a pool. It is false if a claim of this instance tries the same.
func (m *memory) takeOffered(it *item, k *known, h slots.Held) bool {
	if it.held == nil {
		it.held = map[string]slots.Held{}
	}
	if !k.Reserve(h) {
		return false
	}
	m.hold(it, k, h)
	return true
}

// hold adds what a claim takes of a pool.
func (m *memory) hold(it *item, k *known, h slots.Held) {
	it.held[k.name] = h
	k.use(1)
	m.capacity(it, k.name, h)
}

// underPending adds the compares of a claim that may only be made while its pools are not pending, or while they are as they were
// when it got its turn.
//
// If there are too many for one transaction, one compare covers them: then no pool that is between them by name may be
// pending either.
func (m *memory) underPending(it *item) {
	pools := it.claim.pools
	if it.claim.passing.turn == nil && it.width()+len(pools) > slots.MaxCompares {
		c := store.CreateEquals(m.keys.Pending(pools[0]), 0)
		c.RangeEnd = []byte(m.keys.Pending(pools[len(pools)-1]) + "\x00")
		it.own = append(it.own, c)
		return
	}
	for _, name := range it.claim.pools {
		it.shared = append(it.shared, m.pendingAt(name, it.claim.passing.turn.of(name)))
	}
}

// pendingAt is the compare that the key of a pool that is pending has a revision; 0 is that it is not.
func (m *memory) pendingAt(name string, revision int64) shared {
	if revision == 0 {
		return share(store.CreateEquals(m.keys.Pending(name), 0))
	}
	return share(store.ModEquals(m.keys.Pending(name), revision))
}

// mark is the part that puts the key of a pool that is pending again, or deletes it.
func (m *memory) mark(name string, revision int64, op *pb.RequestOp) *item {
	return &item{kind: marks, shared: []shared{m.pendingAt(name, revision)}, then: []*pb.RequestOp{op}}
}

// note adds a notice.
func (it *item) note(change *pb.RequestOp) { it.notice = append(it.notice, change) }

// noticeAlone has a part that is sent without others change the keys itself.
func (it *item) noticeAlone() {
	it.then = slices.Concat(it.notice, it.then)
	it.extra += len(it.notice)
	it.notice = nil
}

// capacity adds the compares for slots of a pool that are not taken over.
func (m *memory) capacity(it *item, name string, h slots.Held) {
	if revision, whole := h.Whole(); whole {
		it.shared = append(it.shared, share(store.NoneCreatedSince(m.keys.Slots(name), revision)))
		return
	}
	for _, r := range h.Runs() {
		it.own = append(it.own, m.absent(name, r))
	}
	for _, b := range h.Blocks {
		if len(b.Runs) == 0 { // in a pool without a limit
			it.own = append(it.own, store.CreateEquals(m.keys.Block(name, b.Area, b.Name), 0))
		}
	}
	for _, a := range h.AreaRuns() {
		c := store.NoneCreatedSince(m.keys.Area(name, a.From), a.Revision)
		if a.From == a.To {
			it.shared = append(it.shared, share(c))
			continue
		}
		c.RangeEnd = store.RangeEnd(m.keys.Area(name, a.To))
		it.own = append(it.own, c)
	}
}

// absent is the compare that the slot keys of a run do not exist.
func (m *memory) absent(pool string, r slots.Run) *pb.Compare {
	from, to := m.keys.Numbers(pool, r)
	c := store.CreateEquals(from, 0)
	if r.Len() > 1 {
		c.RangeEnd = []byte(to)
	}
	return c
}

// put adds the keys of a claim, and the compares of the specs of its pools.
func (m *memory) put(it *item, at time.Time) {
	c := it.claim
	it.at = at
	w := wire.Written{Since: at}
	if c.demand != nil {
		w.Demand = c.demand.ref()
		it.ended = w.Demand
	}
	for _, name := range c.pools {
		it.shared = append(it.shared, share(store.ModEquals(m.keys.Spec(name), it.held[name].Spec)))
	}
	for _, p := range c.spelled.Puts(it.held, w) {
		it.then = append(it.then, store.Put(p.Key(m.keys), p.Value, c.lease))
	}
}

// readOnFailure has the pools of a claim read if it fails, unless they are too many for that.
func (m *memory) readOnFailure(it *item) {
	if len(it.claim.pools) > maxReads {
		return
	}
	for _, name := range it.claim.pools {
		r, ops := m.requests(m.pools[name], firstOf(it.held[name]), retryNumbers, 0)
		it.reads, it.orElse = append(it.reads, r), append(it.orElse, ops...)
	}
}

// firstOf returns the lowest number of what is held, 0 without any.
func firstOf(h slots.Held) int {
	first := slots.MaxNumbersOfPool
	for _, n := range h.Numbers {
		first = min(first, n)
	}
	for _, b := range h.Blocks {
		for _, r := range b.Runs {
			first = min(first, r.From)
		}
	}
	return first % slots.MaxNumbersOfPool
}

// free is the part of a transaction that releases a claim. Each of its keys is compared: if an operator has deleted one by hand,
// another claim may have that slot by now. The others are then found by the next audit.
func (m *memory) free(c *Claim) *item {
	it := &item{kind: frees, claim: c}
	for _, r := range wire.Refs(c.keys) {
		key := r.Key(m.keys)
		it.own = append(it.own, store.ModEquals(key, c.fence))
		it.then = append(it.then, store.Delete(key))
	}
	m.freeID(it, c.request)
	it.extra = len(it.then)
	if w := c.combined; w != nil {
		it.then = append(it.then, w.extra.Then...)
		it.on(c, w.extra.If)
	}
	return it
}

// under adds the compare that an offer was not taken back.
func (it *item) under(of *offered) { it.shared = append(it.shared, of.condition()) }

// move adds the put of a demands key, or its deletion without a value, to a part of a transaction.
func (it *item) move(key string, created int64, value []byte, lease store.LeaseID) {
	it.own = append(it.own, store.CreateEquals(key, created))
	if value == nil {
		it.then = append(it.then, store.Delete(key))
	} else {
		it.then = append(it.then, store.Put(key, value, lease))
	}
}

// remove adds the deletion of a demands key if it is there as it was created.
func (it *item) remove(key string, created int64) {
	deleted := &pb.TxnRequest{Compare: []*pb.Compare{store.CreateEquals(key, created)}, Success: []*pb.RequestOp{store.Delete(key)}}
	it.then = append(it.then, store.Nest(deleted))
}

// puts reports whether it puts a key with the value that was read.
func (it *item) puts(kv *mvccpb.KeyValue) bool {
	return slices.ContainsFunc(it.then, func(op *pb.RequestOp) bool {
		put := op.GetRequestPut()
		return put != nil && bytes.Equal(put.Key, kv.Key) && bytes.Equal(put.Value, kv.Value) && put.Lease == kv.Lease
	})
}

// drop is the part that deletes an offers key.
func drop(of *offered) *item {
	return &item{kind: drops, offer: of, shared: []shared{of.condition()}, then: []*pb.RequestOp{store.Delete(of.key)}}
}

// giveUp ends that slots are tried that were not sent.
func (m *memory) giveUp(it *item) {
	if it.kind != takes || it.from != nil {
		return
	}
	for name, h := range it.held {
		if it.claim.transfer == nil {
			m.pools[name].Abandon(h)
		}
		m.pools[name].use(-1)
	}
}
