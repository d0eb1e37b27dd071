package owner

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// A claim that waits for two pools waits on if one of them is deleted with its demands, and nothing is left of the key that it
// had in the other one.
func TestADemandOfADeletedPoolIsWhole(t *testing.T) {
	r := newRig(t)
	s := pool.DefaultSpec()
	s.Limit = 1
	r.putSpec("gpu", s)
	full := NewClaim(&pool.Request{ID: "full", Slots: map[string]int{"db": 1, "gpu": 1}, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
	waits := NewClaim(&pool.Request{ID: "waits", Slots: map[string]int{"db": 1, "gpu": 1}, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
	for _, c := range []*Claim{full, waits} {
		r.h.asked[c] = true
		r.h.Claim(c, r.now())
		r.pass(time.Second)
	}
	was := waits.demand.ref()
	stamp, ok := waits.demand.stamped()
	if !ok || len(r.waiters()) != 1 {
		t.Fatalf("%+v", r.waiters())
	}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.DeleteAll(r.keys.DemandsAll("gpu"))}})
	r.poll(r.h)
	r.pass(time.Second)
	all := r.waiters()
	if len(all) != 1 || all[0].stamp != stamp || all[0].ref == was {
		t.Errorf("%+v, after %+v since %+v", all, was, stamp)
	}
	for _, name := range []string{"db", "gpu"} {
		keys := 0
		for range r.etcd.All(r.keys.DemandsAll(name)) {
			keys++
		}
		if keys != 1 {
			t.Errorf("%d keys are in %s", keys, name)
		}
	}
}
