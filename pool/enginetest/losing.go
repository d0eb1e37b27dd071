package enginetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// losing has how slots end against the will of their holder, and how that is learned.
var losing = []behavior{
	{"a lease that is lost ends the claims on it and no others", leaseLost, everywhere},
	{"claims on a lease that etcd has ended are lost within its duration", leaseEnded, standIn},
	{"a lease that is not renewed ends its claims before others get their slots", cutOff, standIn},
	{"slots that were deleted by hand are noticed within 15 s", erased, standIn},
	{"a claim of which a part was deleted ends and the rest is freed", torn, standIn},
	{"no claim is granted on a lease that etcd has ended", goneLease, standIn},
	{"slots that belong to no claim of their instance are freed within 2 minutes", orphans, standIn},
	{"slots that belong to no claim of their instance are freed on demand", orphansOnDemand, standIn},
	{"slots on leases of others are left to them", othersLeases, standIn},
	{"a late release frees no slot of another holder", lateRelease, everywhere},
}

func leaseLost(w world) {
	w.pool("db", 9)
	w.pool("brief", 9, leaseFor(10*time.Second))
	one := w.host("one")
	a, b := one.take("a", slots(1)), one.take("b", slots(1))
	other := one.take("other", map[string]int{"brief": 1})
	why := errors.New("no renewal succeeded")
	one.LeaseLost(a.Lease, why)
	for _, c := range []*pool.Claim{a, b} {
		w.ended(c, problem.ClaimLost)
		w.errIs(c.Err(), why)
	}
	w.held(other)
	// The slots stay taken until the holder has stopped, or the lease ends.
	w.rest(time.Second)
	w.wantUsed("db", 2)
	again, err := one.Claim(w.ctx(), request("a", slots(1), wait(0)))
	if again != nil || problem.CodeOf(err) != problem.ClaimLost {
		w.Errorf("asked for again: %v, %v", again, err)
	}
	one.release(a)
	w.wantUsed("db", 1)
	one.release(b, other)
	w.empty()
}

func leaseEnded(w world) {
	w.pool("db", 3, leaseFor(time.Minute))
	one, two := w.host("one"), w.host("two")
	a, b := one.take("a", slots(1)), one.take("b", slots(1))
	c := two.queued("c", slots(3))
	w.must(w.etcd.any.Revoke(w.ctx(), a.Lease))
	c.got()
	begun := time.Now()
	w.ended(a, problem.ClaimLost)
	w.ended(b, problem.ClaimLost)
	if took := time.Since(begun); took > time.Minute {
		w.Errorf("the holders learned of it after %s", took)
	}
	one.release(a, b) // no error, and no harm to the holder of the slots now
	w.wantUsed("db", 3)
	two.release(c.claim)
	w.empty()
}

func cutOff(w world) {
	w.pool("db", 1, leaseFor(10*time.Second))
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	b := two.queued("b", slots(1))
	w.pass(5 * time.Second)
	one.by.Down()
	over := make(chan time.Time, 1)
	go func() { <-a.Context().Done(); over <- time.Now() }()
	c := b.got()
	granted := time.Now()
	w.ended(a, problem.ClaimLost)
	if at := <-over; at.After(granted) {
		w.Errorf("its holder learned of it %s after another was granted its slot", at.Sub(granted))
	}
	if c.Fence <= a.Fence {
		w.Errorf("fence %d after %d", c.Fence, a.Fence)
	}
	one.by.Up()
	w.pass(5 * time.Second)
	one.release(a)
	w.held(c)
	w.wantUsed("db", 1)
	one.release(one.ask("again", slots(1), wait(time.Minute)).afterRelease(two, c))
	w.empty()
}

// afterRelease releases a claim of a host for one that asks.
func (a *asked) afterRelease(h *host, c *pool.Claim) *pool.Claim {
	a.h.w.Helper()
	a.waits()
	h.release(c)
	return a.got()
}

