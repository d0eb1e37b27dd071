package owner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// readNumbers is the most slot keys of a pool that one read returns.
	readNumbers = 1000
	// retryNumbers is the most that a claim reads after a lost race.
	retryNumbers = 64
	// blocksPerNumber is how many times as many blocks are read at most: 50,000, which are 15 MB. A pool with a limit grants nothing
	// while it has more.
	blocksPerNumber = 50
	// unusedFor is for how long a pool is remembered that no claim uses.
	unusedFor = time.Minute
	// maxReads is the most pools that one transaction reads: it takes 128 operations.
	maxReads = 20
)

// errManyBlocks says why a pool with a limit grants nothing.
var errManyBlocks = fmt.Errorf("more than %d keys are below it", blocksPerNumber*readNumbers)

// memory is what an instance remembers of pools.
type memory struct {
	keys  wire.Keys
	hash  uint32
	pools map[string]*known
	begun uint64 // reads
	wants []*known
}

// known is what is remembered of one pool.
type known struct {
	*slots.Pool
	name    string
	spec    pool.Spec
	err     error  // why no claim can be made; nil if one can
	pending int64  // the revision of the key that says that claims wait for it; 0 if none do
	at      int64  // the revision of the last reading
	read    uint64 // the latest read that was answered
	wanted  bool
	held    int // claims of this instance, those that are being tried included
	used    time.Duration
	asked   time.Duration // when it was read last because it was full
	granted bool          // a claim of this instance has got slots of it since that was looked for
	served  time.Duration // when that was seen last
}

// of returns what is remembered of a pool.
func (m *memory) of(name string, now time.Duration) *known {
	k := m.pools[name]
	if k == nil {
		k = &known{Pool: slots.New(m.hash), name: name}
		m.pools[name] = k
	}
	k.used = max(k.used, now)
	return k
}

// want has a pool read.
func (m *memory) want(k *known) {
	if !k.wanted {
		k.wanted = true
		m.wants = append(m.wants, k)
	}
}

// unreadable has no claim made while something of the pool can't be read; nil is that it can.
func (k *known) unreadable(err error) bool {
	if k.err = nil; err != nil {
		k.err = store.Problem("pool '"+k.name+"' grants nothing", err)
	}
	return err != nil
}

// ask reports whether a pool that is full is to be read again, and records that it is.
func (k *known) ask(now time.Duration) bool {
	if k.asked != 0 && now-k.asked < readEvery {
		return false
	}
	k.asked = now
	return true
}

// next returns the transaction that reads pools, and what takes its answer, or that there was none; nil if no pool is to be read.
func (m *memory) next() (*pb.TxnRequest, func(*pb.TxnResponse, error)) {
	n := min(maxReads, len(m.wants))
	if n == 0 {
		return nil, nil
	}
	t, number := &pb.TxnRequest{}, m.begin()
	var reads []reading
	for _, k := range m.wants[:n] {
		r, ops := m.requests(k, 0, readNumbers, number)
		reads, t.Success = append(reads, r), append(t.Success, ops...)
	}
	m.wants = m.wants[n:]
	return t, func(resp *pb.TxnResponse, err error) {
		at := 0
		for _, r := range reads {
			if r.k.wanted = false; err != nil {
				m.want(r.k)
				continue
			}
			at += m.answer(r, resp.Responses[at:], resp.Header.Revision)
		}
	}
}

// begin counts a read that begins, and returns its number.
func (m *memory) begin() uint64 {
	m.begun++
	return m.begun
}

// use counts a claim of this instance that uses a pool, or with -1 one that no longer does.
func (k *known) use(n int) { k.held += n }

// uses reports whether claims of this instance use one of some pools.
func (m *memory) uses(pools []string) bool {
	return slices.ContainsFunc(pools, func(name string) bool { return m.pools[name].held > 0 })
}

// grant records that a claim of this instance has got slots of the pool.
func (k *known) grant() { k.granted = true }

// servedAt returns since when no claim of this instance is known to have got slots of one of some pools: when one did last.
func (m *memory) servedAt(pools []string, now time.Duration) (at time.Duration) {
	at = now
	for _, name := range pools {
		k := m.pools[name]
		if k.granted {
			k.granted, k.served = false, now
		}
		at = min(at, k.served)
	}
	return at
}

// below reports whether what a claim holds is below the ceilings of its pools, so that another claim may take it over.
func (m *memory) below(c *Claim) bool {
	for name, h := range c.keys {
		if k := m.pools[name]; k.err != nil || !k.Below(h) {
			return false
		}
	}
	return true
}

// open reports whether the pools of a claim may grant as many slots as it has.
func (m *memory) open(c *Claim) bool {
	for _, name := range c.pools {
		if s := m.pools[name].spec; s.Paused || s.Limit == pool.Closed || s.Limit > 0 && c.request.Slots[name] > s.Limit {
			return false
		}
	}
	return true
}

// leaseDuration returns the shortest lease duration of the pools of a claim.
func (m *memory) leaseDuration(c *Claim) (d time.Duration) {
	for _, name := range c.pools {
		if k := m.pools[name]; k != nil && k.specKnown() && (d == 0 || k.spec.LeaseDuration < d) {
			d = k.spec.LeaseDuration
		}
	}
	return cmp.Or(d, pool.DefaultSpec().LeaseDuration)
}

