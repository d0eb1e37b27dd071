package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// urgently has a request go before others.
func urgently(r *Request) { r.Priority = 1 }

// dispatching is a rig of two hosts and pool "db" of one slot, which "holder" of the first
// has. The first is the dispatcher, and "b" of the second waits first. The second is driven
// by hand.
func dispatching(t *testing.T, change ...func(*Request)) (r *rig, one, two *rigHost, b asked) {
	r = newRig(t, "one", "two")
	r.pool("db", 1)
	one, two = r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	one.ask("a", 1)
	b = two.ask("b", 1, append(change, urgently)...)
	r.wantWaiters("b", "a")
	if !one.dispatches(one.view.pool("db")) {
		t.Fatal("the first that waits is not the dispatcher")
	}
	return r, one, two, b
}

// grantsUnder has the first host grant "b" under the condition that the second confirms it,
// and returns the key of the notice.
func (r *rig) grantsUnder(one, two *rigHost) (notice string) {
	r.t.Helper()
	r.pass(2 * aliveWithin)
	two.wedged = true
	one.giveBack("holder")
	notice = r.keys.Notice("db", "two", "i", "b")
	if !r.has(notice) {
		r.t.Fatal("there is no notice of the grant")
	}
	return notice
}

// notifies reports whether a transaction grants something to another instance.
func notifies(txn *pb.TxnRequest) bool {
	for _, op := range txn.Success {
		if p := op.GetRequestPut(); p != nil && strings.Contains(string(p.Key), "/grants/") || op.GetRequestTxn() != nil && notifies(op.GetRequestTxn()) {
			return true
		}
	}
	return false
}

// What a dispatcher could not grant for a reason that has nothing to do with the waiter is
// granted when the reason is gone.
func TestAWaiterIsTriedAgainAfterEtcdHasRefusedItsGrant(t *testing.T) {
	for _, err := range []error{store.ErrNoSpace, store.ErrDenied} {
		t.Run(err.Error(), func(t *testing.T) {
			r, one, _, b := dispatching(t)
			refuses := true
			one.refuse = func(txn *pb.TxnRequest) error {
				if refuses && notifies(txn) {
					return err
				}
				return nil
			}
			one.giveBack("holder")
			r.pass(fullPause + shelfTime)
			refuses = false
			if one.entries["a"].state == held {
				one.giveBack("a")
			}
			r.pass(2 * shelfTime)
			b.got()
		})
	}
}

// All waiters that name a lease which is gone are passed once one of them was found out.
func TestALeaseThatIsGoneIsFoundOutOnce(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	one.ask("a", 1)
	var first asked
	for i := range 20 {
		if a := two.ask(fmt.Sprintf("b%d", i), 1, urgently); i == 0 {
			first = a
		}
	}
	lease := two.entries["b0"].lease
	two.wedged = true
	if err := r.etcd.Revoke(lease); err != nil {
		t.Fatal(err)
	}
	delete(two.leases, two.leaseDuration(two.entries["b0"]))
	one.calls = nil
	one.giveBack("holder")
	tries := 0
	for _, call := range one.calls {
		if notifies(call.txn) {
			tries++
		}
	}
	if tries > 3 {
		t.Errorf("%d tries to grant on a lease that is gone", tries)
	}
	two.wedged = false
	two.leaseLost(lease, store.ErrLeaseNotFound, r.now)
	r.resolve()
	if one.entries["a"].state == held {
		one.giveBack("a")
	}
	first.got()
}

// A grant that is still to be confirmed is not held before that has happened, though
// everything is read again while the outcome of its confirmation is unknown.
func TestAConfirmationIsResolvedAfterEverythingWasReadAgain(t *testing.T) {
	r, one, two, b := dispatching(t)
	notice := r.grantsUnder(one, two)
	two.listen()
	call := two.next(r.now)
	if call == nil || call.batch == nil || len(call.batch.grants) != 1 {
		t.Fatalf("the next call is no confirmation: %+v", call)
	}
	two.answer(call, nil, store.ErrUnavailable, r.now) // and it never arrives
	two.resync()
	two.act()
	two.listen()
	if r.has(notice) {
		b.waits()
	}
	two.wedged = false
	r.resolve()
	b.got()
	two.giveBack("b")
	one.giveBack("a")
	r.clean()
}

