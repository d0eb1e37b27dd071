package pool

import (
	"errors"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// requestRevocation puts a revocation as an operator does, and has the host hear of it.
func (h *rigHost) requestRevocation(id string, fence store.Fence) {
	h.r.t.Helper()
	h.r.txn(store.Put(h.r.keys.Revocation(h.name, id), store.Encode(revocationValue{V: store.Now, Fence: fence}), 0))
	h.revoke(id, revocationValue{Fence: fence}, h.r.etcd.Revision(), h.r.now)
	h.r.resolve()
}

// revocations is how many are left in etcd.
func (h *rigHost) revocations() (n int) {
	for range h.r.etcd.All(h.r.keys.Revocations(h.name)) {
		n++
	}
	return n
}

func wantRevoked(t *testing.T, c *Claim) {
	t.Helper()
	if c.Context().Err() == nil || problem.CodeOf(c.Err()) != problem.ClaimRevoked {
		t.Errorf("the holder got %v", c.Err())
	}
}

func TestARevokedClaimKeepsItsSlotsUntilItsHolderHasStopped(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	c := h.ask("a", 1).got()
	next := h.ask("b", 1)
	h.requestRevocation("a", c.Fence)
	wantRevoked(t, c)
	r.wantUsed(1)
	r.pass(RevokeGrace - tickEvery)
	next.waits()
	h.giveBack("a") // the holder has stopped
	next.got()
	if h.revocations() != 0 {
		t.Error("the revocation is left")
	}
	wantRevoked(t, c)
	h.giveBack("b")
	r.clean()
}

func TestARevokedClaimIsFreedAfterItsGrace(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	c := h.ask("a", 1).got()
	next := h.ask("b", 1)
	h.requestRevocation("a", c.Fence)
	r.pass(RevokeGrace - tickEvery)
	next.waits()
	r.pass(tickEvery)
	next.got()
	if h.revocations() != 0 {
		t.Error("the revocation is left")
	}
	wantRevoked(t, c)
	reply := make(chan error, 1)
	h.release(c, reply, r.now) // its holder comes late
	if err := <-reply; err != nil {
		t.Errorf("a late release: %v", err)
	}
	r.wantUsed(1)
	h.giveBack("b")
	r.clean()
}

func TestARevokedClaimIsKeptForAsLongAsItsHolderIsSeen(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	c := h.ask("a", 1).got()
	c.Supervise(true)
	next := h.ask("b", 1)
	h.requestRevocation("a", c.Fence)
	wantRevoked(t, c)
	r.pass(10 * RevokeGrace)
	next.waits()
	if c.Freed() {
		t.Error("it counts as freed")
	}
	c.Supervise(false) // its holder is not seen any more
	r.pass(tickEvery)
	next.got()
	if !c.Freed() {
		t.Error("it does not count as freed")
	}
	h.giveBack("b")
	r.clean()
}

func TestARevocationIsAboutOneGrantOnly(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	first := h.ask("a", 1).got()
	h.giveBack("a")
	h.requestRevocation("a", first.Fence) // too late
	again := h.ask("a", 1).got()
	r.resolve()
	if again.Context().Err() != nil {
		t.Errorf("a later claim of the same id got %v", again.Err())
	}
	h.revoke("a", revocationValue{Fence: 0}, 0, r.now) // withdrawn
	h.requestRevocation("a", again.Fence)
	wantRevoked(t, again)
}

func TestARevocationThatComesBeforeTheGrantIsObeyed(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	a := h.ask("a", 1)
	c := a.got()
	lease := h.leases[DefaultLeaseDuration]
	h.wedged = true // it dies, and is revoked meanwhile
	next := r.host("one", lease)
	next.revoke("a", revocationValue{Fence: c.Fence}, r.etcd.Revision(), r.now)
	r.resolve()
	if len(next.adopted) != 1 {
		t.Fatalf("%d claims were taken over", len(next.adopted))
	}
	wantRevoked(t, next.adopted[0])
	r.pass(RevokeGrace + tickEvery)
	r.wantUsed(0)
}

func TestALostLeaseEndsItsClaimsOnce(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 5)
	r.pool("brief", 5, func(s *Spec) { s.LeaseDuration = 10 * time.Second })
	a, b := h.ask("a", 1).got(), h.ask("b", 1).got()
	other := h.ask("c", 1, func(r *Request) { r.Slots = map[string]int{"brief": 1} }).got()
	why := errors.New("no renewal succeeded")
	h.leaseLost(h.leases[DefaultLeaseDuration], why, r.now)
	for _, c := range []*Claim{a, b} {
		if problem.CodeOf(c.Err()) != problem.ClaimLost || !errors.Is(c.Err(), why) {
			t.Errorf("the holder of %s got %v", c.ID, c.Err())
		}
	}
	if other.Context().Err() != nil {
		t.Error("a claim on another lease is lost")
	}
	// The slots stay taken until the holder has stopped or the lease ends.
	r.resolve()
	r.wantUsed(2)
	h.giveBack("a")
	r.wantUsed(1)
	if err := r.etcd.Revoke(h.leases[DefaultLeaseDuration]); err != nil {
		t.Fatal(err)
	}
	r.resolve()
	r.wantUsed(0)
	if problem.CodeOf(b.Err()) != problem.ClaimLost || !errors.Is(b.Err(), why) {
		t.Errorf("the first reason is gone: %v", b.Err())
	}
	if h.entries["b"] != nil {
		t.Error("the claim is still there, and its slots are not")
	}
}

