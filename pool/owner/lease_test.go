package owner

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// endLease ends the validity of the lease of claims, which stays in etcd.
func (r *rig) endLease() store.LeaseID { return r.endLeaseOf(false) }

// endLeaseOf ends the validity of the lease of claims, or of demands.
func (r *rig) endLeaseOf(demands bool) (id store.LeaseID) {
	id = r.h.leases[demands]
	delete(r.h.leases, demands)
	r.h.LeaseLost(id, nil)
	return id
}

// putsOn reports whether a transaction puts a key on a lease.
func putsOn(t *pb.TxnRequest, id store.LeaseID) bool {
	for _, op := range t.Success {
		if p := op.GetRequestPut(); p != nil && store.LeaseID(p.Lease) == id {
			return true
		}
		if child := op.GetRequestTxn(); child != nil && putsOn(child, id) {
			return true
		}
	}
	return false
}

// Whether a lease is valid counts when a transaction is made: a claim that was to be taken on it, or waits with keys that are
// reserved there, gets another one.
func TestAClaimIsTakenOnAValidLease(t *testing.T) {
	r := newRig(t)
	full := r.ask("full", 4, store.Extra{})
	r.pass(time.Second)
	waits := r.ask("waits", 4, store.Extra{})
	r.pass(time.Second)
	if waits.state != waiting || waits.lease != full.lease {
		t.Fatalf("%v on lease %d", waits.state, waits.lease)
	}
	lost := r.endLease()
	r.pass(time.Second)
	if waits.lease == lost || waits.state != waiting {
		t.Errorf("it waits with keys on lease %d", waits.lease)
	}
	if full.state != held {
		t.Errorf("a claim whose keys are in etcd is %v", full.state)
	}
	r.h.Release(full)
	if got := r.pass(time.Second)["full"]; got.Outcome != Released || got.Err != nil {
		t.Errorf("%+v", got)
	}
}

// How long the lease of a claim is follows from its pool for as long as it waits.
func TestALeaseIsAsLongAsThePoolSays(t *testing.T) {
	r := newRig(t)
	s := pool.DefaultSpec()
	s.Limit, s.LeaseDuration = 1, 10*time.Second
	r.putSpec("db", s)
	held, _ := r.keys.Numbers("db", slots.Run{From: 0, To: 1}) // by another instance
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(held, nil, 0)}})
	waits := r.ask("waits", 1, store.Extra{})
	r.pass(time.Second)
	for range 3 {
		r.clock += unusedFor
		r.h.Age(r.now())
	}
	r.poll(r.h)
	if d := r.h.memory.leaseDuration(waits); d != s.LeaseDuration {
		t.Errorf("%v", d)
	}
}

// A transaction that failed is not sent again on a lease that has ended meanwhile.
func TestATransactionThatFailedIsNotRepeatedOnALostLease(t *testing.T) {
	r := newRig(t)
	r.ask("warm", 1, store.Extra{})
	r.pass(time.Second)
	a := r.ask("a", 1, store.Extra{})
	x := r.h.Commits()
	txn, ok := x.Next(r.now(), time.Unix(1, 0))
	if !ok || !putsOn(txn, a.lease) {
		t.Fatal("it is not taken")
	}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(r.keys.Pending("db"), nil, 0)}})
	x.Answer(r.carry(txn))
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(r.keys.Pending("db"))}})
	lost := r.endLease()
	was := r.refuse
	r.refuse = func(t *pb.TxnRequest) error {
		if putsOn(t, lost) {
			r.t.Error("a key is put on the lease that was lost")
		}
		return was(t)
	}
	if got := r.pass(time.Second)["a"]; got.Outcome != Granted || a.lease == lost {
		t.Errorf("%+v on lease %d", got, a.lease)
	}
}

// After etcd did not answer for some time, an instance may believe that the lease of its demands has ended, and etcd has kept it.
// The demands stay where they are, and take what they are offered there.
func TestADemandKeepsItsOfferWhenItsLeaseIsBelievedToHaveEnded(t *testing.T) {
	r := newRig(t)
	full := r.ask("full", 4, store.Extra{})
	r.pass(time.Second)
	waits := r.ask("waits", 1, store.Extra{})
	r.ask("other", 1, store.Extra{}) // in the same key, which is put again without the first one
	r.pass(time.Second)
	r.h.Release(full)
	r.pass(time.Second)
	spec, _ := r.get(r.keys.Spec("db"))
	where := waits.demand.ref()
	lost := r.endLeaseOf(true)
	key := r.keys.Offer(wire.OfferKey{Host: r.h.name, Instance: "i"})
	take := wire.TakeOf(slots.Held{Numbers: []int{0}, Spec: spec.ModRevision})
	list := []wire.Offer{{Demand: where, Take: map[string]wire.Take{"db": take}}}
	r.must(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, wire.EncodeOffers(list), 0)}})
	kv, _ := r.get(key)
	r.h.Offered(&mvccpb.Event{Type: mvccpb.PUT, Kv: kv})
	if got := r.pass(time.Second)["waits"]; got.Outcome != Granted {
		t.Errorf("%+v", got)
	}

	again := r.ask("again", 4, store.Extra{})
	r.pass(time.Second)
	where = again.demand.ref()
	if id := r.endLeaseOf(true); id == lost {
		t.Fatal("it has no other lease")
	}
	r.pass(time.Second)
	if now := again.demand.ref(); now != where || again.demand.key.lease == 0 {
		t.Errorf("it has moved from %+v to %+v, on lease %d", where, now, again.demand.key.lease)
	}
}