// A grant of its own whose outcome is unknown is no excuse for an instance to hold without
// confirmation what another dispatcher has granted meanwhile.
func TestAnUnknownGrantIsNotTheGrantOfTheNextDispatcher(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("holder", 1).got()
	b := two.ask("b", 1, urgently)
	one.ask("a", 1)
	if !two.dispatches(two.view.pool("db")) {
		t.Fatal("the first that waits is not the dispatcher")
	}
	two.wedged = true
	one.giveBack("holder")
	two.listen()
	call := two.next(r.now)
	if call == nil || call.batch == nil || len(call.batch.grants) != 1 {
		t.Fatalf("the next call is no grant: %+v", call)
	}
	notice := r.keys.Notice("db", "two", "i", "b")
	for range 40 {
		if r.pass(tickEvery / 4); r.has(notice) {
			break
		}
	}
	two.answer(call, nil, store.ErrUnavailable, r.now) // and it never arrives
	two.act()
	two.listen()
	if !r.has(notice) {
		t.Fatal("the grant was taken back already")
	}
	b.waits()
	two.wedged = false
	r.resolve()
	b.got()
	two.giveBack("b")
	one.giveBack("a")
	r.clean()
}

// A refusal for a lease that has nothing to do with a grant leaves the lease of the grant.
func TestAClaimThatConfirmsKeepsItsLease(t *testing.T) {
	r, one, two, b := dispatching(t)
	r.pool("other", 5)
	r.grantsUnder(one, two)
	two.listen()
	two.ask("c", 1, func(req *Request) {
		req.Slots = map[string]int{"other": 1}
		req.Extra.Then = []*pb.RequestOp{store.Put("/b/x", nil, goneLease)}
	})
	two.ask("d", 1, func(req *Request) { req.Slots = map[string]int{"other": 1} })
	two.wedged = false
	r.resolve()
	if cl := b.got(); cl.Lease == 0 || two.entries["b"].reserved == 0 {
		t.Errorf("the claim is on lease %d, with %d keys reserved", cl.Lease, two.entries["b"].reserved)
	}
}

// A claim whose lease is lost before it has confirmed a grant does so on another lease.
func TestAClaimWhoseLeaseIsLostConfirmsItsGrantOnAnother(t *testing.T) {
	for name, conditional := range map[string]bool{"": false, "under conditions": true} {
		t.Run(name, func(t *testing.T) {
			r, one, two, b := dispatching(t, func(req *Request) {
				if conditional {
					req.Extra.Then = []*pb.RequestOp{store.Put("/b/x", nil, 0)}
				}
			})
			r.grantsUnder(one, two)
			two.listen()
			lease := two.entries["b"].lease
			if err := r.etcd.Revoke(lease); err != nil {
				t.Fatal(err)
			}
			delete(two.leases, two.leaseDuration(two.entries["b"]))
			two.leaseLost(lease, store.ErrLeaseNotFound, r.now)
			two.wedged = false
			r.resolve()
			if cl := b.got(); cl.Lease == lease || cl.Err() != nil {
				t.Errorf("the claim is on lease %d, which is lost: %v", cl.Lease, cl.Err())
			}
			two.giveBack("b")
			one.giveBack("a")
			r.clean()
		})
	}
}

// What waits for the view to come up to a revision does so no longer than the revisions
// go on.
func TestAnIDIsFreeAfterRevisionsHaveGoneBack(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 2)
	one := r.hosts[0]
	one.ask("holder", 1).got()
	saved := r.etcd.Save()
	for range 1000 {
		r.txn(store.Put("/b/x", nil, 0))
	}
	x := one.ask("x", 2)
	one.wedged = true
	one.core.cancel(x.id, x.reply, errStopped, r.now)
	if !one.act() {
		t.Fatal("the waiter is not deleted")
	}
	r.etcd.Restore(saved, saved.Revision()-r.etcd.Revision())
	one.resync(store.ErrRestored)
	one.wedged = false
	one.ask("x", 1).got()
}

// A claim that is asked for again is not in the way of itself.
func TestAClaimThatIsAskedForAgainAfterItsGrantIsNotInUse(t *testing.T) {
	for name, sees := range map[string]bool{"before the grant is seen": false, "after the grant is seen": true} {
		for again, change := range map[string]func(*Request){
			"": func(*Request) {}, ", for something else": func(req *Request) { req.Holder.Labels = map[string]string{"try": "2"} },
		} {
			t.Run(name+again, func(t *testing.T) {
				r, one, two, b := dispatching(t)
				one.core.withdraw("a", r.now)
				r.resolve()
				two.wedged = true
				two.core.cancel(b.id, b.reply, errStopped, r.now)
				one.giveBack("holder")
				r.wantUsed(1)
				if sees {
					two.listen()
				}
				b = two.ask("b", 1, urgently, change)
				two.wedged = false
				r.resolve()
				r.pass(time.Second)
				b.got()
				two.giveBack("b")
				r.pass(5 * time.Second)
				r.clean()
			})
		}
	}
}

