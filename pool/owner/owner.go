package owner

import (
	"errors"
	"hash/fnv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// Result is what has become of a claim.
type Result struct {
	Claim *Claim
	// Released is set if its slots are free, and not if it was granted.
	Released bool
	// Err is why a claim was not granted, or that the slots of one that was to be released were gone.
	Err error
}

// ErrGone tells that the slots of a claim were gone before it was released.
var ErrGone = errors.New("its slots are no longer in etcd")

// Owner is the claims of one instance.
type Owner struct {
	memory   memory
	guard    store.Guard
	want     []*Claim // to be made, in the order of their arrival
	releases []*Claim
	again    []*item // of a transaction that failed, to be sent with a child for each
	flight   *batch
	reads    []reading // under way
	split    int       // so many more transactions have a child for each claim
	results  []Result
}

// New returns the owner of the claims of an instance. Earlier writes of the instance must be fenced first: see
// [Owner.Fence].
func New(keys store.Keys, host, instance string) *Owner {
	h := fnv.New32a()
	_, _ = h.Write([]byte(host + "/" + instance)) // it never fails
	return &Owner{
		memory: memory{keys: wire.Keys{Keys: keys}, hash: h.Sum32(), pools: map[string]*known{}},
		guard:  store.NewGuard(keys.Guard(host, instance)),
	}
}

// Claim asks for a claim.
func (o *Owner) Claim(c *Claim) {
	c.arrived = o.memory.begun
	o.want = append(o.want, c)
}

// Release asks for the end of a claim that was granted.
func (o *Owner) Release(c *Claim) { o.releases = append(o.releases, c) }

// Results returns what has become of claims since the last call.
func (o *Owner) Results() []Result {
	r := o.results
	o.results = nil
	return r
}

// Fence returns the transaction that fences earlier writes: those of an earlier process, or one whose outcome is
// unknown. It is to be sent until Fenced is true, before anything else.
func (o *Owner) Fence() *pb.TxnRequest { return o.guard.FenceTxn() }

// Fenced takes the answer to Fence.
func (o *Owner) Fenced(resp *pb.TxnResponse) bool { return o.guard.Answer(resp) }

// Forget forgets what may have changed unseen: to be called when etcd has not answered for a while, or a connection to
// it has broken.
func (o *Owner) Forget() { o.memory.forget() }

// Age is to be called at least each half minute.
func (o *Owner) Age(now time.Duration) { o.memory.age(now) }

// Reads returns the transaction that reads what claims need to know, false if there is none, or one is under way.
func (o *Owner) Reads() (*pb.TxnRequest, bool) {
	if len(o.reads) > 0 || len(o.memory.wants) == 0 {
		return nil, false
	}
	t := &pb.TxnRequest{}
	for _, k := range o.memory.begin() {
		r, ops := o.memory.requests(k, 0, readNumbers)
		o.reads, t.Success = append(o.reads, r), append(t.Success, ops...)
	}
	return t, true
}

// Read takes the answer to Reads, or that there was none.
func (o *Owner) Read(resp *pb.TxnResponse, err error) {
	reads := o.reads
	o.reads = nil
	at := 0
	for _, r := range reads {
		if o.memory.unwant(r.k); err != nil {
			o.memory.want(r.k)
			continue
		}
		at += o.memory.answered(r, resp.Responses[at:], resp.Header.Revision)
	}
}

// Next returns the next transaction, false if there is none, or one is under way.
func (o *Owner) Next(now time.Duration, at time.Time) (*pb.TxnRequest, bool) {
	if o.flight != nil {
		return nil, false
	}
	b := &batch{nested: len(o.again) > 0 || o.split > 0}
	if o.again = b.addAll(o.again); len(o.again) == 0 {
		o.plan(b, now, at)
	}
	if len(b.items) == 0 {
		return nil, false
	}
	if o.split > 0 {
		o.split--
	}
	o.flight = b
	return b.request(&o.guard), true
}

// plan adds claims and releases to a transaction, as far as it has space.
func (o *Owner) plan(b *batch, now time.Duration, at time.Time) {
	free := map[string][]*Claim{}
	for _, c := range o.releases {
		if c.kind != "" && !c.alone {
			free[c.kind] = append(free[c.kind], c)
		}
	}
	over := map[*Claim]bool{}
	var rest []*Claim
	for i, c := range o.want {
		if b.full {
			rest = append(rest, o.want[i:]...)
			break
		}
		var from *Claim
		if all := free[c.kind]; len(all) > 0 && !c.alone {
			from = all[0]
		}
		switch it, err := o.take(c, from, now, at); {
		case err != nil:
			o.refuse(c, err)
		case it == nil:
			rest = append(rest, c)
		case !b.add(it):
			o.memory.giveUp(it)
			rest = append(rest, c)
		case it.from != nil:
			over[from] = true
			free[c.kind] = free[c.kind][1:]
		}
	}
	o.want = rest
	var left []*Claim
	for _, c := range o.releases {
		if !over[c] && (b.full || !b.add(o.memory.free(c))) {
			left = append(left, c)
		}
	}
	o.releases = left
}

// take returns the part of a transaction that makes a claim, over the keys of one that is released if that is not nil.
// It is nil if something has to be read first.
func (o *Owner) take(c, from *Claim, now time.Duration, at time.Time) (*item, error) {
	ready := true
	for _, name := range c.pools {
		k := o.memory.of(name, now)
		switch {
		case k.read > c.arrived && k.err != nil:
			return nil, k.err
		case k.read > c.arrived && k.pending:
			return nil, problem.New(problem.NoCapacity, "others wait for pool '%s'", name)
		case k.read > c.arrived && !fitsSpec(k.spec, c.needs[name]):
			return nil, problem.New(problem.NoCapacity, "pool '%s' does not grant %d slots", name, c.needs[name])
		case k.err != nil, k.pending, !k.Ready(), !fitsSpec(k.spec, c.needs[name]), c.races >= readRaces && k.read <= c.arrived:
			o.memory.want(k)
			ready = false
		}
	}
	if c.races >= maxRaces {
		return nil, problem.New(problem.NoCapacity, "%d races for slots were lost", c.races)
	}
	if !ready {
		return nil, nil
	}
	it := &item{claim: c, from: from}
	if from != nil && o.below(from) {
		o.memory.takeOver(it, at)
		return it, nil
	}
	it.from = nil
	return o.memory.takeNew(it, at)
}

func fitsSpec(s pool.Spec, n int) bool {
	return !s.Paused && s.Limit != pool.Closed && (s.Limit == pool.Unlimited || n <= s.Limit)
}

func (o *Owner) refuse(c *Claim, err error) {
	o.results = append(o.results, Result{Claim: c, Err: err})
}

// below reports whether what a claim holds is below the ceilings of its pools.
func (o *Owner) below(c *Claim) bool {
	for name, h := range c.keys {
		if !o.memory.pools[name].Below(h) {
			return false
		}
	}
	return true
}

// Answer takes the answer to Next, or the error that there was instead. It returns true if the outcome is unknown, or
// another process has written as this instance: then earlier writes must be fenced, and what Unresolved returns
// must be read.
func (o *Owner) Answer(resp *pb.TxnResponse, err error) (unknown bool) {
	b := o.flight
	switch {
	case err != nil && store.OutcomeUnknown(err):
		return true
	case err != nil:
		o.flight = nil
		for _, it := range b.items {
			o.failed(it, err)
		}
		return false
	case !resp.Succeeded && o.guard.Foreign(resp):
		return true
	}
	o.flight = nil
	if !resp.Succeeded {
		o.again, o.split = append(o.again, b.items...), splitFor
		return false
	}
	revision := resp.Header.Revision
	o.guard.Committed(revision)
	for i, it := range b.items {
		if !b.nested {
			o.done(it, revision)
			continue
		}
		if child := resp.Responses[i+1].GetResponseTxn(); child.Succeeded {
			o.done(it, revision)
		} else {
			o.split = splitFor
			o.lost(it, child.Responses, revision)
		}
	}
	return false
}

// Unresolved returns the transaction that reads what has become of one with an unknown outcome, once that can't happen
// any longer.
func (o *Owner) Unresolved() *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for _, it := range o.flight.items {
		t.Success = append(t.Success, store.Get(o.mainOf(it).Key(o.memory.keys)))
	}
	return t
}

