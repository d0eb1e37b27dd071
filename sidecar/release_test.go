package sidecar_test

import (
	"fmt"
	"net/http"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
)

// A restore of etcd brings claims back that were released: nobody holds them here, and
// their lease is renewed for others.
func TestADeleteThatAnswers204HasFreedTheSlots(t *testing.T) {
	srv := embedtest.New(t)
	r := start(t, config(t, srv.Endpoint()))
	etcd := embedtest.Client(t, srv)
	keys := store.NewKeys(store.DefaultPrefix)
	r.pool("db", 10)
	r.claim(sidecar.ClaimRequest{ID: "kept", Pools: sidecar.Slots{"db": 1}})
	found, err := store.ReadAll(t.Context(), etcd, keys.Slots("db"))
	if err != nil || len(found.KVs) != 1 {
		t.Fatal(found, err)
	}
	value := fmt.Appendf(nil, `{"v":1,"n":1,"claim":"old","record":{"pools":{"db":1},"holder":{"host":"one","instance":"sidecar"},"since":"2026-01-01T00:00:00Z"}}`)
	lease := store.LeaseID(found.KVs[0].Lease)
	for g := range 10 {
		key := keys.Slot("db", g, 0)
		if _, err := etcd.Txn(t.Context(), &pb.TxnRequest{
			Compare: []*pb.Compare{store.CreateEquals(key, 0)}, Success: []*pb.RequestOp{store.Put(key, value, lease)},
		}); err != nil {
			t.Fatal(err)
		}
		if r.claimed("db") > 1 {
			break
		}
	}
	eventually(t, "the claim is seen", func() bool { return r.claimed("db") > 1 })
	if got := r.raw(request{method: "DELETE", path: "/v1/claims/old"}); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
	after, err := store.ReadAll(t.Context(), etcd, keys.Slots("db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range after.KVs {
		if kv.ModRevision > found.Revision {
			t.Errorf("the DELETE answered, and %s is held still", kv.Key)
		}
	}
	if len(after.KVs) == 0 {
		t.Error("the claim that is held is gone, too")
	}
}