// A dispatcher that has as much to do as its transactions take is not silent.
func TestABusyDispatcherIsNotSilent(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", Closed)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("first", 1)
	two.ask("b", 1)
	one.wedged = true
	for i := range 3000 {
		one.ask(fmt.Sprint("a", i), 1)
	}
	one.wedged = false
	r.resolve()
	r.pool("db", Closed, func(s *Spec) { s.LeaseDuration = time.Minute })
	two.wedged, one.wedged = true, true
	spec := DefaultSpec()
	spec.Limit, spec.ReserveAfter = Unlimited, NeverReserve
	r.txn(store.Put(r.keys.Spec("db"), encodeSpec(spec, layoutOf(spec.Limit), 0), 0))
	since, rev := r.now, int64(0)
	for one.listen(); ; one.listen() {
		one.core.tick(r.now)
		if !one.act() {
			break
		}
		for kv := range r.etcd.All(r.keys.Dispatcher("db")) {
			if kv.ModRevision != rev {
				since, rev = r.now, kv.ModRevision
			}
		}
		if silent := r.now.Sub(since); silent > silentAfter {
			t.Fatalf("the dispatcher is silent for %s", silent)
		}
		r.now = r.now.Add(100 * time.Millisecond)
	}
}

// A confirmation that fails says nothing about a later notice.
func TestALaterNoticeIsSeenAfterAConfirmationHasFailed(t *testing.T) {
	r, one, two, b := dispatching(t)
	one.core.withdraw("a", r.now)
	r.pass(2 * aliveWithin)
	two.wedged = true
	two.listen()
	two.entries["b"].reserve = true
	two.next(r.now)
	call := two.next(two.waitersAt) // writes the waiter again
	if call == nil || call.batch == nil || len(call.batch.puts) != 1 {
		t.Fatalf("the next call writes no waiter: %+v", call)
	}
	one.giveBack("holder")
	resp, err := r.etcd.Txn(call.txn)
	if err != nil {
		t.Fatal(err)
	}
	two.listen()
	two.answer(call, resp, nil, r.now)
	confirm := two.next(r.now)
	if confirm == nil || len(confirm.batch.grants) != 1 {
		t.Fatalf("the next call confirms nothing: %+v", confirm)
	}
	notice := r.keys.Notice("db", "two", "i", "b")
	r.pass(ackWithin + 4*tickEvery) // the dispatcher withdraws it, and grants it again
	if !r.has(notice) {
		t.Fatal("it is not granted again")
	}
	resp, err = r.etcd.Txn(confirm.txn)
	if err != nil {
		t.Fatal(err)
	}
	two.answer(confirm, resp, nil, r.now)
	two.wedged = false
	r.resolve()
	r.pass(ackWithin / 2)
	if r.has(notice) {
		t.Error("a notice is not taken")
	}
	b.got()
}

// A dispatcher stays until a grant is confirmed.
func TestADispatcherTakesBackTheLastGrant(t *testing.T) {
	r, one, two, b := dispatching(t)
	one.core.withdraw("a", r.now)
	r.grantsUnder(one, two)
	r.pass(ackWithin + 2*tickEvery)
	r.wantUsed(0)
	two.wedged = false
	r.resolve()
	r.pass(time.Second)
	b.got()
}

// What a restore brings back is not what a write has done whose outcome is unknown.
func TestAnUnknownGrantIsNotWhatARestoreBringsBack(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 1)
	one := r.hosts[0]
	one.ask("x", 1).got()
	saved := r.etcd.Save()
	one.giveBack("x")
	one.wedged = true
	x := one.ask("x", 1, func(req *Request) { req.Holder.Labels = map[string]string{"try": "2"} })
	call := one.next(r.now)
	if call == nil || call.batch == nil || len(call.batch.grants) != 1 {
		t.Fatalf("the next call is no grant: %+v", call)
	}
	r.etcd.Restore(saved, 1000)
	one.answer(call, nil, store.ErrUnavailable, r.now) // and it never arrives
	one.resync()
	one.wedged = false
	r.resolve()
	if cl := x.got(); cl.Fence.Revision() <= saved.Revision() {
		t.Errorf("the claim has fence %d, which the one before had", cl.Fence)
	}
	one.giveBack("x")
	r.clean()
}

// A claim is granted once, though the outcome of a write is unknown by which it waits again.
func TestAWaiterThatAnUnknownWriteLeavesIsDeleted(t *testing.T) {
	r, one, two, b := dispatching(t)
	r.pass(2 * aliveWithin)
	two.wedged = true
	two.listen()
	two.entries["b"].reserve = true
	two.next(r.now)
	call := two.next(two.waitersAt) // writes the waiter again
	if call == nil || call.batch == nil || len(call.batch.puts) != 1 {
		t.Fatalf("the next call writes no waiter: %+v", call)
	}
	one.giveBack("holder")
	if _, err := r.etcd.Txn(call.txn); err != nil {
		t.Fatal(err)
	}
	two.answer(call, nil, store.ErrUnavailable, r.now)
	two.wedged = false
	r.resolve()
	b.got()
	r.wantWaiters("a")
}
