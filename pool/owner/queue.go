package owner

import (
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// queue puts the claims of an instance that wait into etcd: it is the half of its writer that changes demands keys, and
// the keys of pools that are pending.
type queue struct {
	demandKeys
	sender
	memory *memory

	fresh   []*demand       // in no key yet
	pending map[string]bool // pools that are to be pending
	ranks   map[string]*rank
	waits   int            // demands that have not ended
	short   map[string]int // and how many of these keep a pool pending

	role  roleSeen
	polls int
	shelf shelf[refusedPart]

	collecting collecting
	reserving  reserving
	seats      seats
	// left: pools were put as pending while nobody dispatched, who would end that.
	left bool
}

// roleSeen is the role of the dispatcher as an answer to the queue has shown it.
type roleSeen struct {
	revision int64 // of the answer
	kv       *pb.RangeResponse
}

func newQueue(cfg Config, space *Space, m *memory) *queue {
	return &queue{
		memory:     m,
		demandKeys: demandKeys{keys: wire.Keys{Keys: cfg.Keys}, host: cfg.Host, instance: cfg.Instance, leases: cfg.Presence, byName: map[int]*demandKey{}, gone: map[string]bool{}},
		sender:     sender{space: space, guard: store.NewGuard(cfg.Keys.Guard(cfg.Host, cfg.Instance+"~demands"))},
		short:      map[string]int{}, pending: map[string]bool{}, ranks: map[string]*rank{},
	}
}

// add has a claim wait. Short are its pools that could not grant it.
func (q *queue) add(c *Claim, short []string) {
	d := &demand{claim: c, short: short}
	if at := c.request.Since; at > 0 {
		d.placeAt(at)
	}
	if p := c.place; p != nil {
		d.placeAs(*p)
	}
	c.request.Place.Give()
	q.seats.add(d)
	c.wait(d)
	q.waits++
	q.fresh = append(q.fresh, d)
	if at, ok := q.memory.reservesAt(d); ok && !d.reserves {
		q.reserving.soon(at)
	}
	for _, p := range short {
		q.short[p]++
	}
}

// keeps reports whether a demand of this instance keeps a pool pending, as far as is known.
func (q *queue) keeps(pool string) bool { return q.short[pool] > 0 }

// renew has a demand put again in another key, with its stamp.
func (q *queue) renew(d *demand) {
	if d.key != nil {
		q.takeOut(d)
	}
	q.fresh = append(q.fresh, d)
}

// end ends a demand. If it was committed, the record of its claim says so, and its key may list it until half of the key's
// demands have ended; else its key is put again.
func (q *queue) end(d *demand, committed bool) {
	if d.over {
		return
	}
	q.unrank(d)
	d.end()
	q.waits--
	for _, p := range d.short {
		if q.short[p]--; q.short[p] == 0 {
			delete(q.short, p)
		}
	}
	k := d.key
	if k == nil {
		q.fresh = slices.DeleteFunc(q.fresh, func(o *demand) bool { return o == d })
		return
	}
	if !committed || k.worthPutting(nil) || d.claim.request.Bridge { // who takes it over can't say that it has ended
		q.change(k)
	}
}

// renotify has all keys put again, and the pools pending again that demands keep so: a new dispatcher may have missed them,
// or passes this instance until it writes.
func (q *queue) renotify() {
	for _, k := range q.all() {
		q.change(k)
	}
	q.pend()
}

// roleTaken has the pools pending again that demands keep so, as an instance has begun to dispatch.
func (q *queue) roleTaken() {
	q.left = false
	q.pend()
}

// pend has the pools pending again that demands keep so.
func (q *queue) pend() {
	for _, k := range q.byName {
		q.pendFor(k)
	}
}

// pendFor has the pools pending that the demands of a key keep so.
func (q *queue) pendFor(k *demandKey) {
	for _, d := range k.live() {
		q.putPending(d.short)
	}
}

// putPending has pools pending.
func (q *queue) putPending(pools []string) {
	for _, p := range pools {
		q.pending[p] = true
	}
}

// reservedOn returns the claims that wait whose keys are reserved on a lease.
func (q *queue) reservedOn(id store.LeaseID) (all []*Claim) {
	lists := [][]*demand{q.fresh}
	for _, k := range q.all() {
		lists = append(lists, k.list)
	}
	for _, d := range slices.Concat(lists...) {
		if c := d.claim; c.lease == id && c.state == waiting {
			all = append(all, c)
		}
	}
	return all
}

// restored has all demands put again.
func (q *queue) restored() {
	q.role = roleSeen{}
	q.demandKeys.restored()
}

const (
	// maxPolled is the most pools whose demands one poll reads.
	maxPolled = 50
	// maxStrays is the most demands keys of a pool that it reads besides those that this instance has. If others have put more, it finds
	// out nothing of that pool.
	maxStrays = 1000
)

// pools returns the pools in whose keys demands of this instance are, at most [maxPolled] of them, others each time.
func (q *queue) pools() []string {
	all := map[string]bool{}
	for _, k := range q.byName {
		for _, p := range k.pools {
			all[p] = true
		}
	}
	q.polls++
	return some(slices.Sorted(maps.Keys(all)), maxPolled, q.polls)
}

// some returns as many of a list as there may be at most, others in each round.
func some[T any](all []T, most, round int) []T {
	if len(all) <= most {
		return all
	}
	at := round * most % len(all)
	return slices.Concat(all[at:], all[:at])[:most]
}

// maxChosen is the most ids that one poll reads.
const maxChosen = 20

// chosen returns demands of claims whose ids users have chosen, at most [maxChosen] of them, others each time.
func (q *queue) chosen() (all []*demand) {
	for d := range q.demands() {
		if d.claim.request.Chosen {
			all = append(all, d)
		}
	}
	return some(all, maxChosen, q.polls)
}

// Next returns the next transaction, false if there is none, or one is under way.
func (q *queue) Next(now time.Duration, _ time.Time) (*pb.TxnRequest, bool) {
	if q.flight != nil {
		return nil, false
	}
	kind := q.kind(now)
	if kind == probes {
		return q.send(newProbe(), now)
	}
	q.unshelve(now)
	q.reserve(now)
	if kind == withPuts && !q.collecting.on(len(q.fresh), now) {
		q.place()
	}
	b := newBatch(kind, true, q.isolated > 0)
	b.read(q.keys.Role())
	for _, k := range q.changed.take() {
		it := &item{kind: moves, key: k}
		switch {
		case k.state == removed, !k.changed:
		case k.state == absent && len(k.live()) == 0:
			q.remove(k)
		case k.state == moving: // by the other half
			q.changed.add(k)
		case b.full, len(k.live()) > 0 && (kind == onlyDeletes || !q.lease(k)), !b.add(it):
			q.changed.add(k)
		default:
			if q.spell(it, nil); k.created == 0 { // who has read a pool must see that another claim waits for it
				q.pendFor(k)
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(q.pending)) {
		if q.mayPend(b, p) {
			b.addPending(p, store.Put(q.keys.Pending(p), wire.EncodeEmpty(), 0))
			delete(q.pending, p)
		}
	}
	if len(b.items)+len(b.pending) == 0 {
		return nil, false
	}
	return q.send(b, now)
}

// mayPend reports whether a transaction may have a pool pending.
func (q *queue) mayPend(b *batch, pool string) bool {
	parts := len(b.items) + len(b.root)
	if b.kind != withPuts {
		return false
	}
	return parts < maxChildren && !(b.single && parts > 1) && !q.refusesPending(pool)
}

// unshelve has what was refused some time ago tried again.
func (q *queue) unshelve(now time.Duration) {
	for _, x := range q.shelf.take(now) {
		if x.key != nil {
			q.changed.add(x.key)
		} else {
			q.pending[x.pool] = true
		}
	}
}

// shelve has a key that is to be put later, and not yet.
func (q *queue) shelve(k *demandKey) {
	q.changed.remove(func(o *demandKey) bool { return o == k })
	q.shelf.put(refusedPart{key: k})
}

// place puts demands without a key into new keys, those with the same pools together.
func (q *queue) place() {
	open := map[string]*demandKey{}
	bytes := map[*demandKey]int{}
	for _, d := range q.fresh {
		pools := strings.Join(d.claim.pools, " ")
		k := open[pools]
		if k == nil || len(k.list) == wire.MaxDemands || bytes[k]+d.bytes() > wire.MaxDemandBytes {
			k = q.open(d.claim.pools)
			open[pools] = k
		}
		k.add(d)
		bytes[k] += d.bytes()
	}
	q.fresh = nil
}

// Answer takes the answer to Next, or the error that there was instead. It returns true if the outcome is unknown, or
// another process has written as this instance.
func (q *queue) Answer(resp *pb.TxnResponse, err error) (unknown bool) {
	b, is := q.answer(resp, err)
	switch is {
	case isRefused:
		q.refused(b, err)
	case isDone: // the guard is all that is compared
		for i, it := range b.items {
			q.moved(it, resp.Responses[i+1].GetResponseTxn().Succeeded, resp.Header.Revision)
		}
		q.role = roleSeen{resp.Header.Revision, resp.Responses[len(b.items)+1].GetResponseRange()}
		q.left = len(q.role.kv.Kvs) == 0 && (q.left || len(b.pending) > 0)
	}
	return is == isUnknown
}

// moved records that a key was put or deleted in a revision, or is not as it was known.
func (q *queue) moved(it *item, ok bool, revision int64) {
	if q.demandKeys.moved(it, ok, revision); ok {
		for _, d := range it.key.list {
			q.rank(d)
		}
	}
}

// rank ranks a demand among those of its kind.
func (q *queue) rank(d *demand) {
	kind := d.claim.kind
	if kind == "" || d.over {
		return
	}
	if q.ranks[kind] == nil {
		q.ranks[kind] = &rank{}
	}
	q.ranks[kind].add(d)
}

// first returns the first demand of a kind that waits, nil if there is none.
func (q *queue) first(kind string) *demand {
	r := q.ranks[kind]
	if r == nil {
		return nil
	}
	return r.first()
}

// unrank ends that a demand is ranked.
func (q *queue) unrank(d *demand) {
	kind := d.claim.kind
	if r := q.ranks[kind]; r != nil {
		if r.remove(d); len(r.list) == 0 {
			delete(q.ranks, kind)
		}
	}
}

// passes reports whether a demand that is first of its kind ranks behind one of another kind that reserves in one of its pools.
func (q *queue) passes(d *demand) bool {
	shared := func(name string) bool { return slices.Contains(d.claim.pools, name) }
	for kind := range q.ranks {
		x := q.first(kind)
		if x == nil || !x.reserves || before(x, d) >= 0 {
			continue
		}
		if slices.ContainsFunc(x.claim.pools, shared) {
			return true
		}
	}
	return false
}

// Unresolved returns the transaction that reads what has become of one with an unknown outcome.
func (q *queue) Unresolved() *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for _, it := range q.flight.items {
		t.Success = append(t.Success, together(q.reads(it.key)))
	}
	return t
}

// Resolved takes the answer to Unresolved.
func (q *queue) Resolved(resp *pb.TxnResponse) {
	b := q.resolved()
	for i, it := range b.items {
		q.resolve(it, apart(resp.Responses[i]))
	}
	q.pend()
}
