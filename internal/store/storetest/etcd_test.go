package storetest

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// outcome is what a case expects to see.
type outcome struct{ answer, events string }

func TestCornerCases(t *testing.T) {
	for _, c := range txnCases() {
		t.Run(c.name, func(t *testing.T) {
			e := New(Options{})
			base := e.Revision()
			for _, id := range []int64{101, 102} {
				if _, err := e.grant(store.LeaseID(id), time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			for _, req := range caseSetup() {
				if _, err := e.Txn(req); err != nil {
					t.Fatal(err)
				}
			}
			before := e.Revision()
			caseAt(c.req, base)
			resp, err := e.Txn(c.req)
			got := outcome{answer: class(err), events: describeEvents(e.from(before+1), base)}
			if err == nil {
				got.answer = describe(resp, base)
			}
			if want := (outcome{c.want, c.events}); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if err == nil && resp.Header.Revision != e.Revision() {
				t.Errorf("header has revision %d, the store %d", resp.Header.Revision, e.Revision())
			}
		})
	}
}

func TestARestoreBringsBackKeysAndLeasesAtALaterRevision(t *testing.T) {
	e := New(Options{})
	id, _, err := e.Grant(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	txn := func(ops ...*pb.RequestOp) {
		t.Helper()
		if _, err := e.Txn(&pb.TxnRequest{Success: ops}); err != nil {
			t.Fatal(err)
		}
	}
	txn(store.Put("/kept", []byte("1"), id)) // at revision 2
	e.Advance(9 * time.Second)
	s := e.Save()
	f := e.Follow(store.Prefix("/"), 2)
	f.Next(1)
	if err := e.Revoke(id); err != nil {
		t.Fatal(err)
	}
	txn(store.Put("/later", nil, 0))
	e.Restore(s, 100)

	if m, ok := f.Next(1); !ok || m.Err == nil {
		t.Errorf("the watch goes on: %v, %v", m, ok)
	}
	after := e.Follow(store.Prefix("/"), e.Revision()+1)
	if m, ok := after.Next(1); ok {
		t.Errorf("a new watch begins with %v", m)
	}
	if resp, err := e.Range(&pb.RangeRequest{Key: []byte("/"), RangeEnd: store.RangeEnd("/")}); err != nil || len(resp.Kvs) != 1 ||
		resp.Kvs[0].ModRevision != 2 || resp.Header.Revision != 104 {
		t.Errorf("it has %v, %v; want the key kept of revision 2, at 104", resp, err)
	}
	e.Advance(9 * time.Second) // its time began again
	txn(store.Put("/new", nil, id))
	e.Advance(2 * time.Second)
	if m, ok := after.Next(2); !ok || m.Revision != 106 || len(m.Events) != 3 {
		t.Errorf("the new watch delivers %v, %v", m, ok)
	}
}
