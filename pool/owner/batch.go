package owner

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxOps is etcd's default for the compares, and for the operations, of one transaction (max-txn-ops). A child may
	// have what the larger number of its parent leaves.
	maxOps = 128
	// maxChildren leaves a child as many compares and operations as most claims need.
	maxChildren = 60
	// splitFor is how many transactions have children from the start after one has failed: where there was one race
	// there will be others.
	splitFor = 8
)

// batch is one transaction.
type batch struct {
	nested bool
	items  []*item
	full   bool
	root   []*pb.RequestOp // besides those of items, and of the guard

	shared    map[condition]bool
	cmps, ops int
	most      int // of one child

	named  map[wire.Ref]bool // slot keys and blocks that it puts or deletes
	ending map[*demand]bool  // demands that end with it
	moves  map[*demandKey]bool
}

// newBatch returns an empty transaction, in which each item is a child if it is nested.
func newBatch(nested bool) *batch {
	return &batch{nested: nested, shared: map[condition]bool{}, named: map[wire.Ref]bool{}, ending: map[*demand]bool{}, moves: map[*demandKey]bool{}}
}

// add adds items if it has space for all of them.
func (b *batch) add(items ...*item) bool {
	if !b.fits(items) {
		b.full = true
		return false
	}
	for _, it := range items {
		b.items = append(b.items, it)
		b.most = max(b.most, it.size())
		b.cmps += b.compares(it)
		b.ops += it.ops()
		for _, s := range it.shared {
			b.shared[s.condition] = true
		}
		for _, r := range it.refs() {
			b.named[r] = true
		}
		if it.kind == moves {
			b.moves[it.key] = true
		}
		if it.kind == takes && it.claim.demand != nil {
			b.ending[it.claim.demand] = true
		}
	}
	return true
}

// names reports whether it puts or deletes a key of a claim already: etcd refuses a transaction that names a key twice.
func (b *batch) names(c *Claim) bool {
	return slices.ContainsFunc(wire.Refs(c.keys), func(r wire.Ref) bool { return b.named[r] })
}

func (b *batch) fits(items []*item) bool {
	if b.nested {
		most := b.most
		for _, it := range items {
			most = max(most, it.size())
		}
		n := len(b.items) + len(items)
		return len(b.items) == 0 || n <= maxChildren && n+2+len(b.root)+most <= maxOps
	}
	cmps, ops := 1+b.cmps, 1+b.ops+len(b.root)
	for _, it := range items {
		cmps, ops = cmps+b.compares(it), ops+it.ops()
	}
	return len(b.items) == 0 || max(cmps, ops) <= maxOps
}

// compares returns how many compares an item adds.
func (b *batch) compares(it *item) int {
	if it.kind == moves {
		return len(it.key.pools)
	}
	n := len(it.own)
	for _, s := range it.shared {
		if !b.shared[s.condition] {
			n++
		}
	}
	return n
}

// request returns the transaction. If it fails as a whole, it reads the guard.
func (b *batch) request(g *store.Guard) *pb.TxnRequest {
	t := &pb.TxnRequest{Compare: []*pb.Compare{g.Compare()}, Success: []*pb.RequestOp{g.Put()}, Failure: []*pb.RequestOp{g.Get()}}
	if b.nested {
		for _, it := range b.items {
			child := &pb.TxnRequest{Compare: slices.Clone(it.own), Success: it.then, Failure: it.orElse}
			for _, s := range it.shared {
				child.Compare = append(child.Compare, s.Compare)
			}
			t.Success = append(t.Success, store.Nest(child))
		}
		t.Success = append(t.Success, b.root...)
		return t
	}
	seen := map[condition]bool{}
	for _, it := range b.items {
		for _, s := range it.shared {
			if !seen[s.condition] {
				seen[s.condition] = true
				t.Compare = append(t.Compare, s.Compare)
			}
		}
		t.Compare, t.Success = append(t.Compare, it.own...), append(t.Success, it.then...)
	}
	t.Success = append(t.Success, b.root...)
	return t
}
