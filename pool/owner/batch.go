package owner

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
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

	shared    map[string]bool
	cmps, ops int
	most      int // of one child
}

// addAll adds items as far as it has space, and returns the others.
func (b *batch) addAll(items []*item) []*item {
	for i, it := range items {
		if !b.add(it) {
			return items[i:]
		}
	}
	return nil
}

// add adds an item if it has space.
func (b *batch) add(it *item) bool {
	if b.nested {
		most := max(b.most, len(it.own)+len(it.shared), len(it.then), len(it.orElse))
		if len(b.items) > 0 && (len(b.items) >= maxChildren || len(b.items)+2+most > maxOps) {
			b.full = true
			return false
		}
		b.items, b.most = append(b.items, it), most
		return true
	}
	cmps := len(it.own)
	for _, s := range it.shared {
		if !b.shared[s.key] {
			cmps++
		}
	}
	if len(b.items) > 0 && max(b.cmps+cmps, b.ops+len(it.then)) >= maxOps {
		b.full = true
		return false
	}
	if b.shared == nil {
		b.shared = map[string]bool{}
	}
	for _, s := range it.shared {
		b.shared[s.key] = true
	}
	b.items, b.cmps, b.ops = append(b.items, it), b.cmps+cmps, b.ops+len(it.then)
	return true
}

// request returns the transaction.
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
		return t
	}
	seen := map[string]bool{}
	for _, it := range b.items {
		for _, s := range it.shared {
			if !seen[s.key] {
				seen[s.key] = true
				t.Compare = append(t.Compare, s.Compare)
			}
		}
		t.Compare, t.Success = append(t.Compare, it.own...), append(t.Success, it.then...)
	}
	return t
}
