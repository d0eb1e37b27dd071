package storetest

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestWhatIsNotSupportedIsRefused(t *testing.T) {
	del := func(r *pb.DeleteRangeRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	}
	put := func(r *pb.PutRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
	}
	a := []byte("a")
	for name, op := range map[string]*pb.RequestOp{
		"sorted by value":     read(&pb.RangeRequest{Key: a, SortTarget: pb.RangeRequest_VALUE}),
		"sorted downwards":    read(&pb.RangeRequest{Key: a, SortOrder: pb.RangeRequest_DESCEND}),
		"create at least":     read(&pb.RangeRequest{Key: a, MinCreateRevision: 1}),
		"create at most":      read(&pb.RangeRequest{Key: a, MaxCreateRevision: 1}),
		"previous of a put":   put(&pb.PutRequest{Key: a, PrevKv: true}),
		"ignored value":       put(&pb.PutRequest{Key: a, IgnoreValue: true}),
		"ignored lease":       put(&pb.PutRequest{Key: a, IgnoreLease: true}),
		"previous of deletes": del(&pb.DeleteRangeRequest{Key: a, PrevKv: true}),
	} {
		e := New(Options{})
		if _, err := e.Txn(always(nest(no(), then{op}, nil))); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
		if r := op.GetRequestRange(); r != nil {
			if _, err := e.Range(r); !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s, read alone: %v", name, err)
			}
		}
	}
}
