package enginetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// troubles has what happens when etcd does not answer, refuses, or is full.
var troubles = []behavior{
	{"an instance is ready when etcd is", readyLate, standIn},
	{"while etcd is away nothing is lost and waiting claims wait", away, standIn},
	{"a claim that does not wait is refused after 5 s without etcd", awayRefused, standIn},
	{"the age of an instance's view grows while etcd does not answer", age, standIn},
	{"a claim whose answer is lost is made once", claimLost(storetest.Fault{LoseAnswer: true}), standIn},
	{"a claim whose request is lost is made once", claimLost(storetest.Fault{Drop: true}), standIn},
	{"a claim whose request comes late is made once", claimLost(storetest.Fault{Delay: 3 * time.Second}), standIn},
	{"a claim whose request comes after all is resolved is made once", claimLost(storetest.Fault{Delay: time.Minute}), standIn},
	{"a claim whose write filled etcd is made once", claimLost(storetest.Fault{LoseAnswer: true, Err: store.ErrNoSpace}), standIn},
	{"a release whose answer is lost is made once", releaseLost(storetest.Fault{LoseAnswer: true}), standIn},
	{"a release whose request is lost is made once", releaseLost(storetest.Fault{Drop: true}), standIn},
	{"a release whose request comes late is made once", releaseLost(storetest.Fault{Delay: 5 * time.Second}), standIn},
	{"a client that hangs up while an outcome is unknown leaves nothing", hangsUpUnknown, standIn},
	{"a full etcd takes releases and refuses claims that do not wait", fullEtcd, standIn},
	{"a waiting claim is granted after etcd has space again", spaceAgain, standIn},
	{"what etcd refuses to one claim harms no other", refusedOne, standIn},
	{"a waiting claim whose grant etcd refuses does not stop those behind it", refusedFirst, standIn},
	{"a refusal for missing rights names what is missing", denied, standIn},
	{"an expired login is no refusal", expiredLogin, standIn},
	{"a claim waits for a lease that can't be granted and is granted when it can", noLease, standIn},
	{"a claim that waits for a lease times out with the reason", noLeaseTimeout, standIn},
	{"a lease that is lost while a claim waits costs neither the claim nor its place", leaseLostWaiting, standIn},
	{"a watch that ends is resumed and nothing is missed", brokenWatches, standIn},
	{"an idle instance writes nothing", idle, standIn},
	{"trouble is why nothing can be claimed", trouble, standIn},
}

func readyLate(w world) {
	w.pool("db", 3)
	one := w.host("one", down)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.errIs(one.Ready(ctx), context.DeadlineExceeded)
	_, err := one.Pools(ctx)
	if err == nil {
		w.Error("it lists pools")
	}
	one.by.Up()
	begun := time.Now()
	w.must(one.Ready(w.ctx()))
	if took := time.Since(begun); took > 5*time.Second {
		w.Errorf("it was ready %s after etcd", took)
	}
	one.release(one.ask("a", slots(1)).got())
}

// downs cuts hosts off, and ups ends that.
func downs(all ...*host) {
	for _, h := range all {
		h.by.Down()
	}
}

func ups(all ...*host) {
	for _, h := range all {
		h.by.Up()
	}
}

func away(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	a := two.queued("a", slots(1))
	w.pass(time.Second)
	downs(one, two)
	released := make(chan error, 1)
	go func() { released <- one.Release(w.ctx(), held) }()
	w.pass(time.Minute)
	a.still()
	if len(released) > 0 {
		w.Fatal("a release was answered without etcd")
	}
	ups(one, two)
	w.must(<-released)
	begun := time.Now()
	c := a.got()
	if took := time.Since(begun); took > 15*time.Second {
		w.Errorf("it was granted %s after etcd had come back", took)
	}
	w.wantUsed("db", 1)
	two.release(c)
	w.empty()
}

func awayRefused(w world) {
	w.pool("db", 1)
	one := w.host("one")
	held := one.take("held", slots(1))
	w.pass(time.Second)
	downs(one)
	w.pass(3 * time.Second)
	a := one.ask("a", slots(1), wait(0))
	a.refused(problem.EtcdUnavailable)
	if a.took < 4*time.Second || a.took > 8*time.Second {
		w.Errorf("it was refused after %s", a.took)
	}
	b := one.ask("b", slots(1), wait(20*time.Second))
	if p := b.refused(problem.EtcdUnavailable); p.Message == "" {
		w.Error("the refusal has no text")
	}
	w.held(held)
	ups(one)
	one.release(held)
	w.empty()
}

