package storetest

import (
	"testing"
	"time"

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
			got := outcome{answer: class(err), events: toldEvents(e.from(before+1), base)}
			if err == nil {
				got.answer = told(resp, base)
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
