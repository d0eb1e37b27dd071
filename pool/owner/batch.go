package owner

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxOps is etcd's default for the compares, and for the operations, of one transaction (max-txn-ops). A child may
	// have what the larger number of its parent leaves.
	maxOps = 128
	// maxChildren leaves a child as many compares and operations as most claims need.
	maxChildren = 60
	// maxSize is the most compares or operations of a child that takes over keys: the guard, the child and a demands key are
	// the operations of its parent then.
	maxSize = maxOps - 3
	// splitFor is how many transactions have children from the start after one has failed: where there was one race
	// there will be others.
	splitFor = 8
)

// batchKind says what a transaction does with the guard.
type batchKind int

const (
	withPuts    batchKind = iota // it compares and puts it
	onlyDeletes                  // it compares it: etcd is full
	probes                       // it puts it, and nothing else, as it was deleted in a full etcd
)

// batch is one transaction.
type batch struct {
	kind   batchKind
	nested bool
	single bool // it has one part at most
	items  []*item
	full   bool
	root   []*pb.RequestOp // besides those of items, and of the guard
	// pending are pools that it has pending.
	pending []string

	shared    map[identity]bool
	cmps, ops int
	most      int // of one child

	named map[wire.Ref]bool // slot keys and blocks that it puts or deletes
	wrote map[string]bool   // keys of callers, and offers keys, that it puts or deletes
	// ending are demands that end with it. In one whose parts succeed or fail by themselves none is sure to.
	ending map[*demand]bool
	moves  map[*demandKey]bool
	turn   *turn // that its claims use
}

// newBatch returns an empty transaction, in which each item is a child if it is nested. A single one has one part at most.
func newBatch(kind batchKind, nested, single bool) *batch {
	return &batch{
		kind: kind, nested: nested, single: single, shared: map[identity]bool{}, named: map[wire.Ref]bool{}, wrote: map[string]bool{},
		ending: map[*demand]bool{}, moves: map[*demandKey]bool{},
	}
}

// newProbe returns the transaction that finds out whether etcd has space again.
func newProbe() *batch { return &batch{kind: probes} }

// add adds items if it has space for all of them.
func (b *batch) add(items ...*item) bool {
	if len(b.items) == 0 {
		b.nested = b.nested || !b.fits(items) // with a child for each there is more space
	} else if b.single || b.repeats(items) || !b.fits(items) {
		b.full = true
		return false
	}
	for _, it := range items {
		b.items = append(b.items, it)
		b.most = max(b.most, it.size())
		b.cmps += b.compares(it)
		b.ops += it.ops()
		for _, s := range it.shared {
			b.shared[s.identity] = true
		}
		for _, r := range it.refs() {
			b.named[r] = true
		}
		for _, key := range it.callersKeys() {
			b.wrote[key] = true
		}
		if it.kind == moves {
			b.moves[it.key] = true
		}
		if it.kind == takes && it.claim.demand != nil && !b.nested {
			b.ending[it.claim.demand] = true
		}
		if it.kind == takes && it.claim.passing.turn != nil {
			b.turn = it.claim.passing.turn
		}
	}
	return true
}

// read has it read a key.
func (b *batch) read(key string) { b.root = append(b.root, store.Get(key)) }

// addPending has a pool pending.
func (b *batch) addPending(pool string, put *pb.RequestOp) {
	b.pending, b.root = append(b.pending, pool), append(b.root, put)
}

// names reports whether it puts or deletes one of some keys already: etcd refuses a transaction that names a key twice.
func (b *batch) names(held map[string]slots.Held) bool {
	return slices.ContainsFunc(wire.Refs(held), func(r wire.Ref) bool { return b.named[r] })
}

// uses reports whether it uses another turn: each counts the slots as free that others take.
func (b *batch) uses(other *turn) bool { return b.turn != nil && other != nil && b.turn != other }

// repeats reports whether it puts or deletes a key already that a caller has some items put or delete too.
func (b *batch) repeats(items []*item) bool {
	return slices.ContainsFunc(items, func(it *item) bool {
		return slices.ContainsFunc(it.callersKeys(), func(key string) bool { return b.wrote[key] })
	})
}

// fits reports whether it has space for items.
func (b *batch) fits(items []*item) bool {
	if b.nested {
		most := b.most
		for _, it := range items {
			most = max(most, it.size())
		}
		n := len(b.items) + len(items)
		return n <= maxChildren && n+2+len(b.root)+most <= maxOps
	}
	cmps, ops := 1+b.cmps, 1+b.ops+len(b.root)
	for _, it := range items {
		cmps, ops = cmps+b.compares(it), ops+it.ops()
	}
	return max(cmps, ops) <= maxOps
}

// compares returns how many compares an item adds.
func (b *batch) compares(it *item) int {
	if it.kind == moves {
		return len(it.key.pools)
	}
	n := len(it.own)
	for _, w := range it.when {
		n += len(w.holds)
	}
	for _, s := range it.shared {
		if !b.shared[s.identity] {
			n++
		}
	}
	return n
}

// request returns the transaction. If it fails as a whole, it reads the guard.
func (b *batch) request(g *store.Guard) *pb.TxnRequest {
	if b.kind == probes {
		return g.FenceTxn()
	}
	t := &pb.TxnRequest{Compare: []*pb.Compare{g.Compare()}, Success: []*pb.RequestOp{g.Put()}, Failure: []*pb.RequestOp{g.Get()}}
	if b.kind == onlyDeletes {
		t.Success[0] = g.Get()
	}
	if b.nested {
		for _, it := range b.items {
			t.Success = append(t.Success, store.Nest(it.child()))
		}
		t.Success = append(t.Success, b.root...)
		return t
	}
	seen := map[identity]bool{}
	for _, it := range b.items {
		for _, s := range it.shared {
			if !seen[s.identity] {
				seen[s.identity] = true
				t.Compare = append(t.Compare, s.Compare)
			}
		}
		for _, w := range it.when {
			t.Compare = append(t.Compare, w.holds...)
		}
		t.Compare, t.Success = append(t.Compare, it.own...), append(t.Success, it.then...)
	}
	t.Success = append(t.Success, b.root...)
	return t
}

// part is what has become of an item of a transaction.
type part struct {
	done  bool
	unmet *Claim // whose conditions do not hold, nil if that is not the reason
	// responses are those to what the item does, or to what is read if it fails, or if a condition does not hold.
	responses []*pb.ResponseOp
}

// parts returns what has become of the items.
func (b *batch) parts(resp *pb.TxnResponse) []part {
	all := make([]part, len(b.items))
	at := 1 // behind the guard
	for i, it := range b.items {
		if b.nested {
			all[i] = it.part(resp.Responses[at+i].GetResponseTxn())
			continue
		}
		all[i] = part{done: true, responses: resp.Responses[at : at+len(it.then)]}
		at += len(it.then)
	}
	return all
}

// together returns one operation that does several, so that a transaction has one for each of its items: then it has no more than
// etcd takes.
func together(ops []*pb.RequestOp) *pb.RequestOp {
	if len(ops) == 1 {
		return ops[0]
	}
	return store.Nest(&pb.TxnRequest{Success: ops})
}

// apart returns the responses to what together has done.
func apart(r *pb.ResponseOp) []*pb.ResponseOp {
	if t := r.GetResponseTxn(); t != nil {
		return t.Responses
	}
	return []*pb.ResponseOp{r}
}
