package owner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// twoPools has a claim wait for the pools db and gpu, and returns the name and the stamp of its demand.
func twoPools(t *testing.T) (r *rig, ref wire.DemandRef, stamp wire.Stamp) {
	r = newRig(t)
	var waits *Claim
	s := pool.DefaultSpec()
	s.Limit = 1
	r.putSpec("gpu", s)
	for _, id := range []string{"full", "waits"} {
		waits = NewClaim(&pool.Request{ID: id, Slots: map[string]int{"db": 1, "gpu": 1}, Wait: time.Hour, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
		r.h.asked[waits] = true
		r.h.Claim(waits, r.now(), time.Unix(1, 0))
		r.pass(time.Second)
	}
	stamp, ok := waits.demand.stamped()
	if !ok || len(r.waiters()) != 1 {
		t.Fatalf("%+v", r.waiters())
	}
	return r, waits.demand.ref(), stamp
}

// A claim that waits for two pools waits on if one of them is deleted with its demands, and nothing is left of the key that it
// had in the other one.
func TestADemandOfADeletedPoolIsWhole(t *testing.T) {
	r, was, stamp := twoPools(t)
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

// What is left of such a key is deleted only if it is the one that was put: a restore may have brought back another one of that name.
func TestADemandKeyOfThatNameIsLeftAlone(t *testing.T) {
	r, was, _ := twoPools(t)
	at := func(name string) string {
		return r.keys.Demand(wire.DemandKey{Pool: name, Host: r.h.name, Instance: "i", Name: was.Name})
	}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(at("db")), store.Delete(at("gpu"))}})
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(at("gpu"), wire.EncodeDemands([]wire.Demand{{Claim: "other", Pools: map[string]int{"gpu": 1}}})["gpu"], 0)}})
	r.poll(r.h)
	r.pass(time.Second)
	if !r.has(at("gpu")) {
		t.Error("it was deleted")
	}
}

// After a lost answer, a key is the one that was put only if it says the same: a restore of etcd may have brought back another one
// of that name.
func TestAKeyWhoseAnswerIsLostIsKnownByItsValue(t *testing.T) {
	for what, c := range map[string]struct {
		known   int64
		value   string
		renamed bool
		created int64
	}{
		"the one that was put":        {0, "mine", false, 7},
		"one that was there before":   {0, "other", true, 0},
		"the one that was known":      {7, "other", false, 7},
		"not the one that was known":  {5, "other", false, 0},
		"nor if it says what was put": {5, "mine", false, 0},
	} {
		q := newQueue(Config{Keys: store.NewKeys("/b/"), Host: "h", Instance: "i"}, &Space{}, nil)
		k := &demandKey{pools: []string{"db"}, created: c.known}
		q.byName[0] = k
		it := &item{kind: moves, key: k}
		key := q.keyOf(k, "db")
		it.move(key, c.known, []byte("mine"), 3)
		k.state = moving
		is := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(c.value), CreateRevision: 7, ModRevision: 9, Lease: 3}
		q.resolve(it, []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{is}}}}})
		if (k.name != 0) != c.renamed || k.created != c.created || q.byName[k.name] != k {
			t.Errorf("%s: it has name %d and was created in revision %d", what, k.name, k.created)
		}
	}
}

// Who may write the demands keys of an instance in one pool can't keep it busy with names that are in use.
func TestNamesThatOthersHaveTakenCostLittle(t *testing.T) {
	r := newRig(t)
	r.limit(1, false)
	r.ask("held", 1, store.Extra{})
	r.pass(time.Second)
	for n := range 300 {
		value := wire.EncodeDemands([]wire.Demand{{Claim: fmt.Sprint("other-", n), Pools: map[string]int{"db": 1}}})["db"]
		key := r.keys.Demand(wire.DemandKey{Pool: "db", Host: r.h.name, Instance: "i", Name: n})
		r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, value, 0)}})
	}
	before := r.sent
	c := r.ask("waits", 1, store.Extra{})
	r.pass(time.Second)
	if sent := r.sent - before; sent > 3 || c.demand.ref() == (wire.DemandRef{}) {
		t.Errorf("%d transactions, it waits as %+v", sent, c.demand.ref())
	}
}

