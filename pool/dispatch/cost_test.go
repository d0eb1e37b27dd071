package dispatch

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

type pbTxn = pb.TxnRequest

func ops(all ...*pb.RequestOp) []*pb.RequestOp { return all }

// waiters shows a dispatcher so many demands of one slot, of so many hosts in turn, in a pool whose slots are all held.
func waiters(r *rig, limit, n, hosts int) {
	r.spec("db", limit, false)
	r.demand("first", 0, ask(0, "db=1"))
	r.commit("first")
	events := []*mvccpb.Event{}
	at := r.etcd.Revision() + 1_000_000
	for i := range limit {
		req := fmt.Sprintf(`{"v":2,"claim":"x-%d","record":{"pools":{"db":1},"holder":{"host":"x","instance":"i"},"since":"2026-01-01T00:00:00Z"}}`, i)
		events = append(events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(r.keys.Number("db", i)), Value: []byte(req), CreateRevision: at, ModRevision: at}})
	}
	for i := range n / wire.MaxDemands {
		var list []wire.Demand
		for k := range wire.MaxDemands {
			d := ask(k, "db=1")
			d.Claim = fmt.Sprintf("c-%d-%d", i, k)
			list = append(list, d)
		}
		host := fmt.Sprint("host-", i%hosts)
		at++
		events = append(events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(r.key(host, i, "db")), Value: wire.EncodeDemands(list)["db"], CreateRevision: at, ModRevision: at}})
	}
	r.d.Events(at, events, r.now)
}

// free shows that so many slots are free.
func (r *rig) free(from, to int) {
	var events []*mvccpb.Event
	at := r.d.view.revision + 1
	for n := from; n < to; n++ {
		events = append(events, &mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(r.keys.Number("db", n)), ModRevision: at}})
	}
	r.d.Events(at, events, r.now)
}

// A plan decides about few demands: as many as there are lanes and offers.
func TestPlansCostWhatTheyDo(t *testing.T) {
	for _, tc := range []struct{ waiters, hosts, free, most int }{
		{50_000, 1, 0, 10},
		{50_000, 1, 100, 120},
		{50_000, 100, 0, 110},
		{50_000, 100, 100, 220},
	} {
		r := newRig(t)
		waiters(r, 1000, tc.waiters, tc.hosts)
		r.d.plan(r.now)
		began := r.d.Counts()[Examined]
		r.free(0, tc.free)
		keys := r.d.plan(r.now).keys
		offers := 0
		for _, o := range keys {
			offers += len(o.loans)
		}
		if offers != tc.free {
			t.Errorf("%+v: %d offers", tc, offers)
		}
		if n := r.d.Counts()[Examined] - began; n > tc.most {
			t.Errorf("%+v: %d demands were decided about", tc, n)
		}
	}
}

// All demands of one host are served in a number of decisions that grows with their number, and not with its square.
func TestManyWaitersOfOneHostAreServedInProportion(t *testing.T) {
	examined := func(n int) (all int) {
		r := newRig(t)
		waiters(r, 100, n, 1)
		r.demand("other", 0, ask(0, "db=200")) // it is never served
		for served := 0; served < n/wire.MaxDemands*wire.MaxDemands; {
			keys := r.d.plan(r.now).keys
			if len(keys) == 0 {
				r.free(served%100, served%100+10)
			}
			for _, o := range keys {
				served += len(o.loans)
				for _, l := range o.loans {
					r.d.end(l.demand, ended)
				}
				o.stage = put
				r.d.closed(o, r.now)
			}
		}
		return r.d.Counts()[Examined]
	}
	few, many := examined(1_280), examined(12_800)
	if t.Logf("%d and %d decisions", few, many); many > 11*few {
		t.Errorf("%d decisions for 1,280 demands, %d for 12,800", few, many)
	}
}

