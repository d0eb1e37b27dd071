package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// refuse has what an engine puts below a prefix not carried out, with an error as the answer.
func (w *bubble) refuse(i int, prefix string, err error) {
	w.by[i].Inject(func(c storetest.Call) (f storetest.Fault) {
		if puts(c, prefix) {
			f.Drop, f.Err = true, err
		}
		return f
	})
}

// forget has what a dispatcher offers put elsewhere.
func (w *bubble) forget(i int) {
	w.by[i].Inject(func(c storetest.Call) (f storetest.Fault) {
		if c.Op == storetest.OpTxn {
			for _, op := range c.Txn.Success {
				if p := op.GetRequestPut(); strings.HasPrefix(string(p.GetKey()), w.keys.OffersAll()) {
					p.Key = []byte("/elsewhere")
				}
			}
		}
		return f
	})
}

// Claims that wait serve themselves with a poll, if etcd permits nobody to dispatch or to read who does, if nobody has for 5 s, or
// if the dispatcher offers nothing to one that fits at two polls 5 s apart. The pool is no longer pending afterwards.
func TestClaimsServeThemselves(t *testing.T) {
	denied := fmt.Errorf("%w: a key", store.ErrDenied)
	for name, tc := range map[string]struct {
		prepare    func(w *bubble)
		atLeast    time.Duration // after the slot is free
		within     time.Duration
		dispatched bool
	}{
		"no right to dispatch": {func(w *bubble) {
			w.refuse(1, w.keys.Role(), denied)
		}, 0, 2 * time.Second, false},
		"no right to read": {func(w *bubble) {
			w.by[1].Inject(func(c storetest.Call) (f storetest.Fault) {
				if puts(c, w.keys.Role()) || c.Op == storetest.OpTxn && isPoll(c.Txn, w.keys.Role()) {
					f.Drop, f.Err = true, denied
				}
				return f
			})
		}, 0, 2 * time.Second, false},
		"no dispatcher": {func(w *bubble) {
			w.refuse(1, w.keys.Role(), store.ErrUnavailable)
		}, 2 * time.Second, 6 * time.Second, false},
		"no offers": {func(w *bubble) {
			spec(w.T, w.b, w.keys, "other", 1)
			claim(w.T, w.engines[2], requestOf("holds", "other"))
			w.ask(w.engines[0], requestOf("waits", "other")).waits() // it dispatches
			w.forget(0)
		}, 4 * time.Second, 12 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			withEngines(t, 3, 1, func(w *bubble) {
				first := claim(w.T, w.engines[2], request("first"))
				tc.prepare(w)
				a := w.ask(w.engines[1], request("second"))
				w.pass(time.Second)
				a.waits()
				w.release(w.engines[2], first)
				begun := time.Now()
				second := a.got()
				if d := time.Since(begun); d < tc.atLeast || d > tc.within {
					t.Errorf("it is served after %v", d)
				}
				w.pass(10 * time.Second)
				if w.under(w.keys.Pending("db")) > 0 || w.under(w.keys.Role()) > 0 != tc.dispatched {
					t.Error("the pool is pending, or another instance has the role than expected")
				}
				w.release(w.engines[1], second)
			})
		})
	}
}

// isPoll reports whether a transaction only reads, and a key besides others.
func isPoll(t *pb.TxnRequest, key string) bool {
	return len(t.Compare) == 0 && slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool {
		return string(op.GetRequestRange().GetKey()) == key
	})
}