func TestAClaimOnALeaseThatIsLostMeanwhileIsLost(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 5)
	h.wedged = true
	a := h.ask("a", 1)
	call := h.next(r.now)
	resp, err := r.etcd.Txn(call.txn)
	h.leaseLost(h.leases[DefaultLeaseDuration], errors.New("gone"), r.now)
	h.answer(call, resp, err, r.now)
	if c := a.got(); problem.CodeOf(c.Err()) != problem.ClaimLost {
		t.Errorf("the holder got %v", c.Err())
	}
}

func TestAnExpiredLeaseFreesItsSlotsForOthers(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 1, func(s *Spec) { s.LeaseDuration = 10 * time.Second })
	c := one.ask("a", 1).got()
	next := two.ask("b", 1)
	id := one.leases[10*time.Second]
	delete(one.leases, 10*time.Second) // nobody renews it
	r.pass(10*time.Second - tickEvery)
	next.waits()
	r.pass(tickEvery)
	got := next.got()
	if got.Fence <= c.Fence {
		t.Errorf("fence %d after %d", got.Fence, c.Fence)
	}
	if problem.CodeOf(c.Err()) != problem.ClaimLost {
		t.Errorf("the holder got %v", c.Err())
	}
	if _, err := r.etcd.TimeToLive(id); !errors.Is(err, store.ErrLeaseNotFound) {
		t.Error(err)
	}
}

func TestAnUnknownOutcomeIsResolvedByWhatEtcdHas(t *testing.T) {
	for name, happened := range map[string]bool{"it has happened": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			h := r.hosts[0]
			r.pool("db", 5)
			held := h.ask("held", 1).got()
			h.wedged = true
			a := h.ask("a", 2)
			released := make(chan error, 1)
			h.release(held, released, r.now)
			call := h.next(r.now)
			var rev int64
			if happened {
				resp, err := r.etcd.Txn(call.txn)
				if err != nil || !resp.Succeeded {
					t.Fatal(resp, err)
				}
				rev = resp.Header.Revision
			}
			h.answer(call, nil, store.ErrUnavailable, r.now)
			a.waits()
			h.wedged = false
			r.resolve()
			c := a.got()
			if happened != (c.Fence == store.FenceAt(rev)) || c.Fence == 0 {
				t.Errorf("the fence is %d, and the write was at %d", c.Fence, rev)
			}
			if err := <-released; err != nil {
				t.Error(err)
			}
			r.wantUsed(2)
			// What was sent first can't happen any more.
			if resp, err := r.etcd.Txn(call.txn); err != nil || resp.Succeeded {
				t.Errorf("the write has happened after it was resolved: %v", err)
			}
			h.giveBack("a")
			r.clean()
		})
	}
}

