package enginetest

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// ending has how an instance stops and is restarted.
var ending = []behavior{
	{"the next process of an instance takes its claims over", restart, standIn},
	{"waiting claims of an earlier process are gone when the next one is ready", earlierWaiters, standIn},
	{"waiting claims of a process that was killed are gone within 15 s", killedWaiters, standIn},
	{"a write of an earlier process does not happen after the next one is ready", fencedWrites, standIn},
	{"an instance that stops refuses new claims and those that wait", stops, everywhere},
	{"the end of an instance ends the validity of all claims and keeps their slots", ends, everywhere},
	{"claims that were abandoned stay in etcd and end here", abandoned, everywhere},
	{"an instance that is closed leaves nothing in etcd", closedClean, everywhere},
	{"the queue moves on when the instance that dispatches is closed", closedDispatcher, everywhere},
	{"unfinished counts claims that have slots or may have some", unfinished, standIn},
	{"guards of instances that were killed are deleted", sweptGuards, standIn},
}

func restart(w world) {
	w.pool("db", 5)
	w.pool("wide", 20000)
	one := w.host("one")
	as := func(r *pool.Request) {
		r.Holder = pool.Holder{Run: "nightly", Step: "load", PID: 7, Bind: "pid 7", ClaimedBy: "user:alice"}
		r.Priority = 3
	}
	was := []*pool.Claim{one.take("a", slots(2), as), one.take("w", map[string]int{"wide": 20000, "db": 1}, as)}
	w.pass(10 * time.Second)
	one.kill()
	w.held(was...) // a process that ends says nothing of them
	next := w.host("one")
	claims, err := next.Adopted(w.ctx())
	w.must(err)
	if len(claims) != 2 {
		w.Fatalf("taken over are %v", claims)
	}
	for i, c := range claims {
		got, want := grantOf(c), grantOf(was[i])
		if !got.ClaimedAt.Equal(want.ClaimedAt) {
			w.Errorf("claimed at %s, want %s", got.ClaimedAt, want.ClaimedAt)
		}
		got.ClaimedAt, got.Extra = want.ClaimedAt, want.Extra
		w.same("taken over", got, want)
	}
	w.held(claims...)
	same := next.take("a", slots(2), as) // its client comes again
	w.same("the fence", same.Fence, was[0].Fence)
	w.pass(10 * time.Minute) // the leases are renewed
	w.held(claims...)
	w.wantUsed("db", 3)
	next.release(claims...)
	w.empty()
}

func earlierWaiters(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	two.take("held", slots(1))
	a := one.queued("a", slots(1))
	b := two.queued("b", slots(1))
	one.kill()
	<-a.done
	w.host("one")
	w.pass(time.Second)
	w.becomesQueue("b")
	b.still()
}

func killedWaiters(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := two.take("held", slots(1))
	a := one.queued("a", slots(1))
	w.pass(time.Second)
	one.kill()
	<-a.done
	w.pass(15 * time.Second)
	w.becomesQueue()
	two.release(held)
	w.free(two)
}

func fencedWrites(w world) {
	w.pool("db", 1)
	late := &holder{of: putsTo("db"), took: make(chan *pb.TxnRequest, 1)}
	one := w.host("one", func(s *setup) { late.Backend, s.Backend = s.Backend, late })
	one.release(one.take("first", slots(1)))
	late.on(true)
	a := one.ask("a", slots(1))
	txn := <-late.took
	one.kill()
	<-a.done
	next := w.host("one")
	if resp, err := w.etcd.any.Txn(w.ctx(), txn); err == nil && resp.Succeeded {
		w.Error("a write of the process before was carried out")
	}
	w.pass(5 * time.Second)
	next.release(next.take("b", slots(1)))
	w.empty()
}

// free waits until a host can claim all slots of pool "db", which has one: nothing is held and nothing waits.
func (w world) free(h *host) {
	w.Helper()
	w.eventually("the slot is free", func() bool {
		c, err := h.Claim(w.ctx(), request("free", slots(1), wait(0)))
		if err == nil {
			h.release(c)
		}
		return err == nil
	})
	w.empty()
}

