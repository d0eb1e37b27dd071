package store_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// filled is a stand-in with so many keys of some size under /p/.
func filled(t *testing.T, keys, size int) *storetest.Backend {
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	value := bytes.Repeat([]byte("v"), size)
	b.Do(func(e *storetest.Etcd) {
		for i := 0; i < keys; i += 10 {
			var ops []*pb.RequestOp
			for j := range 10 {
				ops = append(ops, store.Put(fmt.Sprintf("/p/%07d", i+j), value, 0))
			}
			if _, err := e.Txn(&pb.TxnRequest{Success: ops}); err != nil {
				t.Fatal(err)
			}
		}
	})
	return b
}

// Pages grow where keys are small, and shrink where a page is large.
func TestPagesGrowWithSmallKeys(t *testing.T) {
	for size, want := range map[int][]int64{
		10:     {1000, 4000, 16_000, 50_000},
		4000:   append([]int64{1000}, slices.Repeat([]int64{2091}, 8)...),
		20_000: append([]int64{1000}, slices.Repeat([]int64{419}, 10)...),
	} {
		keys := map[int]int{10: 30_000, 4000: 17_000, 20_000: 5000}[size]
		synctest.Test(t, func(t *testing.T) {
			b := filled(t, keys, size)
			defer b.Close()
			var limits []int64
			b.Inject(func(c storetest.Call) storetest.Fault {
				limits = append(limits, c.Range.Limit)
				return storetest.Fault{}
			})
			s, err := store.ReadAll(t.Context(), b, "/p/")
			if err != nil || len(s.KVs) != keys || !slices.Equal(limits, want) {
				t.Errorf("values of %d bytes: %d keys in pages of %v, want %v; %v", size, len(s.KVs), limits, want, err)
			}
		})
	}
}

// However long it takes in all, what comes page by page comes.
func TestAFeedOfManySlowPagesComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := filled(t, 40_000, 10)
		defer b.Close()
		b.Inject(func(c storetest.Call) storetest.Fault {
			if c.Range != nil {
				return storetest.Fault{Delay: 8 * time.Second}
			}
			return storetest.Fault{}
		})
		f := store.NewFeed(b, "/p/", hclog.NewNullLogger(), func() { t.Error("it had to read again") })
		done := make(chan error, 1)
		ctx := t.Context()
		go func() { done <- f.Run(ctx) }()
		m := <-f.Messages()
		if m.Snapshot == nil || len(m.Snapshot.KVs) != 40_000 {
			t.Errorf("not all was read: %+v", m)
		}
	})
}
