package storetest

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// answerPut makes the answer to a put, in one allocation instead of four: it is
// by far the most frequent one.
func answerPut(rev int64) *pb.ResponseOp {
	a := &struct {
		op     pb.ResponseOp
		union  pb.ResponseOp_ResponsePut
		put    pb.PutResponse
		header pb.ResponseHeader
	}{}
	a.header.Revision = rev
	a.put.Header = &a.header
	a.union.ResponsePut = &a.put
	a.op.Response = &a.union
	return &a.op
}

// answerDelete makes the answer to a delete of n keys.
func answerDelete(rev, n int64) *pb.ResponseOp {
	a := &struct {
		op     pb.ResponseOp
		union  pb.ResponseOp_ResponseDeleteRange
		delete pb.DeleteRangeResponse
		header pb.ResponseHeader
	}{}
	a.header.Revision = rev
	a.delete.Header, a.delete.Deleted = &a.header, n
	a.union.ResponseDeleteRange = &a.delete
	a.op.Response = &a.union
	return &a.op
}

// copyKVs copies key-values so deeply that they can be changed.
func copyKVs(kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	size := 0
	for _, kv := range kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	made := make([]mvccpb.KeyValue, len(kvs))
	copies := make([]*mvccpb.KeyValue, len(kvs))
	text := make([]byte, 0, size)
	for i, kv := range kvs {
		copies[i] = &made[i]
		text = copyKV(&made[i], kv, text)
	}
	return copies
}

// copyKV fills in to from kv. Key and value are appended to text, each cut off
// there so that appending to one does not run into the next.
func copyKV(to, kv *mvccpb.KeyValue, text []byte) []byte {
	n := len(text)
	text = append(text, kv.Key...)
	to.Key = text[n:len(text):len(text)]
	if n = len(text); len(kv.Value) > 0 {
		text = append(text, kv.Value...)
		to.Value = text[n:len(text):len(text)]
	}
	to.CreateRevision, to.ModRevision = kv.CreateRevision, kv.ModRevision
	to.Version, to.Lease = kv.Version, kv.Lease
	return text
}