func (o *Owner) mainOf(it *item) wire.Ref {
	if it.release {
		return it.claim.main
	}
	return wire.Refs(it.held)[0]
}

// Resolved takes the answer to Unresolved.
func (o *Owner) Resolved(resp *pb.TxnResponse) {
	b := o.flight
	o.flight = nil
	o.Forget()
	for i, it := range b.items {
		var revision int64
		kvs := resp.Responses[i].GetResponseRange().Kvs
		mine := false
		if len(kvs) > 0 {
			revision = kvs[0].ModRevision
			_, s, err := o.memory.keys.DecodeSlot(string(kvs[0].Key), kvs[0].Value, kvs[0].CreateRevision)
			mine = err == nil && s.Claim == it.claim.id
		}
		switch held := mine && revision == it.claim.fence; {
		case it.release && held:
			o.releases = append(o.releases, it.claim)
		case it.release, mine:
			o.done(it, revision)
		default:
			o.lost(it, nil, resp.Header.Revision)
		}
	}
}

// done records that an item was committed in a revision.
func (o *Owner) done(it *item, revision int64) {
	c := it.claim
	if it.release {
		o.released(c, nil)
		return
	}
	c.keys, c.fence, c.alone = map[string]slots.Held{}, revision, false
	for name, h := range it.held {
		if it.from == nil {
			h = o.memory.pools[name].Took(h, revision)
		}
		c.keys[name] = h
	}
	c.main = wire.Refs(c.keys)[0]
	o.results = append(o.results, Result{Claim: c})
	if from := it.from; from != nil {
		from.keys = nil
		o.results = append(o.results, Result{Claim: from, Released: true})
	}
}

