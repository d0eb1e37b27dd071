package owner

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// elsewhere has another instance have a claim wait for a step.
func (r *rig) elsewhere(name int, step string, sole bool) (key string) {
	k := wire.DemandKey{Pool: "db", Host: "other", Instance: "i", Name: name}
	d := wire.Demand{Claim: fmt.Sprint("other", name), Pools: map[string]int{"db": 1}, Sole: sole, Since: time.Unix(1, 0), Holder: pool.Holder{Host: "other", Instance: "i", Run: "r", Step: step}}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(r.keys.Demand(k), wire.EncodeDemands([]wire.Demand{d})["db"], 0)}})
	return r.keys.Demand(k)
}

// A claim that helps waits in the queue only while no other instance has one there for the same. That is read for all of them
// together, each second.
func TestAClaimThatHelpsWaitsOutOfTheQueue(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		s := pool.DefaultSpec()
		s.Limit = 1
		r.putSpec(fmt.Sprint("p", i), s)
	}
	r.ask("full", 4, store.Extra{})
	r.pass(time.Second)
	ask := func(id, step, name string, helps bool) *Claim {
		c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{name: 1}, Wait: time.Hour, Sole: true, Helps: helps, Holder: pool.Holder{Host: r.h.name, Instance: "i", Run: "r", Step: step}})
		r.h.Claim(c, r.now(), time.Unix(1, 0))
		return c
	}
	key := r.elsewhere(0, "a", true)
	r.elsewhere(1, "b", false)
	ask("own", "a", "db", false)
	ask("a", "a", "db", true)
	ask("b", "b", "db", true)
	gone := ask("gone", "a", "db", true)
	all := r.pass(helpEvery / 2)
	for id, waits := range map[string]bool{"own": true, "a": false, "b": true, "gone": false} {
		if got, ok := all[id]; ok != waits || ok && got.Outcome != Waits {
			t.Errorf("%s: %+v", id, got)
		}
	}
	r.h.Withdraw(gone, false)
	if all := r.pass(helpEvery / 4); all["gone"].Outcome != Withdrawn {
		t.Errorf("%+v", all)
	}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(key)}})
	if all := r.pass(helpEvery / 8); len(all) > 0 {
		t.Errorf("it was read too soon: %+v", all)
	}
	if all := r.pass(helpEvery); all["a"].Outcome != Waits {
		t.Errorf("%+v", all)
	}
	// Many pools are read in turn.
	for i := range 20 {
		ask(fmt.Sprint("held", i), fmt.Sprint("held", i), fmt.Sprint("p", i), false)
	}
	r.pass(time.Second)
	for i := range 20 {
		ask(fmt.Sprint("next", i), fmt.Sprint(i), fmt.Sprint("p", i), true)
	}
	if all := r.pass(6 * helpEvery); len(all) != 20 {
		t.Errorf("%d of 20 wait: %+v", len(all), all)
	}
}
