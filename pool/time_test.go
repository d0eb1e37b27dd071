package pool

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

func TestAPlaceIsKeptForTenSeconds(t *testing.T) {
	for name, tc := range map[string]struct {
		away time.Duration
		want []string
	}{
		"at once":             {0, []string{"first", "second"}},
		"within the time":     {keepPlace - tickEvery, []string{"first", "second"}},
		"when it is too late": {keepPlace + tickEvery, []string{"second", "first"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			h := r.hosts[0]
			r.pool("db", 1)
			h.ask("held", 1).got()
			h.ask("first", 1).cancel()
			r.wantWaiters()
			h.ask("second", 1)
			r.pass(tc.away)
			h.ask("first", 1)
			r.wantWaiters(tc.want...)
		})
	}
}

func TestAPlaceIsKeptOnce(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	h.ask("held", 1).got()
	h.ask("first", 1).cancel()
	h.ask("second", 1)
	first := h.ask("first", 1)
	h.giveBack("held")
	first.got()
	h.giveBack("first") // has been served
	h.ask("third", 1)
	h.ask("first", 1)
	r.wantWaiters("third", "first")
}

// TestAKeptPlaceIsJudgedLikeAnyOther has a repeated request say that it will
// not wait, or find that it can't be served any more.
func TestAKeptPlaceIsJudgedLikeAnyOther(t *testing.T) {
	away := func(t *testing.T) (*rig, *rigHost) {
		r := newRig(t, "one")
		h := r.hosts[0]
		r.pool("db", 3)
		h.ask("held", 3).got()
		h.ask("first", 2).cancel()
		return r, h
	}
	t.Run("it does not wait", func(t *testing.T) {
		_, h := away(t)
		h.ask("first", 2, noWait).refused(problem.NoCapacity)
	})
	t.Run("it needs more than the limit", func(t *testing.T) {
		r, h := away(t)
		r.pool("db", 1)
		h.ask("first", 2).waits() // until the limit is raised, as if it had stayed
		h.ask("other", 2).refused(problem.ExceedsLimit)
	})
	t.Run("its pool is gone", func(t *testing.T) {
		r, h := away(t)
		r.txn(store.Delete(r.keys.Spec("db")))
		r.resolve()
		h.ask("first", 2).refused(problem.PoolNotFound)
	})
}

func TestWhoDoesNotWaitIsPatientWithEtcdForFiveSeconds(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	h.off = true
	r.pass(store.StaleAfter)
	hasty, waiting := h.ask("hasty", 1, noWait), h.ask("waiting", 1)
	r.pass(patience - tickEvery)
	hasty.waits()
	r.pass(tickEvery)
	hasty.refused(problem.EtcdUnavailable)
	waiting.waits()

	other := h.ask("yet another", 1, noWait)
	h.off = false
	r.pass(tickEvery)
	waiting.got()
	other.refused(problem.NoCapacity)
	h.giveBack("waiting")
	r.clean()
}

func TestWithoutALoginABatchIsNotTriedWithoutPause(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	tried := 0
	h.refuse = func(*pb.TxnRequest) error { tried++; return store.ErrNoLogin }
	a := h.ask("a", 1)
	for range 100 {
		h.act()
	}
	if tried != 1 {
		t.Errorf("it was tried %d times at once", tried)
	}
	h.refuse = nil
	r.pass(time.Second)
	a.got()
	h.giveBack("a")
	r.clean()
}

func TestAViewOfAnotherHistoryGrantsNothing(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	h.core.present(1) // etcd was restored, and the watches are of history 0
	waiting := h.ask("waiting", 1)
	r.pass(time.Second)
	waiting.waits()
	h.feeds.history = 1
	h.resync() // all was read again
	r.pass(time.Second)
	waiting.got()
	h.giveBack("waiting")
	r.clean()
}

func TestATimeoutWhileEtcdIsAwayDoesNotGuess(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	h.ask("held", 1).got()
	a, b := h.ask("a", 1), h.ask("b", 1)
	h.timeout("a", a.reply, nil, r.now)
	err := a.refused(problem.ClaimTimeout)
	var p *problem.Error
	if !errors.As(err, &p) || p.Detail == nil {
		t.Errorf("the timeout gives no reason: %v", err)
	}
	h.off = true
	r.pass(store.StaleAfter)
	h.timeout("b", b.reply, nil, r.now)
	b.refused(problem.EtcdUnavailable)
	h.off = false
	r.pass(time.Second)
	r.wantWaiters()
}

