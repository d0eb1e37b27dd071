package store

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// maxTxnOps is etcd's default for compares, and for operations, of one transaction
// (max-txn-ops).
const maxTxnOps = 128

// Part is a change in a transaction with others: it touches no key that another one
// writes, and happens or not by itself.
type Part struct {
	If   []*pb.Compare
	Then []*pb.RequestOp
}

// Joined is a transaction of several changes, in one of two shapes. Nested, each [Part] is a child,
// which fails alone. Flat, all happen or none does: etcd does that in a third of the time,
// so it is for changes that hardly ever fail; if the transaction fails, join them again as
// children.
type Joined struct {
	Txn  *pb.TxnRequest
	Flat bool
	// first is the first operation of the parts, and sizes are how many each has.
	first int
	sizes []int
}

// Join adds changes to a transaction that may have operations already. It is flat if that
// is requested and etcd takes so much in one.
func Join(root *pb.TxnRequest, parts []Part, flat bool) *Joined {
	j := &Joined{Txn: root, first: len(root.Success)}
	if flat && j.flatten(parts) {
		return j
	}
	for _, p := range parts {
		root.Success = append(root.Success, Nest(&pb.TxnRequest{Compare: p.If, Success: p.Then}))
	}
	return j
}

// flatten joins the parts at the root, each condition once, unless they are too many.
func (j *Joined) flatten(parts []Part) bool {
	cmps, ops := slices.Clone(j.Txn.Compare), slices.Clone(j.Txn.Success)
	seen := map[string]*pb.Compare{} // by key
	for _, p := range parts {
		for _, c := range p.If {
			if there := seen[string(c.Key)]; there == nil || !proto.Equal(there, c) {
				seen[string(c.Key)] = c
				cmps = append(cmps, c)
			}
		}
		ops = append(ops, p.Then...)
		// A child may only have what the root leaves.
		nested := slices.ContainsFunc(p.Then, func(op *pb.RequestOp) bool { return op.GetRequestTxn() != nil })
		if nested || len(cmps) > maxTxnOps || len(ops) > maxTxnOps {
			return false
		}
		j.sizes = append(j.sizes, len(p.Then))
	}
	j.Txn.Compare, j.Txn.Success, j.Flat = cmps, ops, true
	return true
}

// Answers takes the answer to a transaction that has succeeded apart, by part.
func (j *Joined) Answers(resp *pb.TxnResponse) []*pb.TxnResponse {
	rest := resp.Responses[j.first:]
	var all []*pb.TxnResponse
	if !j.Flat {
		for _, r := range rest {
			all = append(all, r.GetResponseTxn())
		}
		return all
	}
	for _, n := range j.sizes {
		all = append(all, &pb.TxnResponse{Succeeded: true, Responses: rest[:n]})
		rest = rest[n:]
	}
	return all
}
