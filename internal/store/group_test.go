package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Each change of a group gets the answers to its own operations.
func TestAGroupAnswersEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: time.Millisecond} })
		if _, err := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put("there", []byte("x"), 0)}}); err != nil {
			t.Fatal(err)
		}
		var g store.Group
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				key := fmt.Sprint("k", i)
				absent := "there"
				if i%2 == 0 {
					absent = key
				}
				made, err := g.Commit(t.Context(), b, []*pb.Compare{store.CreateEquals(absent, 0)},
					store.Put(key, nil, 0), store.Get("there"))
				switch {
				case i%2 == 1:
					if !errors.Is(err, store.ErrChanged) {
						t.Errorf("%s: %v", key, err)
					}
				case err != nil:
					t.Errorf("%s: %v", key, err)
				case made.Revision == 0 || string(made.Responses[1].GetResponseRange().Kvs[0].Value) != "x":
					t.Errorf("%s: %+v", key, made)
				}
			})
		}
		wg.Wait()
	})
}

// What is given up before it was sent leaves nothing behind.
func TestAGroupForgetsWhatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		away := make(chan struct{})
		b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Hold: away} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var g store.Group
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := g.Commit(ctx, b, nil, store.Put(fmt.Sprint("k", i), nil, 0)); err == nil {
					t.Errorf("k%d was written", i)
				}
			})
		}
		wg.Wait()
		b.Inject(nil)
		close(away)
		time.Sleep(time.Minute)
		if pending, flying := g.Open(); pending+flying > 0 {
			t.Errorf("%d are pending still, %d under way", pending, flying)
		}
	})
}
