package storetest

import (
	"bytes"
	"cmp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// decide judges the compares of req and of every nested transaction that it
// would carry out, all of them against the store as it is now. It appends one
// verdict for each, in the order of the operations.
func (e *Etcd) decide(path []bool, req *pb.TxnRequest) []bool {
	taken := e.holds(req.GetCompare())
	path = append(path, taken)
	for _, op := range branch(req, taken) {
		if nested, ok := op.GetRequest().(*pb.RequestOp_RequestTxn); ok {
			path = e.decide(path, nested.RequestTxn)
		}
	}
	return path
}

// branch returns the operations that a verdict chooses.
func branch(req *pb.TxnRequest, taken bool) []*pb.RequestOp {
	if taken {
		return req.GetSuccess()
	}
	return req.GetFailure()
}

func (e *Etcd) holds(compares []*pb.Compare) bool {
	for _, c := range compares {
		if !e.compare(c) {
			return false
		}
	}
	return true
}

// absent is what a compare sees where no key is.
var absent = &mvccpb.KeyValue{}

// compare holds if it does for every key of its range. A range without keys
// counts as one key with nothing but zeros; its value compares with nothing.
func (e *Etcd) compare(c *pb.Compare) bool {
	from, to := e.keys.span(c.Key, c.RangeEnd)
	if from == to {
		return c.Target != pb.Compare_VALUE && compareKV(c, absent)
	}
	for _, kv := range e.keys[from:to] {
		if !compareKV(c, kv) {
			return false
		}
	}
	return true
}

// compareKV judges one key. As in etcd an unknown target is equal to anything,
// an unknown relation always holds, and an operand of another kind than the
// target is zero.
func compareKV(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var order int
	switch c.Target {
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	case pb.Compare_VALUE:
		order = bytes.Compare(kv.Value, c.GetValue())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	case pb.Compare_LESS:
		return order < 0
	}
	return true
}