func stops(w world) {
	w.pool("db", 2)
	one := w.host("one")
	held := one.take("held", slots(1))
	a := one.queued("a", slots(2))
	w.must(one.Stop(w.ctx()))
	a.refused(problem.Stopping)
	one.refuses(problem.Stopping, "b", slots(1))
	w.becomesQueue()
	w.held(held)
	same := one.take("held", slots(1))
	w.same("the fence of what is held", same.Fence, held.Fence)
	one.release(held)
	w.empty()
	one.stopEngine()
	_, err := one.Claim(w.ctx(), request("c", slots(1)))
	w.problem(err, problem.Stopping)
	_, err = one.Pools(w.ctx())
	w.problem(err, problem.Stopping)
	if err := one.Release(w.ctx(), held); err != nil {
		w.problem(err, problem.Stopping)
	}
}

func ends(w world) {
	w.pool("db", 2)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	why := problem.New(problem.ClaimLost, "the end")
	one.End(why)
	w.ended(a, problem.ClaimLost)
	w.errIs(a.Err(), why)
	one.refuses(problem.Stopping, "b", slots(1))
	w.wantUsed("db", 1)
	two.refuses(problem.NoCapacity, "b", slots(2))
	one.release(a)
	w.wantUsed("db", 0)
}

func abandoned(w world) {
	w.pool("db", 2)
	one := w.host("one")
	a := one.take("a", slots(1))
	why := problem.New(problem.ClaimLost, "left to the next process")
	one.stopEngine()
	w.held(a)
	one.Abandon(why)
	w.errIs(a.Err(), why)
	if a.Context().Err() == nil {
		w.Error("it has not ended here")
	}
	w.wantUsed("db", 1)
}

// close closes a host that holds nothing, as a process does that ends by itself.
func (h *host) close() {
	h.w.Helper()
	h.w.must(h.Stop(h.w.ctx()))
	h.End(problem.New(problem.Stopping, "closed"))
	h.stopEngine()
	h.w.must(h.keeper.RevokeAll(h.w.ctx()))
	h.w.must(h.waiters.RevokeAll(h.w.ctx()))
	h.w.must(h.presence.Revoke(h.w.ctx()))
	h.w.must(h.RemoveGuard(h.w.ctx()))
	h.kill()
}

func closedClean(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := two.take("held", slots(1))
	a := one.queued("a", slots(1))
	go one.Withdraw("a")
	a.refused(problem.ClaimCanceled)
	one.close()
	w.eventually("nothing of it is left", func() bool {
		return w.under(w.keys.Guards("one"))+w.under(w.keys.Instances("one"))+w.under(w.keys.Leases("one")) == 0
	})
	two.release(held)
	two.close()
	if n := w.under(w.keys.GuardsAll()) + w.under(w.keys.Hosts()); n > 0 {
		w.Errorf("%d keys are left", n)
	}
}

func closedDispatcher(w world) {
	w.pool("db", 1)
	one, two, three := w.host("one"), w.host("two"), w.host("three")
	held := three.take("held", slots(1))
	first := one.queued("first", slots(1))
	b, c := two.queued("b", slots(1)), three.queued("c", slots(1))
	one.Withdraw("first")
	first.refused(problem.ClaimCanceled)
	one.close()
	three.release(held)
	two.release(b.got())
	three.release(c.got())
	w.empty()
}

func unfinished(w world) {
	w.pool("db", 2)
	one := w.host("one")
	count := func(want int) {
		w.Helper()
		n, err := one.Unfinished(w.ctx())
		w.must(err)
		w.same("unfinished claims", n, want)
	}
	count(0)
	a := one.take("a", slots(1))
	count(1)
	waits := one.queued("waits", slots(2))
	count(1)
	slowWrites(one, 500*time.Millisecond)
	b := one.ask("b", slots(1))
	w.pass(100 * time.Millisecond)
	count(2)
	released := make(chan error, 1)
	go func() { released <- one.Release(w.ctx(), b.got()) }()
	w.pass(600 * time.Millisecond)
	count(2)
	w.must(<-released)
	one.LeaseLost(a.Lease, store.ErrLeaseNotFound)
	w.ended(a, problem.ClaimLost)
	count(1) // its holder may still run
	waits.hangUp()
	one.release(a)
	count(0)
}

func sweptGuards(w world) {
	killed := w.keys.Guard("other", "killed")
	w.txn(store.Put(killed, []byte(`{"v":1}`), 0))
	w.host("one")
	w.pass(3 * time.Minute)
	if w.has(killed) {
		w.Error("the guard of an instance that was killed is left")
	}
}
