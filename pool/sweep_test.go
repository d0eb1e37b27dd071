package pool_test

import (
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

func TestAnEngineSweepsTheGuardsOfInstancesThatWereKilled(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		killed := b.keys.Guard("other", "killed")
		if _, err := store.Commit(t.Context(), b.root, nil, store.Put(killed, []byte(`{"v":1}`), 0)); err != nil {
			t.Fatal(err)
		}
		b.engine("one")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		got, err := b.root.Range(t.Context(), &pb.RangeRequest{Key: []byte(killed)})
		if err != nil || len(got.Kvs) != 0 {
			t.Errorf("%d guards of an instance that was killed are left, %v", len(got.Kvs), err)
		}
	})
}
