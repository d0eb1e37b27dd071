package owner

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// What has become of an offer in memory is reported under the role under which it was made, and it can't be committed
// when this instance no longer has that role.
func TestOffersInMemoryEndWithTheirRole(t *testing.T) {
	r := newRig(t)
	role := func() int64 {
		return r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(r.keys.Role(), nil, 0)}}).Header.Revision
	}
	full := r.ask("full", 4, store.Extra{})
	r.pass(time.Second)
	a, b := r.ask("a", 1, store.Extra{}), r.ask("b", 1, store.Extra{})
	r.pass(time.Second)
	r.h.Release(full)
	r.pass(time.Second)
	spec, _ := r.get(r.keys.Spec("db"))
	offer := func(c *Claim, number int) []wire.Offer {
		h := slots.Held{Numbers: []int{number}, Spec: spec.ModRevision}
		list := []wire.Offer{{Demand: c.demand.ref(), Take: map[string]wire.Take{"db": wire.TakeOf(h)}}}
		seen := r.keys.Offer(wire.OfferKey{Host: r.h.name, Instance: "i", Name: number}) // by the world, which knows no offers in memory
		r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(seen, wire.EncodeOffers(list), 0)}})
		return list
	}
	one := role()
	r.h.Dispatch(func(string) bool { return false }, one)
	r.h.OfferOwn(offer(a, 0), one)
	x := r.h.Commits()
	txn, ok := x.Next(r.now(), time.Unix(1, 0))
	if !ok || a.state != taking {
		t.Fatal("it is not taken")
	}
	r.h.OfferOwn(offer(b, 1), one)
	r.h.Dispatch(nil, 0)
	r.h.Dispatch(func(string) bool { return false }, one+1)
	x.Answer(r.carry(txn))
	r.pass(time.Second)
	if all := r.h.OwnOffers(); len(all) > 0 || a.state != held || b.state != waiting {
		t.Errorf("%+v, %v, %v", all, a.state, b.state)
	}
	two := role()
	r.h.Dispatch(func(string) bool { return false }, two)
	r.h.OfferOwn(offer(b, 1), two)
	r.pass(time.Second)
	if all := r.h.OwnOffers(); len(all) != 1 || all[0].Revision == 0 || b.state != held {
		t.Errorf("%+v, %v", all, b.state)
	}
}

// A second offer to a claim is kept while the first one is tried again that may have been taken back.
func TestAnOfferIsKeptWhileAnotherOneIsTried(t *testing.T) {
	r := newRig(t)
	full := r.ask("full", 4, store.Extra{})
	r.pass(time.Second)
	a := r.ask("a", 1, store.Extra{})
	r.ask("b", 1, store.Extra{})
	r.ask("c", 1, store.Extra{}) // one of three: their key stays
	r.pass(time.Second)
	r.h.Release(full)
	r.pass(time.Second)
	spec, _ := r.get(r.keys.Spec("db"))
	offer := func(name, number int) string {
		key := r.keys.Offer(wire.OfferKey{Host: r.h.name, Instance: "i", Name: name})
		h := slots.Held{Numbers: []int{number}, Spec: spec.ModRevision}
		list := []wire.Offer{{Demand: a.demand.ref(), Take: map[string]wire.Take{"db": wire.TakeOf(h)}}}
		r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, wire.EncodeOffers(list), 0)}})
		kv, _ := r.get(key)
		r.h.Offered(&mvccpb.Event{Type: mvccpb.PUT, Kv: kv})
		return key
	}
	first := offer(0, 0)
	x := r.h.Commits()
	txn, ok := x.Next(r.now(), time.Unix(1, 0))
	if !ok || a.state != taking {
		t.Fatal("it is not taken")
	}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(first)}})
	r.h.Offered(&mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(first)}})
	second := offer(1, 1)
	x.Answer(r.carry(txn))
	if got := r.pass(time.Second)["a"]; got.Outcome != Granted || a.main.Number != 1 || r.has(second) {
		t.Errorf("%+v of %v", got, a.main)
	}
}

// An advance offer may be the first thing that is seen after a restore.
func TestAnAdvanceOfferAfterARestore(t *testing.T) {
	r := newRig(t)
	r.h.Restored()
	key := r.keys.Offer(wire.OfferKey{Host: r.h.name, Instance: "i", Name: -1, Advance: "db"})
	r.h.Offered(&mvccpb.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), Value: wire.EncodeEmpty(), CreateRevision: 9}})
	if r.h.offers.advance["db"] == nil {
		t.Error("it is not known")
	}
}
