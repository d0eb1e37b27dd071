package storetest

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

// Space is how full an [Etcd] is.
type Space int

const (
	// SpaceFree takes every write.
	SpaceFree Space = iota
	// SpaceFull refuses grants, and transactions with a put in any branch, taken
	// or not, with [store.ErrNoSpace]. Deletes, reads, renewals and revocations
	// pass.
	SpaceFull
	// SpaceFilling carries out what SpaceFull refuses and answers
	// [store.ErrNoSpace] all the same, as the writes do that fill etcd.
	SpaceFilling
)

// SetSpace changes how full the store is.
func (e *Etcd) SetSpace(s Space) { e.space = s }

// puts reports whether a transaction has a put anywhere: that is what costs space.
func puts(req *pb.TxnRequest) bool { return putsIn(req.GetSuccess()) || putsIn(req.GetFailure()) }

func putsIn(ops []*pb.RequestOp) bool {
	for _, op := range ops {
		switch r := op.GetRequest().(type) {
		case *pb.RequestOp_RequestPut:
			return true
		case *pb.RequestOp_RequestTxn:
			if puts(r.RequestTxn) {
				return true
			}
		}
	}
	return false
}
