package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Where etcd permits nobody to dispatch, claims that wait serve themselves, and the pool is no longer pending afterwards.
func TestWhereNobodyMayDispatchClaimsServeThemselves(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		for _, by := range w.by {
			by.Inject(func(c storetest.Call) storetest.Fault {
				if c.Op == storetest.OpTxn && strings.Contains(fmt.Sprint(c.Txn.Success), "request_put:{key:\""+w.keys.Role()) {
					return storetest.Fault{Drop: true, Err: fmt.Errorf("%w: write %s", store.ErrDenied, w.keys.Role())}
				}
				return storetest.Fault{}
			})
		}
		first, err := w.engines[0].Claim(w.Context(), request("first"))
		w.must(err)
		a := w.ask(w.engines[1], request("second"))
		w.pass(time.Second)
		w.must(w.engines[0].Release(w.Context(), first))
		w.pass(10 * time.Second)
		select {
		case <-a.done:
		default:
			t.Fatal("it waits still")
		}
		w.must(a.err)
		if w.under(w.keys.Pending("")) > 0 || w.under(w.keys.Role()) > 0 {
			t.Error("the pool is pending, or an instance has the role")
		}
		w.must(w.engines[1].Release(w.Context(), a.claim))
	})
}