func age(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.release(one.take("a", slots(1)))
	get := func() time.Duration {
		w.Helper()
		return one.Age(w.ctx())
	}
	w.pass(10 * time.Second)
	if d := get(); d > 4*time.Second {
		w.Errorf("its view is %s old while etcd answers", d)
	}
	downs(one)
	w.pass(time.Minute)
	if d := get(); d < 50*time.Second || d > 70*time.Second {
		w.Errorf("its view is %s old after a minute without etcd", d)
	}
	ups(one)
	w.pass(15 * time.Second)
	if d := get(); d > 4*time.Second {
		w.Errorf("its view is %s old while etcd answers again", d)
	}
}

// claimLost returns a behavior in which a fault happens to the write of a claim.
func claimLost(f storetest.Fault) func(w world) {
	return func(w world) {
		w.pool("db", 3)
		one, two := w.host("one"), w.host("two")
		one.release(one.take("first", slots(1)))
		w.pass(time.Second)
		happened := one.failsOnce(f, putsTo("db"))
		a := one.ask("a", slots(2)).got()
		if !happened() {
			w.Error("nothing was written")
		}
		b := two.ask("b", slots(1)).got()
		w.wantUsed("db", 3)
		w.pass(2 * time.Minute) // whatever is late has come
		w.wantUsed("db", 3)
		w.held(a, b)
		y, err := w.read().Why("a")
		w.must(err)
		w.same("the fence in etcd", y.Held.Fence, a.Fence)
		one.release(a)
		two.release(b)
		w.empty()
	}
}

// releaseLost returns a behavior in which a fault happens to a release.
func releaseLost(f storetest.Fault) func(w world) {
	return func(w world) {
		w.pool("db", 1)
		one, two := w.host("one"), w.host("two")
		a := one.take("a", slots(1))
		b := two.queued("b", slots(1))
		w.pass(time.Second)
		one.failsOnce(f, txnWrites)
		one.release(a)
		c := b.got()
		w.pass(2 * time.Minute)
		w.wantUsed("db", 1)
		w.held(c)
		if a.Err() != nil {
			w.Errorf("a release counts as a loss: %v", a.Err())
		}
		two.release(c)
		w.empty()
	}
}

func hangsUpUnknown(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.release(one.take("first", slots(1)))
	one.fails(storetest.Fault{LoseAnswer: true}, putsTo("db"))
	a := one.ask("a", slots(1))
	w.pass(time.Second)
	a.hangUp()
	one.mend()
	w.pass(15 * time.Second)
	w.wantUsed("db", 0)
	w.empty()
}

func fullEtcd(w world) {
	w.pool("db", 3)
	one := w.host("one")
	a := one.take("a", slots(1))
	w.full(true)
	b := one.ask("b", slots(1), wait(0))
	b.refused(problem.EtcdFull)
	if b.took > 15*time.Second {
		w.Errorf("it was refused after %s", b.took)
	}
	w.held(a)
	one.release(a)
	w.wantUsed("db", 0)
	w.full(false)
	w.pass(10 * time.Second)
	one.release(one.ask("c", slots(1), wait(time.Minute)).got())
	w.empty()
}

func spaceAgain(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	a := two.queued("a", slots(1))
	w.full(true)
	one.release(held)
	w.pass(time.Minute)
	a.still()
	w.full(false)
	begun := time.Now()
	c := a.got()
	if took := time.Since(begun); took > 15*time.Second {
		w.Errorf("it was granted after %s", took)
	}
	two.release(c)
	w.empty()
}

func refusedOne(w world) {
	w.pool("db", 9)
	w.pool("secret", 9)
	one := w.host("one")
	one.fails(storetest.Fault{Drop: true, Err: store.ErrDenied}, putsTo("secret"))
	var all []*asked
	for i := range 8 {
		need := slots(1)
		if i%4 == 1 {
			need = map[string]int{"secret": 1}
		}
		all = append(all, one.ask(fmt.Sprint("c", i), need, wait(time.Minute)))
	}
	for i, a := range all {
		if i%4 == 1 {
			a.refused(problem.EtcdDenied)
		} else {
			one.release(a.got())
		}
	}
	w.wantUsed("secret", 0)
}

