package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// The words in which tests spell requests, and the text in which they read what
// came of them.

type (
	ifs  = []*pb.Compare
	then = []*pb.RequestOp
)

func txn(c ifs, success, failure then) *pb.TxnRequest {
	return &pb.TxnRequest{Compare: c, Success: success, Failure: failure}
}

func always(ops ...*pb.RequestOp) *pb.TxnRequest { return txn(nil, ops, nil) }

func nest(c ifs, success, failure then) *pb.RequestOp { return store.Nest(txn(c, success, failure)) }

func put(key string) *pb.RequestOp { return store.Put(key, []byte("v"), 0) }

func putOn(key string, lease int64) *pb.RequestOp {
	return store.Put(key, []byte("v"), store.LeaseID(lease))
}

func del(key string) *pb.RequestOp { return store.Delete(key) }

func get(key string) *pb.RequestOp { return store.Get(key) }

func delRange(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)},
	}}
}

func read(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func span(key, end string) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
}

// no never holds.
func no() ifs { return ifs{store.Present("no such key")} }

// over widens a compare to a range.
func over(c *pb.Compare, end string) *pb.Compare {
	c.RangeEnd = []byte(end)
	return c
}

func compareValue(key string, how pb.Compare_CompareResult, value string) *pb.Compare {
	return &pb.Compare{Result: how, Target: pb.Compare_VALUE, Key: []byte(key),
		TargetUnion: &pb.Compare_Value{Value: []byte(value)}}
}

func compareVersion(key string, how pb.Compare_CompareResult, n int64) *pb.Compare {
	return &pb.Compare{Result: how, Target: pb.Compare_VERSION, Key: []byte(key),
		TargetUnion: &pb.Compare_Version{Version: n}}
}

func compareLease(key string, how pb.Compare_CompareResult, id int64) *pb.Compare {
	return &pb.Compare{Result: how, Target: pb.Compare_LEASE, Key: []byte(key),
		TargetUnion: &pb.Compare_Lease{Lease: id}}
}

// many repeats an operation with numbered keys.
func many(n int, op func(key string) *pb.RequestOp) then {
	ops := make(then, n)
	for i := range ops {
		ops[i] = op(fmt.Sprintf("many/%04d", i))
	}
	return ops
}

// describe writes an answer to a transaction as text. Revisions count from base.
func describe(resp *pb.TxnResponse, base int64) string {
	words := []string{"else"}
	if resp.Succeeded {
		words[0] = "then"
	}
	for _, r := range resp.Responses {
		words = append(words, describeOp(r, base))
	}
	return strings.Join(words, " ")
}

func describeOp(op *pb.ResponseOp, base int64) string {
	switch r := op.Response.(type) {
	case *pb.ResponseOp_ResponsePut:
		return fmt.Sprintf("put@%d", r.ResponsePut.Header.Revision-base)
	case *pb.ResponseOp_ResponseDeleteRange:
		return fmt.Sprintf("del:%d@%d", r.ResponseDeleteRange.Deleted, r.ResponseDeleteRange.Header.Revision-base)
	case *pb.ResponseOp_ResponseRange:
		return "get" + describeRange(r.ResponseRange, base)
	case *pb.ResponseOp_ResponseTxn:
		return "[" + describe(r.ResponseTxn, base) + "]"
	}
	return "?"
}

func describeRange(r *pb.RangeResponse, base int64) string {
	more := ""
	if r.More {
		more = "+"
	}
	return fmt.Sprintf("(%s of %d%s)@%d", describeKVs(r.Kvs, base), r.Count, more, r.Header.Revision-base)
}

func describeKVs(kvs []*mvccpb.KeyValue, base int64) string {
	words := make([]string, len(kvs))
	for i, kv := range kvs {
		value := string(kv.Value)
		if len(value) > 20 {
			value = fmt.Sprintf("%d bytes", len(value))
		}
		words[i] = fmt.Sprintf("%s=%s/c%d/m%d/v%d", kv.Key, value, kv.CreateRevision-base, kv.ModRevision-base, kv.Version)
		if kv.Lease != 0 {
			words[i] += fmt.Sprintf("/l%d", kv.Lease)
		}
	}
	return strings.Join(words, " ")
}

// toldEvents writes events as text: one line for each revision.
func describeEvents(revs []Revision, base int64) string {
	var lines []string
	for _, r := range revs {
		line := fmt.Sprintf("%d:", r.Rev-base)
		for _, ev := range r.Events {
			if ev.Type == mvccpb.Event_DELETE {
				line += fmt.Sprintf(" del %s@%d", ev.Kv.Key, ev.Kv.ModRevision-base)
			} else {
				line += " put " + describeKVs([]*mvccpb.KeyValue{ev.Kv}, base)
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// class is what berth sees of an error: which of its own it is, whether the
// outcome of the request is unknown, and what etcd said where it is none.
func class(err error) string {
	if err == nil {
		return "ok"
	}
	for _, kind := range []error{
		store.ErrNoSpace, store.ErrLeaseNotFound, store.ErrCompacted, store.ErrTooLarge,
		store.ErrUnavailable, store.ErrDenied, store.ErrTokenExpired,
	} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	_, said, ok := strings.Cut(err.Error(), "etcdserver: ")
	if !ok {
		return "unexpected: " + err.Error()
	}
	return said
}

// write carries out a transaction that must pass.
func write(t testing.TB, e *Etcd, ops ...*pb.RequestOp) int64 {
	t.Helper()
	resp, err := e.Txn(always(ops...))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}
