package pool

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Two hosts that claim one id at the same moment see it when the watch of the later
// one is ahead of its answer.
func TestTheSecondGrantOfAnIDIsRefusedIfTheFirstIsSeenBeforeTheAnswer(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 10)
	one, two := r.hosts[0], r.hosts[1]
	two.wedged = true
	second := two.ask("a", 1)
	call := two.next(r.now)
	first := one.ask("a", 1).got()
	resp, err := r.etcd.Txn(call.txn)
	if err != nil || !resp.Succeeded {
		t.Fatal("the hosts take slots of one group:", resp, err)
	}
	two.listen()
	two.answer(call, resp, err, r.now)
	two.wedged = false
	second.refused(problem.IDInUse)
	r.resolve()
	r.wantUsed(1)
	if first.Context().Err() != nil {
		t.Errorf("the first claim has ended: %v", first.Err())
	}
	one.giveBack("a")
	r.clean()
}

// orphan puts what a restore brings back: a slot of a claim that its host released after
// the snapshot, on a lease that the host renews for another, and a waiter.
func (r *rig) orphan(h *rigHost, lease store.LeaseID) {
	r.t.Helper()
	holder := Holder{Host: h.name, Instance: h.instance}
	rec := record{Pools: map[string]int{"db": 1}, Holder: holder, Since: r.now}
	value := store.Encode(slotValue{V: store.Now, N: 1, Claim: "old", Record: store.Encode(&rec)})
	for g := 0; ; g++ {
		if _, held := h.view.slot(slotRef{"db", g, 0}); !held {
			r.txn(store.Put(r.keys.Slot("db", g, 0), value, lease))
			break
		}
	}
	order := Order{Since: 1, Claim: "gone"}
	waits := store.Encode(waiterValue{V: store.Now, Pools: map[string]int{"db": 9}, Holder: holder, Queued: r.now})
	r.txn(store.Put(r.keys.Waiter("db", order.String()), waits, h.waiterLeaseID))
}

func TestSlotsThatARestoreBringsBackAreFreed(t *testing.T) {
	for name, wake := range map[string]func(*rig, *rigHost){
		"when everything was read again": func(r *rig, h *rigHost) { h.resync(); r.resolve() },
		"after a while":                  func(r *rig, _ *rigHost) { r.pass(2 * reconcileEvery) },
		"when it is revoked": func(r *rig, h *rigHost) {
			h.listen()
			fence := store.FenceAt(h.view.claims["old"].rev)
			h.revoke("old", revocationValue{Fence: fence}, 0, r.now)
			h.tick(r.now)
			r.resolve()
			if want := []string{r.keys.Revocation("one", "old")}; len(h.calls) == 0 || h.wanted["old"].fence != fence {
				r.t.Errorf("the revocation %v is forgotten before it is done", want)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one", "two")
			r.pool("db", 10)
			one := r.hosts[0]
			kept := one.ask("kept", 1).got()
			waiter := one.ask("waits", 10)
			r.orphan(one, kept.Lease)
			r.resolve()
			r.wantUsed(2)
			wake(r, one)
			r.wantUsed(1)
			if name != "when it is revoked" {
				r.wantWaiters("waits")
			}
			if kept.Context().Err() != nil {
				t.Errorf("the claim that is held has ended: %v", kept.Err())
			}
			waiter.cancel()
			one.giveBack("kept")
			r.pass(2 * reconcileEvery)
			r.clean()
		})
	}
}

// A restore may bring back slots of a claim that were gone when the release of the others began: they
// are found again, and freed together.
func TestTheReleaseOfOrphanedSlotsIsGivenUpWithARestore(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 10)
	one := r.hosts[0]
	kept := one.ask("kept", 1).got()
	one.wedged = true
	r.orphan(one, kept.Lease)
	one.listen()
	one.freeOrphans(r.now)
	call := one.next(r.now)
	if call == nil || len(call.batch.releases) != 1 {
		t.Fatalf("it calls %+v", call)
	}
	one.mayBeRestored()
	one.answer(call, nil, store.ErrUnavailable, r.now)
	if n := len(one.unresolved.releases); n > 0 {
		t.Errorf("%d releases are repeated", n)
	}
	one.wedged = false
	r.pass(2 * reconcileEvery)
	r.wantUsed(1)
}

