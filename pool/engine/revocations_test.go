package engine

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

func TestARevokedClaimKeepsItsSlotsUntilItsHolderHasStopped(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 1, func(w *bubble) {
		t := w.T
		one, two := w.engines[0], w.engines[1]
		a := claim(t, one, request("a"))
		b := w.ask(two, request("b"))
		_, err := w.Revoke(t.Context(), "a", false)
		w.must(err)
		w.ended(a, problem.ClaimRevoked)
		w.pass(2 * time.Second)
		b.waits()
		w.release(one, a)
		w.release(two, b.got())
		w.empty()
		again := claim(t, one, request("a")) // the revocation was of an earlier claim
		w.pass(2 * time.Second)
		w.held(again)
		w.release(one, again)
		w.empty()
	})
}

func TestARevokedClaimIsFreedAfterItsGrace(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 1, func(w *bubble) {
		t := w.T
		one, two := w.engines[0], w.engines[1]
		a := claim(t, one, request("a"))
		r := request("b")
		r.Wait = time.Hour
		b := w.ask(two, r)
		_, err := w.Revoke(t.Context(), "a", false)
		w.must(err)
		w.ended(a, problem.ClaimRevoked)
		w.pass(pool.RevokeGrace - time.Second)
		b.waits()
		w.pass(2 * time.Second)
		c := b.got()
		if !a.Freed() {
			t.Error("it does not count as freed")
		}
		w.release(one, a) // late
		w.held(c)
		w.release(two, c)
		w.empty()
	})
}

func TestARevokedClaimThatIsSupervisedKeepsItsSlots(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		t := w.T
		a := claim(t, w.engines[0], request("a"))
		a.Supervise(true)
		_, err := w.Revoke(t.Context(), "a", false)
		w.must(err)
		w.ended(a, problem.ClaimRevoked)
		w.pass(4 * pool.RevokeGrace)
		if a.Freed() || w.under(w.keys.Slots("db")) != 1 {
			t.Error("its slots are free")
		}
		a.Supervise(false)
		w.pass(2 * time.Second)
		if !a.Freed() {
			t.Error("it does not count as freed")
		}
		w.empty()
	})
}

// A revocation names one grant: of the id, no earlier and no later one.
func TestARevocationIsAboutOneGrant(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		t := w.T
		one := w.engines[0]
		first := claim(t, one, request("a"))
		w.release(one, first)
		w.must(w.RequestRevocation(t.Context(), "host-0", "a", first.Fence))
		again := claim(t, one, request("a"))
		w.pass(2 * time.Minute)
		w.held(again)
		w.must(w.RequestRevocation(t.Context(), "host-0", "a", again.Fence))
		w.ended(again, problem.ClaimRevoked)
		w.release(one, again)
		w.empty()
	})
}

// A revocation whose claim is not known yet is obeyed when it is granted: here the answer to its transaction is lost.
func TestARevocationIsObeyedAtTheGrant(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 1, func(w *bubble) {
		t := w.T
		one := w.engines[0]
		w.release(one, claim(t, one, request("warm"))) // nothing has to be read
		w.by[0].Inject(func(c storetest.Call) storetest.Fault {
			return storetest.Fault{LoseAnswer: c.Op == storetest.OpTxn && len(c.Txn.Compare) > 1}
		})
		a := w.ask(one, request("a"))
		a.waits()
		_, err := w.Revoke(t.Context(), "a", false)
		w.must(err)
		w.pass(500 * time.Millisecond)
		a.waits()
		w.by[0].Inject(nil)
		c := a.got()
		w.ended(c, problem.ClaimRevoked)
		w.release(one, c)
		w.empty()
	})
}

func TestARevocationThatNobodyObeysIsDeletedAfterAMinute(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 1, func(w *bubble) {
		t := w.T
		w.must(w.RequestRevocation(t.Context(), "host-0", "unknown", 12345))
		w.must(w.RequestWithdrawal(t.Context(), "host-0", "waiting"))
		_, err := store.Commit(t.Context(), w.b, nil, store.Put(w.keys.Revocation("host-0", "unreadable"), []byte("{"), 0))
		w.must(err)
		w.pass(50 * time.Second)
		if n := w.under(w.keys.Revocations("host-0")); n != 3 {
			t.Errorf("%d are there", n)
		}
		w.pass(30 * time.Second)
		if n := w.under(w.keys.Revocations("host-0")); n != 1 { // a lease ends the other
			t.Errorf("%d are left", n)
		}
		w.release(w.engines[0], claim(t, w.engines[0], request("unknown")))
	})
}

func TestAClaimThatWaitsIsTakenOutOfTheQueue(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 1, func(w *bubble) {
		t := w.T
		one, two := w.engines[0], w.engines[1]
		held := claim(t, one, request("held"))
		a := w.ask(two, request("a"))
		a.waits()
		w.must(w.RequestWithdrawal(t.Context(), "host-1", "a"))
		a.refused(problem.ClaimRevoked)
		w.pass(time.Second)
		if n := w.under(w.keys.DemandsAll("db")); n > 0 {
			t.Errorf("%d demands are left", n)
		}
		w.held(held)
		w.release(one, held)
		w.empty()
	})
}

func TestByForceTheSlotsAreFreeImmediately(t *testing.T) {
	t.Parallel()
	withEngines(t, 2, 1, func(w *bubble) {
		t := w.T
		one, two := w.engines[0], w.engines[1]
		a := claim(t, one, request("a"))
		a.Supervise(true)
		b := w.ask(two, request("b"))
		r, err := w.Revoke(t.Context(), "a", true)
		if want := (pool.Revocation{Claim: "a", Host: "host-0", Instance: "i", Fence: a.Fence, Forced: true}); err != nil || r != want {
			t.Errorf("%+v, %v, want %+v", r, err, want)
		}
		c := b.got()
		if c.Fence <= a.Fence {
			t.Errorf("fence %d after %d", c.Fence, a.Fence)
		}
		w.ended(a, problem.ClaimLost)
		w.release(one, a)
		w.held(c)
		w.release(two, c)
		w.empty()
	})
}

// The key of a revocation that is done is deleted once etcd takes it, and not what was put there since.
func TestADoneRevocationIsDeletedLater(t *testing.T) {
	t.Parallel()
	withEngines(t, 1, 2, func(w *bubble) {
		t := w.T
		one := w.engines[0]
		a := claim(t, one, request("a"))
		w.must(w.RequestRevocation(t.Context(), "host-0", "a", a.Fence))
		w.ended(a, problem.ClaimRevoked)
		w.by[0].Inject(func(c storetest.Call) (f storetest.Fault) {
			if c.Op == storetest.OpTxn && len(c.Txn.Compare) == 0 && len(c.Txn.Success) == 1 && c.Txn.Success[0].GetRequestTxn() != nil {
				f = storetest.Fault{Drop: true, Err: store.ErrUnavailable}
			}
			return f
		})
		w.release(one, a)
		w.pass(500 * time.Millisecond)
		w.by[0].Inject(nil)
		if w.under(w.keys.RevocationsAll()) != 1 {
			t.Error("it is deleted")
		}
		w.pass(2 * time.Second)
		w.empty()
	})
}
