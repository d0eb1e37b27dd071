package storetest

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// FuzzTxn has anything that parses as a transaction meet a store with keys and
// leases. It must not panic; a refusal must change nothing.
func FuzzTxn(f *testing.F) {
	for _, c := range txnCases() {
		b, err := proto.Marshal(c.req)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1<<16 {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &pb.TxnRequest{}
		if err := proto.Unmarshal(b, req); err != nil {
			t.Skip()
		}
		e := New(Options{})
		_, err := e.grant(101, time.Minute)
		must(t, err)
		for _, setup := range caseSetup() {
			_, err := e.Txn(setup)
			must(t, err)
		}
		before, keys := e.Revision(), describeKVs(e.keys, 0)
		resp, err := e.Txn(req)
		switch {
		case err != nil && (e.Revision() != before || describeKVs(e.keys, 0) != keys || len(e.log) != int(before)-1):
			t.Fatalf("a refusal changed the store: %v", err)
		case err == nil && (resp.Header.Revision != e.Revision() || e.Revision() > before+1):
			t.Fatalf("revision %d after %d, the answer says %d", e.Revision(), before, resp.Header.Revision)
		}
		if got, err := e.State(before); err != nil || describeKVs(got, 0) != keys {
			t.Fatalf("the past changed: %v\n%s\n%s", err, describeKVs(got, 0), keys)
		}
		must(t, e.Compact(e.Revision()))
		e.Advance(time.Minute)
	})
}