// What hangs on a lease that is not this instance's to renew ends with that lease: an
// earlier life's holders may run still.
func TestSlotsOnALeaseThatNobodyRenewsAreLeftToIt(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 10)
	other, _, err := r.etcd.Grant(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r.orphan(r.hosts[0], other)
	r.hosts[0].resync()
	r.pass(2 * reconcileEvery)
	r.wantUsed(1)
}

// A waiter that a restore has deleted from the wait queue is put there again.
func TestAWaiterThatARestoreHasForgottenIsWrittenAgain(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 1)
	one := r.hosts[0]
	one.ask("held", 1).got()
	one.ask("waits", 1).waits()
	var key string
	for kv := range r.etcd.All(r.keys.Waiters("db")) {
		key = string(kv.Key)
	}
	r.txn(store.Delete(key))
	one.resync()
	r.resolve()
	r.wantWaiters("waits")
}

// A claim of an earlier life has its holder, who was answered then: it is not given back
// because a repeated request is canceled.
func TestAClaimThatWasTakenOverIsHeldThoughWhoAsksForItAgainHangsUp(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 2)
	one := r.hosts[0]
	cl := one.ask("a", 1).got()
	one.wedged = true
	next := r.host("one", cl.Lease)
	r.resolve()
	again := asked{next, "a", make(chan outcome, 1)}
	req := &Request{ID: "a", Slots: map[string]int{"db": 1}, Wait: time.Hour}
	next.request(newEntry(req, "one", "i"), again.reply, r.now)
	again.cancel()
	if len(next.adopted) != 1 || next.adopted[0].Context().Err() != nil {
		t.Error("the claim was released while its holder has it")
	}
	r.wantUsed(1)
}

// A claim that waits in a pool that its instance does not watch is not granted while an earlier life
// of the instance holds slots under its id: the dispatcher sees that.
func TestAnIDThatIsHeldIsNotGrantedAgain(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two", "three")
	one, two, three := hosts[0], hosts[1], hosts[2]
	r.pool("db", 3)
	same := three.ask("same", 1).got()
	one.ask("a", 2).got()
	three.wedged = true
	three = r.host("three")
	second, third := two.ask("b", 3), three.ask("c", 3)
	r.pass(waitedFor)
	again := three.ask("same", 2)
	r.pass(tickEvery)
	three.wantScope("db", notices)
	one.giveBack("a")
	r.pass(tickEvery)
	r.wantUsed(1)
	waiting := newReader(r.snapshot(), r.keys).view.waitersOf(nil, two.own())
	if len(waiting) != 3 || waiting[2].Reason != `claim id "same" is held already by three/i` {
		t.Errorf("the waiters are %+v", waiting)
	}
	if err := r.etcd.Revoke(same.Lease); err != nil {
		t.Fatal(err)
	}
	r.resolve()
	second.got()
	two.giveBack("b")
	third.got()
	three.giveBack("c")
	if got := again.got(); got.Fence <= same.Fence {
		t.Errorf("granted are %d, then %d", same.Fence, got.Fence)
	}
	three.giveBack("same")
	r.pass(waitedFor + openFor)
	r.clean()
}

// What was known of a pool before a restore refuses no id.
func TestAnIDIsNotRefusedForSlotsOfBeforeARestore(t *testing.T) {
	r, hosts := narrowRig(t, "one", "two")
	one, two := hosts[0], hosts[1]
	r.pool("db", 1)
	old := one.ask("same", 1).got()
	two.ask("b", 1)
	one.wedged = true
	one = r.host("one")
	p := one.view.pool("db")
	one.following(p)
	one.wasRead("db", *one.feeds.read(r.keys.Pool("db")), nil, r.now)
	if err := r.etcd.Revoke(old.Lease); err != nil {
		t.Fatal(err)
	}
	one.wedged = true
	again := one.ask("same", 1)
	one.mayBeRestored()
	marks, err := r.etcd.Txn(&pb.TxnRequest{Success: one.markGets(p)})
	if err != nil {
		t.Fatal(err)
	}
	one.polled([]*poolView{p}, marks, r.now, r.now)
	for one.act() {
	}
	if !p.whole || !p.stale || p.unseen {
		t.Error("more is known of the pool than its marks")
	}
	again.waits()
}