func TestAFullEtcdRefusesWhoDoesNotWaitAndTakesReleases(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 3)
	h.ask("a", 1).got()
	h.ask("b", 1).got()
	r.etcd.SetSpace(storetest.SpaceFull)
	hasty, waiting := h.ask("hasty", 1, noWait), h.ask("waiting", 1)
	h.giveBack("a")
	r.wantUsed(1)
	r.pass(patience + tickEvery)
	hasty.refused(problem.EtcdFull)
	waiting.waits()
	h.giveBack("b")
	r.wantUsed(0)

	r.etcd.SetSpace(storetest.SpaceFree)
	r.pass(fullPause + tickEvery)
	waiting.got()
	h.giveBack("waiting")
	r.clean()
}

// The next write after one that a full etcd refused is due when the patience of a claim ends
// that came with the first: until it is answered, the reason stays what it was.
func TestAFullEtcdStaysTheReasonUntilItTakesAWrite(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 3)
	one.ask("a", 1).got()
	one.ask("b", 1).got()
	two.ask("kept", 1).got() // and so it has a lease
	one.ask("first", 1)
	r.pass(time.Second)
	r.etcd.SetSpace(storetest.SpaceFull)
	one.giveBack("a")
	one.giveBack("b")
	hasty := two.ask("hasty", 1, noWait)
	r.pass(patience - tickEvery)
	r.now = r.now.Add(tickEvery)
	two.listen()
	two.core.tick(r.now)
	hasty.refused(problem.EtcdFull)
	r.etcd.SetSpace(storetest.SpaceFree)
	r.pass(fullPause + tickEvery)
	two.ask("late", 1, noWait).got()
}

func TestWaitersReserveWhenTheyAreOldEnough(t *testing.T) {
	r := newRig(t, "one", "two")
	one, two := r.hosts[0], r.hosts[1]
	r.pool("db", 2, func(s *Spec) { s.ReserveAfter = 30 * time.Second })
	one.ask("a", 1).got()
	wide := two.ask("wide", 2)
	one.ask("b", 1).got() // passes it: it fits
	narrow := one.ask("c", 1)
	r.pass(30*time.Second - tickEvery)
	r.wantWaiters("wide", "c")
	one.giveBack("b")
	narrow.got() // passes it still
	late := one.ask("d", 1)
	r.pass(tickEvery)
	r.wantWaiters("wide reserves", "d")

	one.giveBack("c")
	late.waits() // its slots are reserved now
	one.giveBack("a")
	wide.got()
	r.pass(30 * time.Second)
	r.wantWaiters("d reserves")
	two.giveBack("wide")
	late.got()
}

func TestOfSeveralPoolsTheMostImpatientCounts(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	r.pool("other", 5, func(s *Spec) { s.ReserveAfter = 10 * time.Second })
	h.ask("held", 1).got()
	h.ask("both", 1, func(r *Request) { r.Slots["other"] = 1 })
	r.pass(10*time.Second - tickEvery)
	r.wantWaiters("both")
	r.pass(tickEvery)
	r.wantWaiters("both reserves")
}

func TestStrictOrderReservesAtOnce(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 2, func(s *Spec) { s.ReserveAfter = 0 })
	h.ask("a", 1).got()
	wide := h.ask("wide", 2)
	r.wantWaiters("wide reserves")
	narrow := h.ask("narrow", 1)
	narrow.waits()
	h.giveBack("a")
	wide.got()
	narrow.waits()
	h.giveBack("wide")
	narrow.got()
}

func TestARequestThatIsRepeatedForALongTimeTakesNoMemory(t *testing.T) {
	r := newRig(t, "one")
	h := r.hosts[0]
	r.pool("db", 1)
	cl := h.ask("a", 1).got()
	for range 1000 {
		if h.ask("a", 1).got() != cl {
			t.Fatal("it is another claim")
		}
	}
	if n := len(h.entries["a"].unreceived); n > 1 {
		t.Errorf("the claim keeps %d answers that were received long ago", n)
	}
	// Nobody else has been notified of the claim, but one has received it.
	h.ask("a", 1).cancel()
	if cl.Err() != nil {
		t.Error("the claim was given back under its holder")
	}
	h.giveBack("a")
	r.clean()
}