// released records that the slots of a claim are free.
func (o *Owner) released(c *Claim, err error) {
	for name, h := range c.keys {
		k := o.memory.pools[name]
		if k.use(-1); err == nil {
			k.Freed(h)
		} else {
			k.Vanished(h)
		}
	}
	c.keys = nil
	o.results = append(o.results, Result{Claim: c, Released: true, Err: err})
}

// lost records that an item was not committed, because one of its compares failed, and what was read instead.
func (o *Owner) lost(it *item, responses []*pb.ResponseOp, revision int64) {
	c := it.claim
	if it.release {
		o.released(c, ErrGone)
		return
	}
	if from := it.from; from != nil {
		from.alone, c.alone = true, true
		o.releases = append(o.releases, from)
	} else {
		for name, h := range it.held {
			o.memory.pools[name].Lost(h)
			o.memory.pools[name].use(-1)
		}
		c.races++
	}
	if c.races == readRaces {
		c.arrived = o.memory.begun
	}
	at := 0
	for _, r := range it.reads {
		if len(responses) > 0 {
			at += o.memory.answer(r, responses[at:], revision)
		}
	}
	o.want = append(o.want, c)
}

// failed records that an item was not committed for a reason that has nothing to do with slots.
func (o *Owner) failed(it *item, err error) {
	if it.release {
		o.releases = append(o.releases, it.claim)
		return
	}
	if it.from != nil {
		o.releases = append(o.releases, it.from)
	}
	o.memory.giveUp(it)
	o.refuse(it.claim, err)
}