func refusedFirst(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	b0 := one.queued("before", slots(1))
	a, b := two.queued("a", slots(1)), one.queued("b", slots(1))
	b0.hangUp()
	w.pass(time.Second)
	two.fails(storetest.Fault{Drop: true, Err: store.ErrTooLarge}, putsTo("db"))
	begun := time.Now()
	one.release(held)
	one.release(b.got())
	if took := time.Since(begun); took > 15*time.Second {
		w.Errorf("the claim behind it was granted after %s", took)
	}
	two.mend()
	if <-a.done; a.err == nil { // it is tried again, or refused with what etcd has said
		two.release(a.claim)
	} else {
		w.errIs(a.err, store.ErrTooLarge)
	}
	w.empty()
}

func expiredLogin(w world) {
	w.pool("db", 1)
	one := w.host("one")
	happened := one.failsOnce(storetest.Fault{Drop: true, Err: store.ErrTokenExpired}, putsTo("db"))
	one.release(one.ask("a", slots(1)).got())
	w.same("the login had expired", happened(), true)
	one.fails(storetest.Fault{Drop: true, Err: store.ErrNoLogin}, putsTo("db"))
	b := one.ask("b", slots(1))
	w.pass(3 * time.Second)
	b.still()
	one.mend()
	one.release(b.got())
	w.empty()
}

func denied(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.fails(storetest.Fault{Drop: true, Err: fmt.Errorf("write of /b/pools/db/: %w", store.ErrDenied)}, putsTo("db"))
	a := one.ask("a", slots(1), wait(time.Minute))
	if p := a.refused(problem.EtcdDenied); !strings.Contains(p.Error(), "pools/db") {
		w.Errorf("the refusal is %q", p.Error())
	}
	one.mend()
	one.release(one.take("b", slots(1)))
}

// withoutLeases has a host get no lease.
func withoutLeases(h *host) {
	h.fails(storetest.Fault{Drop: true, Err: store.ErrUnavailable}, func(c storetest.Call) bool { return c.Op == storetest.OpGrant })
}

func noLease(w world) {
	w.pool("db", 1)
	w.pool("brief", 1, leaseFor(20*time.Second))
	one, two := w.host("one"), w.host("two")
	withoutLeases(one)
	a := one.ask("a", map[string]int{"brief": 1})
	w.pass(10 * time.Second)
	a.still()
	// It keeps the slot from nobody.
	two.release(two.take("b", map[string]int{"brief": 1}))
	one.mend()
	c := a.got()
	w.held(c)
	one.release(c)
	w.empty()
}

func noLeaseTimeout(w world) {
	w.pool("db", 1)
	one := w.host("one")
	withoutLeases(one)
	a := one.ask("a", slots(1), wait(time.Minute))
	a.refused(problem.EtcdUnavailable)
	if a.took < 59*time.Second || a.took > 65*time.Second {
		w.Errorf("it was refused after %s", a.took)
	}
	one.mend()
	w.wantUsed("db", 0)
}

func leaseLostWaiting(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := two.take("held", slots(1))
	a := one.queued("a", slots(1))
	b := two.queued("b", slots(1))
	_, waiters := w.read().Claims()
	for _, x := range waiters {
		if x.Claim == "a" && x.Lease != 0 {
			w.must(w.etcd.any.Revoke(w.ctx(), x.Lease))
		}
	}
	w.pass(15 * time.Second)
	w.becomesQueue("a", "b")
	two.release(held)
	c := a.got()
	w.held(c)
	b.still()
	one.release(c)
	two.release(b.got())
	w.empty()
}

func brokenWatches(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	last, at := one.take("c0", slots(1)), one
	for i := range 6 {
		next := []*host{two, one}[i%2]
		a := next.queued(fmt.Sprint("c", i+1), slots(1))
		next.by.BreakWatches(store.ErrUnavailable)
		at.by.BreakWatches(store.ErrCompacted)
		at.release(last)
		last, at = a.got(), next
	}
	at.release(last)
	w.empty()
}

func idle(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.release(one.take("a", slots(1)))
	w.pass(time.Minute)
	sent := one.counts(txnWrites)
	w.pass(10 * time.Minute)
	if n := sent(); n > 0 {
		w.Errorf("it has sent %d writes in 10 minutes", n)
	}
}

func trouble(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.release(one.take("a", slots(1)))
	if err := one.Trouble(); err != nil {
		w.Errorf("without reason: %v", err)
	}
	downs(one)
	a := one.ask("b", slots(1), wait(time.Minute))
	w.pass(20 * time.Second)
	if err := one.Trouble(); err == nil {
		w.Error("etcd is away, and there is no trouble")
	}
	ups(one)
	one.release(a.got())
	w.eventually("the trouble is over", func() bool { return one.Trouble() == nil })
	if errors.Is(a.err, store.ErrUnavailable) {
		w.Error(a.err)
	}
}