// specKnown reports whether a spec of the pool was read.
func (k *known) specKnown() bool { return k.spec.LeaseDuration > 0 }

// specRead records the spec of a pool that was read by itself at a revision: how long leases are, and from when on claims that wait
// reserve, follows from the last one.
func (m *memory) specRead(name string, r *pb.ResponseOp, revision int64) {
	k := m.of(name, 0)
	for _, kv := range r.GetResponseRange().Kvs {
		if s, _, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision); err == nil && revision >= k.at {
			k.spec = s
		}
	}
}

// age forgets pools that are not used, and what is too old of the others.
func (m *memory) age(now time.Duration) {
	kept := map[string]*known{} // a map does not become smaller
	for name, k := range m.pools {
		if k.Age(now); k.held > 0 || now-k.used <= unusedFor {
			kept[name] = k
		}
	}
	m.pools = kept
}

// reread has pools read before claims there are judged.
func (m *memory) reread(pools []string, now time.Duration) {
	for _, name := range pools {
		m.of(name, now).Forget()
	}
}

// forget forgets what may have changed unseen.
func (m *memory) forget() {
	for _, k := range m.pools {
		k.Forget()
	}
}

// restored forgets all that was read: it may be later than anything that can be read now.
func (m *memory) restored() {
	for _, k := range m.pools {
		k.Restored()
		k.at, k.err, k.pending = 0, nil, 0
	}
}

// reading is the part of a transaction that reads a pool.
type reading struct {
	k         *known
	number    uint64 // of the read; 0 if it is part of a claim's transaction
	from      int
	counted   bool
	countFrom int
}

// requests returns the reads of a pool, with slot keys from a number on, as part of the read with a number.
func (m *memory) requests(k *known, from int, most int64, number uint64) (reading, []*pb.RequestOp) {
	r := reading{k: k, number: number, from: from}
	first, end := m.keys.Numbers(k.name, slots.Run{From: from, To: slots.MaxNumbersOfPool})
	ops := []*pb.RequestOp{
		store.Get(m.keys.Spec(k.name)), store.Get(m.keys.Pending(k.name)),
		m.blocks(k.name, most),
		limited(inRange(first, end, true), most),
	}
	if r.countFrom, r.counted = k.Missing(); r.counted {
		first, end := m.keys.Numbers(k.name, slots.Run{From: r.countFrom, To: slots.MaxNumbersOfPool})
		count := inRange(first, end, true)
		count.GetRequestRange().CountOnly = true
		ops = append(ops, count)
	}
	return r, ops
}

// blocks reads blocks of a pool, along with as many numbers at most.
func (m *memory) blocks(pool string, most int64) *pb.RequestOp {
	return limited(under(m.keys.Blocks(pool), false), blocksPerNumber*most)
}

// limited has an operation read so many keys at most.
func limited(op *pb.RequestOp, most int64) *pb.RequestOp {
	op.GetRequestRange().Limit = most
	return op
}

func inRange(from, to string, keysOnly bool) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(to), KeysOnly: keysOnly}}}
}

// under reads all keys below a prefix.
func under(prefix string, keysOnly bool) *pb.RequestOp {
	return inRange(prefix, string(store.RangeEnd(prefix)), keysOnly)
}

// revisionOf returns the revision of a key that was read, 0 if there is none.
func revisionOf(r *pb.ResponseOp) int64 {
	if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0].ModRevision
	}
	return 0
}

// answer records what was read at a revision, and returns how many responses it has used.
func (m *memory) answer(r reading, responses []*pb.ResponseOp, revision int64) (used int) {
	at := func(i int) *pb.RangeResponse { return responses[i].GetResponseRange() }
	if used = 4; r.counted {
		used++
	}
	k := r.k
	k.read = max(k.read, r.number)
	if revision < k.at || r.number == 0 && at(2).More { // what is known is later, or not enough was read
		return used
	}
	k.at = revision
	k.pending = revisionOf(responses[1])
	kvs := at(0).Kvs
	if len(kvs) == 0 {
		k.err = pool.NoSuchPool(k.name)
		return used
	}
	var claims slots.Spec
	var err error
	if k.spec, claims, err = wire.DecodeSpec(string(kvs[0].Key), kvs[0].Value, kvs[0].ModRevision); k.unreadable(err) {
		return used
	}
	if at(2).More && claims.Limit != slots.Unlimited && k.unreadable(&store.CorruptError{Key: m.keys.Blocks(k.name), Reason: errManyBlocks}) {
		return used
	}
	in := slots.Reading{Revision: revision, Spec: claims, From: r.from, To: slots.MaxNumbersOfPool, Counted: r.counted, CountFrom: r.countFrom}
	for _, kv := range at(2).Kvs {
		_, s, err := m.keys.DecodeSlot(string(kv.Key), kv.Value, kv.CreateRevision)
		if k.unreadable(err) {
			return used
		}
		in.Blocks = append(in.Blocks, s.Block)
	}
	for _, kv := range at(3).Kvs {
		ref, err := m.keys.Ref(string(kv.Key))
		if err != nil && k.unreadable(&store.CorruptError{Key: string(kv.Key), Reason: err}) {
			return used
		}
		in.Numbers = append(in.Numbers, ref.Number)
	}
	if at(3).More {
		in.To = in.Numbers[len(in.Numbers)-1] + 1
	}
	if r.counted {
		in.Count = int(at(4).Count)
	}
	k.Read(in)
	return used
}