func TestAnEntryThatNobodyWantsIsGivenBackWhenItIsGranted(t *testing.T) {
	for name, answer := range map[string]func(h *rigHost, call *call){
		"the answer comes": func(h *rigHost, call *call) {
			resp, err := h.r.etcd.Txn(call.txn)
			h.answer(call, resp, err, h.r.now)
		},
		"the answer is lost": func(h *rigHost, call *call) {
			_, _ = h.r.etcd.Txn(call.txn)
			h.answer(call, nil, store.ErrUnavailable, h.r.now)
		},
		"nothing happens": func(h *rigHost, call *call) {
			h.answer(call, nil, store.ErrUnavailable, h.r.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			h := r.hosts[0]
			r.pool("db", 5)
			h.wedged = true
			a := h.ask("a", 2)
			call := h.next(r.now)
			h.cancel("a", a.reply, errStopped, r.now) // it hangs up while it is being claimed
			a.refused(problem.Stopping)
			answer(h, call)
			h.wedged = false
			r.resolve()
			r.wantUsed(0)
			r.clean()
		})
	}
}

func TestAGrantIsGivenBackWhenAllWhoAskedHaveLeft(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 5)
	h.wedged = true
	first, second := h.ask("a", 2), h.ask("a", 2)
	h.wedged = false
	r.resolve()
	if len(first.reply) != 1 || len(second.reply) != 1 {
		t.Fatal("not both were answered")
	}
	third := h.ask("a", 2)
	claim := third.got()
	// The answers of the others are on their way when their clients hang up.
	first.cancel()
	third.cancel()
	r.wantUsed(2)
	if claim.Context().Err() != nil {
		t.Fatal("it has ended, and another has it")
	}
	second.cancel()
	r.wantUsed(0)
	r.clean()
}

// Who asks again for what is just being given back waits for that moment, whatever it
// asks for.
func TestARequestWhoseIDIsJustBeingReleasedIsGrantedAfterThat(t *testing.T) {
	other := func(r *Request) { r.Priority = 7 }
	for name, begin := range map[string]func(r *rig, h *rigHost){
		"its holder has released it": func(_ *rig, h *rigHost) {
			a := h.ask("a", 2)
			h.wedged = false
			h.r.resolve()
			h.wedged = true
			h.core.release(a.got(), make(chan error, 1), h.r.now)
		},
		"who asked has hung up as it was granted": func(r *rig, h *rigHost) {
			a := h.ask("a", 2)
			h.wedged = false
			r.resolve()
			h.wedged = true
			h.core.cancel("a", a.reply, errStopped, r.now)
		},
		"who asked has hung up while it was being claimed": func(r *rig, h *rigHost) {
			a := h.ask("a", 2)
			call := h.next(r.now)
			h.core.cancel("a", a.reply, errStopped, r.now)
			resp, err := r.etcd.Txn(call.txn)
			h.answer(call, resp, err, r.now)
		},
		"and the answer is lost": func(r *rig, h *rigHost) {
			a := h.ask("a", 2)
			call := h.next(r.now)
			h.core.cancel("a", a.reply, errStopped, r.now)
			_, _ = r.etcd.Txn(call.txn)
			h.answer(call, nil, store.ErrUnavailable, r.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			h := r.hosts[0]
			r.pool("db", 2)
			h.wedged = true
			begin(r, h)
			same, hasty, another, gone := h.ask("a", 2), h.ask("a", 2, noWait), h.ask("a", 2, other), h.ask("a", 2)
			h.core.cancel("a", gone.reply, errStopped, r.now)
			gone.refused(problem.Stopping)
			h.wedged = false
			r.resolve()
			if same.got() != hasty.got() {
				t.Error("one request has got two claims")
			}
			another.refused(problem.IDInUse) // it is another's by now
			h.giveBack("a")
			r.clean()
		})
	}
}

