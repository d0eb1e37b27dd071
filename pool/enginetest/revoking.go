package enginetest

import (
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// revoking has how operators revoke claims.
var revoking = []behavior{
	{"a revoked claim keeps its slots until its holder has stopped", revoked, everywhere},
	{"a revoked claim is freed after its grace", revokedLate, standIn},
	{"a revoked claim that is supervised keeps its slots for as long as its holder is seen", supervised, standIn},
	{"a revocation is about one grant and harms no later claim of its id", oneGrant, everywhere},
	{"a revocation that comes before its host has started is obeyed", revokedBefore, standIn},
	{"a revocation that nobody obeys is deleted after a minute", staleRevocation, standIn},
	{"a claim that waits is taken out of the queue by a request to its host", withdrawal, everywhere},
	{"by force the slots are free immediately", byForce, everywhere},
	{"by force the slots of a claim of many keys are free immediately", manyByForce, everywhere},
	{"by force slots are freed in a full etcd and their holder learns of it within 15 s", byForceFull, standIn},
	{"a holder learns within 2 minutes that its slots were freed by force while etcd was away from it", forcedInGap, standIn},
	{"a claim is freed by force only as it was read", freeAsRead, everywhere},
	{"a caller without the right revokes nothing", mayNot, everywhere},
}

func revoked(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	b := two.queued("b", slots(1))
	r, err := w.Revoke(w.ctx(), "a", false)
	w.must(err)
	w.same("it is revoked", r, pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: a.Fence})
	w.ended(a, problem.ClaimRevoked)
	w.rest(2 * time.Second)
	b.still()
	w.wantUsed("db", 1)
	one.release(a)
	two.release(b.got())
	w.eventually("the revocation is gone", func() bool { return w.under(w.keys.Revocations("one")) == 0 })
	_, err = w.Revoke(w.ctx(), "a", false)
	w.problem(err, problem.ClaimNotFound)
	again := one.take("a", slots(1)) // the id is free again
	w.rest(time.Second)
	w.held(again)
	one.release(again)
	w.empty()
}

func revokedLate(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	b := two.queued("b", slots(1))
	_, err := w.Revoke(w.ctx(), "a", false)
	w.must(err)
	w.ended(a, problem.ClaimRevoked)
	w.pass(pool.RevokeGrace - time.Second)
	b.still()
	w.pass(3 * time.Second)
	c := b.got()
	if !a.Freed() {
		w.Error("it does not count as freed")
	}
	one.release(a) // late
	w.wantUsed("db", 1)
	two.release(c)
	w.eventually("the revocation is gone", func() bool { return w.under(w.keys.Revocations("one")) == 0 })
	w.empty()
}

func supervised(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	a.Supervise(true)
	b := two.queued("b", slots(1))
	_, err := w.Revoke(w.ctx(), "a", false)
	w.must(err)
	w.ended(a, problem.ClaimRevoked)
	w.pass(4 * pool.RevokeGrace)
	b.still()
	if a.Freed() || !a.Supervised() {
		w.Errorf("freed: %t, supervised: %t", a.Freed(), a.Supervised())
	}
	a.Supervise(false)
	w.pass(pool.RevokeGrace + 2*time.Second)
	two.release(b.got())
	if !a.Freed() {
		w.Error("it does not count as freed")
	}
	one.release(a)
	w.empty()
}

func oneGrant(w world) {
	w.pool("db", 1)
	one := w.host("one")
	first := one.take("a", slots(1))
	one.release(first)
	w.must(w.RequestRevocation(w.ctx(), "one", "a", first.Fence))
	again := one.take("a", slots(1))
	w.rest(2 * time.Second)
	w.held(again)
	w.must(w.RequestRevocation(w.ctx(), "one", "a", again.Fence))
	w.ended(again, problem.ClaimRevoked)
	one.release(again)
	w.empty()
}

func revokedBefore(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1))
	one.kill()
	_, err := w.Revoke(w.ctx(), "a", false)
	w.must(err)
	next := w.host("one")
	claims, err := next.Adopted(w.ctx())
	w.must(err)
	if len(claims) != 1 || claims[0].Fence != a.Fence {
		w.Fatalf("taken over are %v", claims)
	}
	w.ended(claims[0], problem.ClaimRevoked)
	w.pass(pool.RevokeGrace + 2*time.Second)
	w.empty()
}

func staleRevocation(w world) {
	w.pool("db", 1)
	one := w.host("one")
	w.must(w.RequestRevocation(w.ctx(), "one", "unknown", 12345))
	w.must(w.RequestWithdrawal(w.ctx(), "one", "unknown"))
	w.pass(2 * time.Minute)
	if n := w.under(w.keys.Revocations("one")); n > 0 {
		w.Errorf("%d revocations are left", n)
	}
	one.release(one.take("unknown", slots(1)))
}

