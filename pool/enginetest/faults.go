package enginetest

import (
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store/storetest"
)

// writes reports whether a transaction could put or delete a key that has a part in its name.
func writes(t *pb.TxnRequest, part string) bool {
	for _, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			var key []byte
			switch x := op.Request.(type) {
			case *pb.RequestOp_RequestPut:
				key = x.RequestPut.Key
			case *pb.RequestOp_RequestDeleteRange:
				key = x.RequestDeleteRange.Key
			case *pb.RequestOp_RequestTxn:
				if writes(x.RequestTxn, part) {
					return true
				}
			}
			if key != nil && strings.Contains(string(key), part) {
				return true
			}
		}
	}
	return false
}

// puts reports whether a transaction could put a key that has a part in its name.
func puts(t *pb.TxnRequest, part string) bool {
	for _, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			if x := op.GetRequestTxn(); x != nil && puts(x, part) {
				return true
			}
			if x := op.GetRequestPut(); x != nil && strings.Contains(string(x.Key), part) {
				return true
			}
		}
	}
	return false
}

// txnWrites are transactions below the pools.
func txnWrites(c storetest.Call) bool { return c.Txn != nil && writes(c.Txn, "/pools/") }

// putsTo are transactions that put something below a pool.
func putsTo(pool string) func(storetest.Call) bool {
	return func(c storetest.Call) bool { return c.Txn != nil && puts(c.Txn, "/pools/"+pool+"/") }
}

// counts counts the requests of a host from now on.
func (h *host) counts(of func(storetest.Call) bool) func() int64 {
	var n atomic.Int64
	h.by.Inject(func(c storetest.Call) storetest.Fault {
		if of(c) {
			n.Add(1)
		}
		return storetest.Fault{}
	})
	return n.Load
}

// fails has a fault happen to the requests of a host that are meant, until it is mended.
func (h *host) fails(f storetest.Fault, of func(storetest.Call) bool) {
	h.by.Inject(func(c storetest.Call) storetest.Fault {
		if of(c) {
			return f
		}
		return storetest.Fault{}
	})
}

// failsOnce has a fault happen to the next request that is meant.
func (h *host) failsOnce(f storetest.Fault, of func(storetest.Call) bool) (happened func() bool) {
	var hit atomic.Bool
	h.by.Inject(func(c storetest.Call) storetest.Fault {
		if of(c) && hit.CompareAndSwap(false, true) {
			return f
		}
		return storetest.Fault{}
	})
	return hit.Load
}

// mend ends the faults.
func (h *host) mend() { h.by.Inject(nil) }