// Who puts demands of any number of kinds in one pool can't make plans slow. Those beyond a number are served in their order.
func TestAPlanIsBounded(t *testing.T) {
	r := newRig(t)
	waiters(r, wire.MaxDemands, 0, 1) // with one demand
	rest, hosts, at := 9, 10+maxLanes/wire.MaxDemands, r.d.view.revision
	var put, gone []*mvccpb.Event
	for i := range hosts {
		var list []wire.Demand
		for k := range wire.MaxDemands {
			d := ask(k, "db=1")
			d.Claim, d.Pools = fmt.Sprintf("c-%d-%d", i, k), map[string]int{"db": 1 + k}
			list = append(list, d)
		}
		at++
		kv := &mvccpb.KeyValue{Key: []byte(r.key(fmt.Sprint("host-", i), 0, "db")), Value: wire.EncodeDemands(list)["db"], CreateRevision: at, ModRevision: at}
		put = append(put, &mvccpb.Event{Kv: kv})
		if i < hosts-rest {
			gone = append(gone, &mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: at + maxLanes}})
		}
	}
	r.d.Events(at, put, r.now)
	began := r.d.Counts()[Examined]
	r.d.plan(r.now)
	if n := r.d.Counts()[Examined] - began; n != maxLanes+1 || r.d.Demands() != hosts*wire.MaxDemands+1 {
		t.Errorf("%d of %d demands are decided about", n, r.d.Demands())
	}
	r.d.Events(at+maxLanes, gone, r.now)
	r.free(0, wire.MaxDemands)
	keys := r.d.plan(r.now).keys
	if n := r.d.order.count[r.d.view.pools["db"]]; len(keys) != 2 || len(keys[1].loans) != 8 || n != 0 { // of one instance
		t.Errorf("%d keys, %d lanes", len(keys), n)
	}
}

// Who may write demands of one pool can't have any number of others read.
func TestThePoolsThatDemandsNameAreBounded(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.put(store.Put(r.keys.Pending("db"), nil, 0))
	for i := range 2 * maxNamed {
		d := ask(0, fmt.Sprintf("db=1 none-%d=1", i))
		d.Claim = "c"
		r.put(store.Put(r.key("h", i, "db"), wire.EncodeDemands([]wire.Demand{d})["db"], 0))
	}
	if n := len(r.d.view.pools); n != 1 {
		t.Errorf("%d pools are followed", n)
	}
	r.restart()
	if r.read(); len(r.d.view.pools) != maxNamed+1 {
		t.Errorf("after a restart %d pools are followed", len(r.d.view.pools))
	}
}

// What happens in pools without demands changes nothing, and has nothing planned.
func TestOtherPoolsCostNothing(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	r.spec("other", 9, false)
	r.demand("a", 0, ask(0, "db=2"))
	r.run()
	plans := r.d.Counts()[Examined]
	r.hold("x", "other", numbers(0, 9, 1)...)
	r.put(store.Delete(r.keys.Spec("other")))
	if r.run(); r.d.Counts()[Examined] != plans || len(r.d.view.pools) != 1 {
		t.Errorf("%d decisions, %d pools are followed", r.d.Counts()[Examined]-plans, len(r.d.view.pools))
	}
	r.put(store.Delete(r.key("a", 0, "db")))
	r.run()
	r.now += forgetAfter + time.Second
	r.put(store.Put(r.keys.OffersAll()+"x", nil, 0))
	if r.run(); len(r.d.view.pools)+len(r.d.owners.all)+len(r.d.batches)+len(r.d.order.lanes) > 0 {
		t.Error("something is remembered of what is over")
	}
}

// A pool whose demands come and go is read once.
func TestAPoolIsReadOnce(t *testing.T) {
	r := newRig(t)
	r.spec("db", 1, false)
	for range 5 {
		r.demand("a", 0, ask(0, "db=1"))
		at := r.d.view.pools["db"].at
		r.run()
		r.commit("a")
		r.put(store.Delete(r.key("a", 0, "db")), store.DeleteAll(r.keys.Slots("db")))
		r.now += time.Second
		if r.run(); r.d.view.pools["db"] == nil || r.d.view.pools["db"].at != at {
			t.Fatal("it is read again")
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, tc := range []struct{ waiters, hosts, free int }{{10_000, 100, 0}, {10_000, 100, 1_000}, {10_000, 1, 1_000}, {50_000, 1, 60}} {
		b.Run(fmt.Sprintf("%d waiters of %d hosts, %d of 1000 slots free", tc.waiters, tc.hosts, tc.free), func(b *testing.B) {
			r := newRig(b)
			waiters(r, 1000, tc.waiters, tc.hosts)
			r.free(0, tc.free)
			for b.Loop() {
				for _, o := range r.d.plan(r.now).keys {
					r.d.closed(o, r.now)
				}
			}
		})
	}
}