func withdrawal(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	a := two.queued("a", slots(1))
	w.must(w.RequestWithdrawal(w.ctx(), "two", "a"))
	a.refused(problem.ClaimRevoked)
	w.becomesQueue()
	w.held(held)
	one.release(held)
	w.empty()
	w.eventually("the request is gone", func() bool { return w.under(w.keys.Revocations("two")) == 0 })
}

func byForce(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	a.Supervise(true)
	b := two.queued("b", slots(1))
	r, err := w.Revoke(w.ctx(), "a", true)
	w.must(err)
	w.same("it is revoked", r, pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: a.Fence, Forced: true})
	c := b.got()
	if c.Fence <= a.Fence {
		w.Errorf("fence %d after %d", c.Fence, a.Fence)
	}
	w.ended(a, problem.ClaimLost)
	one.release(a)
	w.held(c)
	w.wantUsed("db", 1)
	two.release(c)
	w.empty()
}

func manyByForce(w world) {
	need := map[string]int{"db": 1, "big": 1000, "bigger": 20000}
	for name, n := range need {
		w.pool(name, n)
	}
	one, two := w.host("one"), w.host("two")
	a := one.take("a", need)
	b := two.queued("b", need)
	_, err := w.Revoke(w.ctx(), "a", true)
	w.must(err)
	two.release(b.got())
	w.ended(a, problem.ClaimLost)
	one.release(a)
	w.empty()
}

func byForceFull(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1))
	w.pass(20 * time.Second)
	w.full(true)
	r, err := w.Revoke(w.ctx(), "a", true)
	w.must(err)
	w.same("it is revoked", r, pool.Revocation{
		Claim: "a", Host: "one", Instance: "test", Fence: a.Fence, Forced: true, Unnotified: true,
	})
	w.wantUsed("db", 0)
	begun := time.Now()
	w.ended(a, problem.ClaimLost)
	if took := time.Since(begun); took > 15*time.Second {
		w.Errorf("its holder learned of it after %s", took)
	}
	one.release(a)
	w.full(false)
	w.pass(10 * time.Second)
	one.release(one.ask("b", slots(1)).got())
}

func forcedInGap(w world) {
	w.pool("db", 1, leaseFor(time.Hour))
	one := w.host("one")
	a := one.take("a", slots(1))
	w.pass(10 * time.Second)
	downs(one)
	_, err := w.Revoke(w.ctx(), "a", true)
	w.must(err)
	w.pass(11 * time.Minute)
	*w.damaged = true // earlier revisions are gone
	w.etcd.root.Do(func(e *storetest.Etcd) { w.must(e.Compact(e.Revision())) })
	ups(one)
	begun := time.Now()
	w.ended(a, problem.ClaimLost)
	if took := time.Since(begun); took > 2*time.Minute {
		w.Errorf("its holder learned of it after %s", took)
	}
	one.release(a)
}

func freeAsRead(w world) {
	w.pool("db", 1)
	one := w.host("one")
	before := w.read()
	a := one.take("a", slots(1))
	_, err := w.Free(w.ctx(), before, "a", a.Fence)
	w.problem(err, problem.ClaimNotFound)
	_, err = w.Free(w.ctx(), w.read(), "a", a.Fence+1024)
	w.problem(err, problem.ClaimNotFound)
	w.held(a)
	was := w.read()
	one.release(a)
	again := one.take("a", slots(1))
	_, err = w.Free(w.ctx(), was, "a", a.Fence)
	w.problem(err, problem.ClaimNotFound)
	w.wantUsed("db", 1)
	r, err := w.Free(w.ctx(), w.read(), "a", again.Fence)
	w.must(err)
	w.same("it is freed", r.Forced, true)
	w.wantUsed("db", 0)
	w.ended(again, problem.ClaimLost)
	one.release(again)
}

func mayNot(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1), func(r *pool.Request) { r.Holder.ClaimedBy = "user:alice" })
	refusal := problem.New(problem.Forbidden, "not yours")
	for _, force := range []bool{false, true} {
		_, err := w.Revoke(w.ctx(), "a", force, func(of pool.Holder, need map[string]int) error {
			w.same("the holder", of.ClaimedBy, "user:alice")
			w.same("the slots", need, slots(1))
			return refusal
		})
		w.errIs(err, refusal)
	}
	w.rest(time.Second)
	w.held(a)
	one.release(a)
}
