package owner

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// A claim that a later process of the instance holds on keeps the id that its user has chosen, until it is released. An id of
// no claim is freed.
func TestAnAdoptedClaimHasItsID(t *testing.T) {
	r := newRig(t)
	c := NewClaim(&pool.Request{ID: "a", Chosen: true, Slots: map[string]int{"db": 2}, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
	r.h.Claim(c, r.now(), time.Unix(1, 0))
	r.pass(time.Second)
	id := wire.EncodeID(wire.ID{Host: r.h.name, Instance: "i"})
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(r.keys.ID("left"), id, c.lease)}})
	var kvs []*mvccpb.KeyValue
	for _, prefix := range []string{r.keys.Slots("db"), r.keys.ID("")} {
		for kv := range r.etcd.All(prefix) {
			kvs = append(kvs, kv)
		}
	}
	later := r.instance(r.h.name)
	all := later.h.Adopt(kvs, r.now())
	if len(all) != 1 || !all[0].Request().Chosen || all[0].Keys() != 3 {
		t.Fatalf("%+v", all)
	}
	later.pass(time.Second)
	if !r.has(r.keys.ID("a")) || r.has(r.keys.ID("left")) {
		t.Error("its id is free, or one of no claim is not")
	}
	later.h.Release(all[0])
	if got := later.pass(time.Second)["a"]; got.Outcome != Released || r.has(r.keys.ID("a")) {
		t.Errorf("%+v, and the id is there: %v", got, r.has(r.keys.ID("a")))
	}
}