// Nobody waits for ever for a release that etcd does not take.
func TestARequestWhoseIDIsNotReleasedIsRefusedInTheEnd(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 2)
	a := h.ask("a", 2)
	h.off, h.wedged = true, true
	h.core.release(a.got(), make(chan error, 1), r.now)
	patient, hasty := h.ask("a", 2), h.ask("a", 2, noWait)
	h.wedged = false
	r.pass(patience + 2*tickEvery)
	hasty.refused(problem.EtcdUnavailable)
	patient.waits()
	h.core.timeout("a", patient.reply, nil, r.now)
	patient.refused(problem.EtcdUnavailable)
	late := h.ask("a", 2)
	h.core.stop()
	h.off = false
	r.pass(tickEvery)
	late.refused(problem.Stopping)
	r.clean()
}

// A claim that is granted to a request that was just canceled keeps its place for the next
// again, as one that waits does.
func TestWhoHangsUpAsItIsGrantedKeepsItsPlace(t *testing.T) {
	r := newRig(t, "one", "two")
	h := r.hosts[0]
	r.pool("db", 1)
	first := h.ask("first", 1)
	a := h.ask("a", 1)
	b, c := r.hosts[1].ask("b", 1), r.hosts[1].ask("c", 1)
	r.wantWaiters("a", "b", "c")
	first.got()
	h.giveBack("first")
	if len(a.reply) != 1 {
		t.Fatal("a is not granted")
	}
	h.core.cancel("a", a.reply, errStopped, r.now) // before the answer is taken
	again := h.ask("a", 1)
	b.got()
	again.waits()
	r.wantWaiters("a", "c")
	r.hosts[1].giveBack("b")
	again.got()
	h.giveBack("a")
	c.got()
	r.hosts[1].giveBack("c")
	r.clean()
}

// TestOneIDOnTwoHostsAtTheSameMomentHarmsNeither has both hosts claim before
// either has seen the other: then there are two claims, and each is whole.
func TestOneIDOnTwoHostsAtTheSameMomentHarmsNeither(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 50)
	one.wedged, two.wedged = true, true
	a, b := one.ask("same", 1), two.ask("same", 2)
	for _, h := range r.hosts {
		call := h.next(r.now)
		resp, err := r.etcd.Txn(call.txn)
		h.answer(call, resp, err, r.now)
	}
	one.wedged, two.wedged = false, false
	r.resolve()
	first, second := a.got(), b.got()
	one.resync()
	r.resolve()
	if first.Context().Err() != nil || second.Context().Err() != nil {
		t.Errorf("the holders got %v and %v", first.Err(), second.Err())
	}
	r.wantUsed(3)
	one.giveBack("same")
	r.wantUsed(2)
	if second.Context().Err() != nil {
		t.Errorf("the other holder got %v", second.Err())
	}
	two.giveBack("same")
	r.clean()
}

// A revocation of which its host learns when the claim is gone ends all the same.
func TestARevocationThatComesTooLateLeavesNoKey(t *testing.T) {
	r := newRig(t, "one")
	r.pool("db", 1)
	h := r.hosts[0]
	c := h.ask("a", 1).got()
	h.giveBack("a")
	h.requestRevocation("a", c.Fence)
	h.requestRevocation("b", waitingFence)
	if h.revocations() != 2 {
		t.Fatal("there is nothing to delete")
	}
	r.pass(revocationKept + tickEvery)
	if n := h.revocations(); n != 0 {
		t.Errorf("%d revocations are left", n)
	}
}
