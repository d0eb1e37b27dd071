package storetest

import (
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// BenchmarkClaim is one claim and one release of a slot next to so many others,
// shaped as berth's are: a compare of a key, one of a range, a put on a lease.
func BenchmarkClaim(b *testing.B) {
	keys := store.NewKeys("")
	slotKey := func(n int) string { return string(store.AppendPadded([]byte(keys.Slots("db")), n, 6)) }
	for _, others := range []int{10, 300, 10_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			e := New(Options{})
			lease, _, err := e.Grant(0)
			must(b, err)
			write(b, e, put(keys.Spec("db")))
			for i := range others {
				write(b, e, store.Put(slotKey(i+1), make([]byte, 100), lease))
			}
			slot, value := slotKey(0), make([]byte, 200)
			b.ReportAllocs()
			for b.Loop() {
				resp, err := e.Txn(&pb.TxnRequest{
					Compare: []*pb.Compare{
						store.ModEquals(keys.Spec("db"), 2),
						store.NonePutSince(keys.Slots("db")+"b/", e.Revision()),
					},
					Success: []*pb.RequestOp{store.Put(slot, value, lease)},
				})
				if err != nil || !resp.Succeeded {
					b.Fatal(err)
				}
				resp, err = e.Txn(&pb.TxnRequest{
					Compare: []*pb.Compare{store.ModEquals(slot, resp.Header.Revision)},
					Success: []*pb.RequestOp{store.Delete(slot)},
				})
				if err != nil || !resp.Succeeded {
					b.Fatal(err)
				}
			}
		})
	}
}