// While an instance hands its slots on to its own claims that wait, one that comes waits behind them for a moment. It is put into
// the queue after that, or immediately if it ranks before them or no slots are handed on.
func TestAClaimWaitsAMomentBehindItsInstance(t *testing.T) {
	for name, tc := range map[string]struct {
		handsOn  bool
		priority int
		queued   bool
	}{
		"it waits":         {handsOn: true},
		"it ranks before":  {handsOn: true, priority: 1, queued: true},
		"nothing is given": {queued: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.ask("full", 4, store.Extra{})
			r.pass(0)
			r.ask("first", 4, store.Extra{})
			r.pass(2 * localWait) // it waits in etcd
			r.h.memory.want(r.h.memory.of("db", r.now()))
			r.pass(0) // the instance knows that the pool is pending
			r.h.Dispatch(func(string) bool { return tc.handsOn }, 1)
			c := NewClaim(&pool.Request{ID: "next", Slots: map[string]int{"db": 4}, Wait: time.Hour, Priority: tc.priority, Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
			r.h.asked[c] = true
			r.h.Claim(c, r.now(), time.Unix(1, 0))
			r.pass(0)
			if queued := c.state == waiting; queued != tc.queued {
				t.Errorf("queued: %t", queued)
			}
			r.pass(2 * localWait)
			if c.state != waiting || c.listed() == nil {
				t.Error("it is not in the queue after a moment")
			}
		})
	}
}

// While slots of its instance come to those before it, a claim waits for longer than otherwise before it is put into the queue: but
// not without end, not if it is not to wait, and not if another instance dispatches for those that wait.
func TestAClaimWaitsLongerWhileItsInstanceIsServed(t *testing.T) {
	for name, tc := range map[string]struct {
		served  time.Duration // for so long slots come
		wait    time.Duration // of the claim
		pending bool          // claims of the instance are in the queue, and another instance dispatches
		many    bool          // there are too many of them
		after   time.Duration // it is put into the queue, or refused
	}{
		"slots come":                  {served: time.Hour, wait: time.Hour, after: servedWait},
		"no slots come":               {wait: time.Hour, after: localWait},
		"slots come no longer":        {served: 3 * localWait, wait: time.Hour, after: 4 * localWait},
		"it does not wait":            {served: time.Hour, after: localWait},
		"it waits for a moment":       {served: time.Hour, wait: 2 * localWait, after: localWait},
		"another instance dispatches": {served: time.Hour, wait: time.Hour, pending: true, after: localWait},
		"many wait":                   {served: time.Hour, wait: time.Hour, many: true, after: localWait},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var all []*Claim
			ask := func(n int) {
				for range n {
					all = append(all, r.ask(fmt.Sprintf("c%d", len(all)), 1, store.Extra{}))
				}
			}
			ask(4) // they get the slots
			r.pass(time.Second)
			if tc.pending {
				ask(8)
				r.pass(2 * localWait)
				r.h.memory.want(r.h.memory.of("db", r.now()))
				r.pass(0)
				key := r.keys.Offer(wire.OfferKey{Host: r.h.name, Instance: "i", Name: -1, Advance: "db"})
				r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, wire.EncodeEmpty(), 0)}})
				kv, _ := r.get(key)
				r.h.Offered(&mvccpb.Event{Type: mvccpb.PUT, Kv: kv})
			}
			if ask(20); tc.many {
				ask(maxServed)
			}
			request := &pool.Request{ID: "last", Slots: map[string]int{"db": 1}, Wait: tc.wait, Holder: pool.Holder{Host: r.h.name, Instance: "i"}}
			last, begun := NewClaim(request), r.now()
			r.h.asked[last] = true
			r.h.Claim(last, begun, time.Unix(1, 0))
			refused := false
			for last.state == wanted && !refused && r.now() <= begun+2*servedWait {
				i := slices.IndexFunc(all, func(c *Claim) bool { return c.state == held })
				if i < 0 {
					t.Fatal("no claim has slots")
				}
				if r.now() < begun+tc.served {
					r.h.Release(all[i])
				}
				_, refused = r.pass(0)["last"]
				if at := r.h.commits.wakes; at > r.now()+localWait {
					t.Fatalf("at %v it is tried again at %v", r.now()-begun, at-begun)
				}
			}
			if took := r.now() - begun; took < tc.after || took > tc.after+2*localWait {
				t.Errorf("it is %v after %v", last.state, took)
			}
		})
	}
}
