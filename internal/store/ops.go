package store

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Extra is what another transaction adds to a claim: conditions that must hold
// and writes that must happen with it, in the same revision or not at all.
type Extra struct {
	If   []*pb.Compare
	Then []*pb.RequestOp
	// Leased are puts that hang on the lease of the claim, so that they end when it
	// does.
	Leased []*pb.RequestOp
	// Stamp, if it is not nil, is called with the time before each try: a claim may have
	// waited for long, and what is written may tell when it was granted. It may change the
	// values of Then.
	Stamp func(now time.Time)
}

// ModAtLeast holds if the key was last put at rev or later. rev must be at least 1.
func ModAtLeast(key string, rev int64) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_GREATER,
		Target:      pb.Compare_MOD,
		Key:         []byte(key),
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev - 1},
	}
}

// ModEquals holds if the key was last put at rev; with rev 0, if it is absent.
func ModEquals(key string, rev int64) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_EQUAL,
		Target:      pb.Compare_MOD,
		Key:         []byte(key),
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
}

// CreateEquals holds if the key was created at rev; with rev 0, if it is absent.
func CreateEquals(key string, rev int64) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_EQUAL,
		Target:      pb.Compare_CREATE,
		Key:         []byte(key),
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev},
	}
}

// Present holds if the key exists.
func Present(key string) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_GREATER,
		Target:      pb.Compare_CREATE,
		Key:         []byte(key),
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 0},
	}
}

// ValueEquals holds if the key exists with that value.
func ValueEquals(key string, value []byte) *pb.Compare {
	return &pb.Compare{
		Key:         []byte(key),
		Result:      pb.Compare_EQUAL,
		Target:      pb.Compare_VALUE,
		TargetUnion: &pb.Compare_Value{Value: value},
	}
}

// NonePutSince holds if no key that exists under prefix was put after rev.
// Deletes after rev do not fail it.
func NonePutSince(prefix string, rev int64) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_LESS,
		Target:      pb.Compare_MOD,
		Key:         []byte(prefix),
		RangeEnd:    RangeEnd(prefix),
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev + 1},
	}
}

// NoneCreatedSince holds if no key that exists under prefix was created after rev. Deletes, and puts of keys that were
// there, do not fail it.
func NoneCreatedSince(prefix string, rev int64) *pb.Compare {
	c := CreateEquals(prefix, rev+1)
	c.Result, c.RangeEnd = pb.Compare_LESS, RangeEnd(prefix)
	return c
}

// NotPutSince holds if the key is absent, or its last put was at rev or before.
func NotPutSince(key string, rev int64) *pb.Compare {
	c := NonePutSince(key, rev)
	c.RangeEnd = nil
	return c
}

// Put writes a key on a lease; lease 0 is none.
func Put(key string, value []byte, lease LeaseID) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(key), Value: value, Lease: int64(lease)},
	}}
}

// Delete removes a key.
func Delete(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}
}

// DeleteAll removes every key under a prefix.
func DeleteAll(prefix string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(prefix), RangeEnd: RangeEnd(prefix)},
	}}
}

// DeleteUpTo removes every key under a prefix up to a last one, which goes too.
func DeleteUpTo(prefix, last string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(prefix), RangeEnd: append([]byte(last), 0)},
	}}
}

// Get reads a key inside a transaction.
func Get(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte(key)},
	}}
}

// Nest makes a transaction an operation of another one. All compares of both
// are judged before either writes.
func Nest(t *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}
