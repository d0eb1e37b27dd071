package storetest

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

const (
	// maxTxnOps is etcd's default of --max-txn-ops: the most that a transaction
	// may have of compares, of operations if they hold, and of operations if not.
	// A nested transaction may have as many less what its parent has most of.
	maxTxnOps = 128
	// maxRequestBytes is etcd's default of --max-request-bytes: 1.5 MiB.
	maxRequestBytes = 1.5 * 1024 * 1024
	// opOverhead is more than an operation or a compare takes beyond its keys and
	// its value: up to a dozen tags and lengths, and four numbers.
	opOverhead = 128
)

// validate refuses what etcd refuses because of the request alone.
func (e *Etcd) validate(req *pb.TxnRequest) error {
	size, err := validateTxn(req, maxTxnOps)
	if err != nil {
		return err
	}
	if e.mayOverlap(req) {
		if err := checkOverlaps(req); err != nil {
			return err
		}
	}
	// Measuring is slow, and tells nothing about a request that is small by a
	// generous estimate. Reads do not go through raft, which has the limit.
	if size > maxRequestBytes && !readOnly(req) && raftSize(req) > maxRequestBytes {
		return errTooLarge
	}
	return nil
}

// validateTxn returns an upper bound of the transaction's size.
func validateTxn(req *pb.TxnRequest, limit int) (size int, err error) {
	most := max(len(req.GetCompare()), len(req.GetSuccess()), len(req.GetFailure()))
	if most > limit {
		return 0, errTooManyOps
	}
	size = opOverhead
	for _, c := range req.GetCompare() {
		if len(c.GetKey()) == 0 {
			return 0, errEmptyKey
		}
		size += opOverhead + len(c.Key) + len(c.RangeEnd) + len(c.GetValue())
	}
	for _, ops := range [...][]*pb.RequestOp{req.GetSuccess(), req.GetFailure()} {
		for _, op := range ops {
			n, err := validateOp(op, limit-most)
			if err != nil {
				return 0, err
			}
			size += opOverhead + n
		}
	}
	return size, nil
}

func validateOp(op *pb.RequestOp, limit int) (size int, err error) {
	switch r := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return len(r.RequestRange.GetKey()) + len(r.RequestRange.GetRangeEnd()), validateRange(r.RequestRange)
	case *pb.RequestOp_RequestPut:
		return len(r.RequestPut.GetKey()) + len(r.RequestPut.GetValue()), validatePut(r.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return len(r.RequestDeleteRange.GetKey()) + len(r.RequestDeleteRange.GetRangeEnd()), validateDelete(r.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return validateTxn(r.RequestTxn, limit)
	}
	return 0, errEmptyOp
}

func validateRange(r *pb.RangeRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return errEmptyKey
	case r.SortTarget != pb.RangeRequest_KEY, r.SortOrder != pb.RangeRequest_NONE && r.SortOrder != pb.RangeRequest_ASCEND:
		return unsupported("a range in another order than that of its keys")
	case r.MinCreateRevision != 0, r.MaxCreateRevision != 0:
		return unsupported("a range filtered by the revision of creation")
	}
	return nil
}

func validatePut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return errEmptyKey
	case r.PrevKv, r.IgnoreValue, r.IgnoreLease:
		return unsupported("a put that reads the previous value")
	}
	return nil
}

func validateDelete(r *pb.DeleteRangeRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return errEmptyKey
	case r.PrevKv:
		return unsupported("a delete that returns the previous values")
	}
	return nil
}

// readOnly reports whether a transaction has nothing but reads. A nested one
// counts as a write, whatever is in it.
func readOnly(req *pb.TxnRequest) bool {
	for _, ops := range [...][]*pb.RequestOp{req.GetSuccess(), req.GetFailure()} {
		for _, op := range ops {
			if _, ok := op.GetRequest().(*pb.RequestOp_RequestRange); !ok {
				return false
			}
		}
	}
	return true
}

// raftSize is the size of the request as etcd writes it to its log. The number
// of the request in it can take two bytes less than here.
func raftSize(req *pb.TxnRequest) int {
	return proto.Size(&pb.InternalRaftRequest{
		Header: &pb.RequestHeader{ID: 1 << 63},
		Txn:    req,
	})
}
