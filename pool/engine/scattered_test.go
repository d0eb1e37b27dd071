package engine

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// A claim of slots between many others, with more runs than a transaction has compares, is granted.
func TestAClaimOfScatteredSlotsIsGranted(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 300, func(w *bubble) {
		var ops []*pb.RequestOp
		for n := 0; n < 250; n += 2 {
			r := request(fmt.Sprint("held-", n))
			r.Holder = pool.Holder{Host: "other", Instance: "i"}
			put := wire.Spell(r).Puts(map[string]slots.Held{"db": {Numbers: []int{n}}}, wire.Written{Since: time.Unix(1, 0)})[0]
			ops = append(ops, store.Put(put.Key(w.keys), put.Value, 0))
		}
		_, err := w.b.Txn(w.Context(), &pb.TxnRequest{Success: ops})
		w.must(err)
		for _, e := range w.engines {
			r := request("scattered")
			r.Slots["db"] = 170
			w.release(e, claim(w.T, e, r))
		}
	})
}