func erased(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	a, b := one.take("a", slots(2)), one.take("b", slots(1))
	w.pass(20 * time.Second)
	w.erase("a", 0)
	begun := time.Now()
	w.ended(a, problem.ClaimLost)
	if took := time.Since(begun); took > 15*time.Second {
		w.Errorf("it was noticed after %s", took)
	}
	w.held(b)
	next := two.take("next", slots(2))
	one.release(a)
	w.wantUsed("db", 3)
	one.release(b)
	two.release(next)
	w.empty()
}

func torn(w world) {
	w.pool("db", 3)
	w.pool("api", 3)
	one := w.host("one")
	a := one.take("a", map[string]int{"db": 2, "api": 1})
	w.pass(20 * time.Second)
	w.erase("a", 1)
	w.ended(a, problem.ClaimLost)
	one.release(a)
	w.pass(3 * time.Minute)
	w.empty()
	one.release(one.take("b", map[string]int{"db": 3, "api": 3}))
}

func goneLease(w world) {
	w.pool("db", 9)
	one := w.host("one")
	a := one.take("a", slots(1))
	w.must(w.etcd.any.Revoke(w.ctx(), a.Lease))
	for i := range 3 {
		c := one.ask(fmt.Sprint("c", i), slots(1), wait(30*time.Second)).got()
		if c.Lease == a.Lease {
			w.Error("it was granted on the lease that has ended")
		}
		w.held(c)
		if y, err := w.read().Why(c.ID); err != nil || y.Held.Fence != c.Fence {
			w.Errorf("etcd does not show it: %+v, %v", y, err)
		}
	}
	w.ended(a, problem.ClaimLost)
	one.release(a)
	w.wantUsed("db", 3)
}

// orphaned puts a slot of a claim that nobody has on a lease of a host.
func orphaned(w world) (one *host, a *pool.Claim) {
	w.pool("db", 200)
	one = w.host("one")
	a = one.take("a", slots(1))
	w.pass(time.Second)
	w.orphan("a", "orphan", "db", a.Lease)
	w.wantUsed("db", 2)
	return one, a
}

func orphans(w world) {
	one, a := orphaned(w)
	begun := time.Now()
	for w.used("db") != 1 {
		w.pass(time.Second)
		if time.Since(begun) > 2*time.Minute {
			w.Fatal("the orphaned slot is still in use")
		}
	}
	w.held(a)
	one.release(a)
	w.empty()
}

func orphansOnDemand(w world) {
	one, a := orphaned(w)
	w.must(one.Reconcile(w.ctx()))
	w.wantUsed("db", 1)
	w.held(a)
	one.release(a)
	w.empty()
}

func othersLeases(w world) {
	w.pool("db", 200)
	one := w.host("one")
	a := one.take("a", slots(1))
	id, _, err := w.etcd.any.Grant(w.ctx(), time.Hour)
	w.must(err)
	w.orphan("a", "orphan", "db", id)
	w.pass(3 * time.Minute)
	w.must(one.Reconcile(w.ctx()))
	w.wantUsed("db", 2)
	w.must(w.etcd.any.Revoke(w.ctx(), id))
	w.becomesUsed("db", 1)
	one.release(a)
}

func lateRelease(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	a := one.take("a", slots(1))
	_, err := w.Revoke(w.ctx(), "a", true)
	w.must(err)
	b := two.ask("b", slots(1)).got()
	w.ended(a, problem.ClaimLost)
	one.release(a)
	w.wantUsed("db", 1)
	w.held(b)
	if b.Fence <= a.Fence {
		w.Errorf("fence %d after %d", b.Fence, a.Fence)
	}
	two.release(b)
	w.empty()
}

// full has etcd full, or ends that.
func (w world) full(is bool) {
	w.etcd.root.Do(func(e *storetest.Etcd) {
		var space storetest.Space
		if is {
			space = storetest.SpaceFull
		}
		e.SetSpace(space)
	})
}