// Two instances that wait with one id, since one revision, are two waiters: the key of one
// does not overwrite that of the other.
func TestClaimsOfOneIDThatWaitOnTwoInstancesAreTwoWaiters(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 1)
	one, two := r.hosts[0], r.hosts[1]
	one.ask("held", 1).got()
	since := func(r *Request) { r.Since = 1 }
	one.ask("same", 1, since).waits()
	two.ask("same", 1, since).waits()
	if n := one.view.pool("db").waiting; n != 2 {
		t.Errorf("%d wait, want 2", n)
	}
	r.sound()
}

// restore has etcd go back to an earlier revision, as a restore without --bump-revision
// does. There is a pool, and its slot is held by another host if it is taken.
func (r *rig) restore(taken bool) {
	r.t.Helper()
	r.etcd = storetest.New(storetest.Options{})
	grant := func() store.LeaseID {
		id, _, err := r.etcd.Grant(time.Hour)
		if err != nil {
			r.t.Fatal(err)
		}
		return id
	}
	spec := DefaultSpec()
	spec.Limit, spec.ReserveAfter = 1, NeverReserve
	r.txn(store.Put(r.keys.Spec("db"), encodeSpec(spec, layoutOf(1), 0), 0))
	if taken {
		rec := record{Pools: map[string]int{"db": 1}, Holder: Holder{Host: "other", Instance: "i"}, Since: r.now}
		r.txn(store.Put(r.keys.Slot("db", 0, 0), store.Encode(slotValue{V: store.Now, N: 1, Claim: "theirs", Record: store.Encode(&rec)}), grant()))
	}
	for _, h := range r.hosts {
		clear(h.leases)
		h.waiterLeaseID = grant()
		h.resync(store.ErrRestored)
	}
}

// An instance goes on after a restore that has taken revisions back: whatever waits for one
// of before would wait until etcd has come to it again.
func TestAnInstanceGoesOnAfterRevisionsWentBack(t *testing.T) {
	// answered has etcd answer the next call. The instance gets the answer later.
	answered := func(r *rig, h *rigHost) (late func()) {
		call := h.next(r.now)
		if call == nil {
			r.t.Fatal("there is no call")
		}
		resp, err := r.etcd.Txn(call.txn)
		if err != nil || !resp.Succeeded {
			r.t.Fatal(resp, err)
		}
		return func() { h.answer(call, resp, err, r.now) }
	}
	for name, before := range map[string]func(r *rig, h *rigHost) (late func()){
		"its guard is put, and its view behind": func(r *rig, h *rigHost) func() {
			h.phase = fencing
			answered(r, h)()
			return nil
		},
		"its guard is put, and the answer late": func(r *rig, h *rigHost) func() {
			h.phase = fencing
			return answered(r, h)
		},
		"its claim is granted, and the answer late": func(r *rig, h *rigHost) func() {
			h.wedged = true
			h.ask("a", 1)
			h.wedged = false
			return answered(r, h)
		},
		"its claim is granted, and its view behind": func(r *rig, h *rigHost) func() {
			h.wedged = true
			h.ask("a", 1)
			h.wedged = false
			answered(r, h)()
			for _, p := range h.view.order {
				p.rev = 1
			}
			return nil
		},
		"it waits to try again": func(r *rig, h *rigHost) func() {
			h.ask("held", 1).got()
			h.ask("a", 1).waits()
			h.entries["a"].retryAt = r.etcd.Revision()
			return nil
		},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, taken %t", name, taken), func(t *testing.T) {
				r := newRig(t, "one")
				h := r.hosts[0]
				r.pool("db", 1)
				for range 100 {
					r.txn(store.Put("/b/else", nil, 0))
				}
				r.resolve()
				late := before(r, h)
				r.restore(taken)
				if late != nil {
					late()
				}
				r.pass(time.Second)
				if h.phase != normal {
					t.Fatalf("it is in phase %d until revision %d, and etcd is at %d", h.phase, h.resolveAt, r.etcd.Revision())
				}
				etcd := newReader(r.snapshot(), r.keys).view
				for id, e := range h.entries {
					if cv := etcd.claims[id]; e.state == held && (cv == nil || cv.rev != e.rev) {
						t.Errorf("%s is held, and etcd does not have it", id)
					}
					if e.state == queued {
						r.wantWaiters(id)
					}
				}
				if e := h.entries["a"]; e != nil && !taken && e.state != held {
					t.Error("a waits, and there is a slot for it")
				}
				r.sound()
			})
		}
	}
}
