package coordinator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// An etcd that takes more than a second for a write, and less than the two that one has.
// Each chunk has one change that is not to be made any more, as among much traffic there is
// one always: the others are made all the same.
func TestALeaderOnASlowEtcdGetsItsChunksThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		keys := store.NewKeys("/b/")
		lease, _, err := b.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		key := keys.Coordinator(lease)
		resp, err := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, nil, lease)}})
		if err != nil {
			t.Fatal(err)
		}
		l := newLeader(Config{Backend: b, Keys: keys}, newMetrics(nil, nil, nil), nil, election.Candidate{Lease: lease, Term: resp.Header.Revision})
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 1100 * time.Millisecond} })
		made, failed := 0, 0
		for round := range 10 {
			for l.unresolved {
				if _, err := l.fenceEarlierWrites(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			l.after = 0
			part := func(i int, cmps ...*pb.Compare) item {
				return item{cmps: cmps, ops: []*pb.RequestOp{store.Put(fmt.Sprint("/x/", round, "/", i), nil, 0)},
					made: func(int64, *pb.TxnResponse) { made++ }}
			}
			items := []item{part(0), part(1, store.Present("/nowhere")), part(2)}
			if err := l.write(t.Context(), &chunk{items: items}); err != nil {
				failed++
			}
		}
		if failed > 0 || made != 20 {
			t.Errorf("of 10 chunks %d failed, and %d of 20 changes are known to be made", failed, made)
		}
		time.Sleep(10 * time.Second)
	})
}
