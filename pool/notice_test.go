package pool

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// An instance that acknowledges its late notice has its waiters granted again at once, also if
// it has other notices.
func TestAnInstanceThatAcknowledgesIsGrantedClaimsAgain(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 2)
	one, two := r.hosts[0], r.hosts[1]
	two.ask("h1", 1).got()
	two.ask("h2", 1).got()
	two.ask("d", 1)
	one.ask("v", 1, rank(2))
	one.ask("w", 1, rank(1))
	one.wedged = true
	two.giveBack("h1")
	r.pass(ackWithin / 4)
	two.giveBack("h2")
	r.pass(ackWithin - ackWithin/4 + tickEvery)
	r.wantNotices("v", "w")
	if !two.view.instances[one.core.name()].yielded {
		t.Fatal("its waiters are not passed")
	}
	r.txn(store.Delete(r.keys.Notice("db", "one", "i", "v")))
	two.listen()
	if two.view.instances[one.core.name()].yielded {
		t.Error("its waiters are passed until the next tick")
	}
}

// A grant is acknowledged along with whatever comes next, such as the release of the claim, and
// otherwise soon.
func TestAGrantIsAcknowledgedSoon(t *testing.T) {
	t.Run("with the release", func(t *testing.T) {
		c := newContested(t)
		c.grant()
		c.one.listen()
		if call := c.one.next(c.now); call != nil {
			t.Fatalf("it acknowledges by itself: %s", described(call.txn))
		}
		c.one.core.release(c.w.got(), make(chan error, 1), c.one.r.now)
		call := c.one.next(c.now)
		if call == nil || len(call.batch.releases) != 1 || len(call.batch.acks) != 1 {
			t.Fatalf("it plans %+v", call)
		}
		c.one.arrives(call)
		c.wantNotices()
		c.one.wedged = false
		c.ends()
	})
	t.Run("alone", func(t *testing.T) {
		c := newContested(t)
		c.grant()
		c.one.listen()
		c.w.got()
		if call := c.one.next(c.now); call != nil || !c.one.waitersAt.Equal(c.now.Add(ackDelay)) {
			t.Fatalf("it plans %+v, and acknowledges at %s, now being %s", call, c.one.waitersAt, c.now)
		}
		c.now = c.now.Add(ackDelay)
		call := c.one.next(c.now)
		if call == nil || len(call.batch.acks) != 1 || call.batch.things() != 1 {
			t.Fatalf("it plans %+v", call)
		}
		c.one.arrives(call)
		c.wantNotices()
		c.one.wedged = false
		c.ends(c.one)
	})
	t.Run("two at once", func(t *testing.T) {
		r := newRig(t, "one", "two")
		r.pool("db", 2)
		one, two := r.hosts[0], r.hosts[1]
		two.ask("holder", 2).got()
		two.ask("d", 1)
		v, w := one.ask("v", 1, rank(1)), one.ask("w", 1, rank(1))
		one.wedged = true
		two.giveBack("holder")
		one.listen()
		if call := one.next(r.now); call == nil || len(call.batch.acks) != 2 {
			t.Fatalf("it plans %+v", call)
		} else {
			one.arrives(call)
		}
		v.got()
		w.got()
		r.wantNotices()
	})
}

// An instance that has written nothing for a while must confirm what it is granted, or it is
// taken back, and its claim returns to its place.
func TestAGrantToASilentInstanceIsConfirmed(t *testing.T) {
	silent := func(t *testing.T) *contested {
		c := newContested(t)
		c.pass(aliveWithin + tickEvery)
		c.grant()
		c.wantNotices("w to be confirmed")
		return c
	}
	t.Run("it does", func(t *testing.T) {
		c := silent(t)
		c.one.listen()
		c.w.waits() // until it is
		call := c.one.next(c.now)
		if call == nil || len(call.batch.grants) != 1 || call.batch.grants[0].e.offer == nil {
			t.Fatalf("it plans %+v", call)
		}
		if lease := store.LeaseID(c.keysOf("w")[0].Lease); lease != c.two.waiterLeaseID {
			t.Errorf("until then it is on lease %x, and not on that of the dispatcher", lease)
		}
		c.one.arrives(call)
		got, main := c.w.got(), c.keysOf("w")[0]
		if got.Err() != nil || got.Fence.Revision() != main.ModRevision || main.Lease != int64(got.Lease) || got.Lease != c.one.leases[DefaultSpec().LeaseDuration] {
			t.Errorf("granted is %+v, and %s is of revision %d on lease %x", got, main.Key, main.ModRevision, main.Lease)
		}
		c.one.wedged = false
		c.resolve()
		c.wantNotices()
		c.one.wedged = false
		c.ends(c.one)
	})
	t.Run("it does not", func(t *testing.T) {
		c := silent(t)
		c.pass(ackWithin - tickEvery)
		c.d.waits()
		c.pass(2 * tickEvery)
		c.wantNotices()
		c.wantWaiters()
		c.one.wedged = false
		c.resolve()
		c.w.waits()
		c.wantWaiters("w") // in its place
		c.drain(c.w)
	})
	t.Run("it does, a moment late", func(t *testing.T) {
		c := silent(t)
		c.one.listen()
		call := c.one.next(c.now)
		c.pass(ackWithin + tickEvery)
		c.one.arrives(call)
		c.w.waits()
		c.one.wedged = false
		c.resolve()
		c.wantWaiters("w")
		c.drain(c.w)
	})
	for name, done := range map[string]bool{"it did, and does not know": true, "it tried, and does not know": false} {
		t.Run(name, func(t *testing.T) {
			c := silent(t)
			c.one.listen()
			c.one.isLost(c.one.next(c.now), done)
			c.one.wedged = false
			c.resolve()
			c.w.got()
			c.wantNotices()
			c.ends(c.one)
		})
	}
	t.Run("it tried, does not know, and it is taken back", func(t *testing.T) {
		c := silent(t)
		c.one.listen()
		c.one.isLost(c.one.next(c.now), false)
		c.pass(ackWithin + tickEvery)
		c.one.wedged = false
		c.resolve()
		c.w.waits()
		c.wantWaiters("w")
		c.drain(c.w)
	})
	t.Run("it does not, and the dispatcher hangs, too", func(t *testing.T) {
		c := silent(t)
		x := c.three.ask("x", 1, rank(2))
		c.two.wedged = true
		c.pass(ackWithin + silentAfter + silentSpread + time.Second)
		x.got()
		c.wantDispatcher("db", "three")
	})
	t.Run("it was released by force", func(t *testing.T) {
		c := silent(t)
		c.one.listen()
		call := c.one.next(c.now)
		for _, kv := range c.keysOf("w") {
			c.txn(store.Delete(string(kv.Key)))
		}
		c.one.arrives(call)
		c.one.wedged = false
		c.resolve()
		c.pass(time.Second)
		c.wantNotices()
		c.sound()
	})
}

// A claim with conditions of its own is granted by another host, and its owner checks them.
func TestAConditionalClaimIsGrantedByAnotherHost(t *testing.T) {
	t.Run("the condition holds", func(t *testing.T) {
		c := newContested(t, extra(store.CreateEquals("/side/c", 0), "/side/then"), leased("/side/leased"))
		c.grant()
		c.wantNotices("w to be confirmed")
		if c.has("/side/then") {
			t.Error("the dispatcher has written what the owner is to write")
		}
		c.one.wedged = false
		c.resolve()
		got := c.w.got()
		if len(got.Extra) != 1 || !c.has("/side/then") || !c.has("/side/leased") || got.Keys != 1 {
			t.Errorf("granted is %+v", got)
		}
		for _, kv := range c.keysOf("w") {
			if kv.ModRevision != got.Fence.Revision() {
				t.Errorf("its fence is %d, and %s of revision %d", got.Fence, kv.Key, kv.ModRevision)
			}
		}
		c.wantNotices()
		c.ends(c.one)
	})
	t.Run("the condition does not hold", func(t *testing.T) {
		c := newContested(t, extra(store.CreateEquals("/side/c", 0), "/side/then"))
		c.txn(store.Put("/side/c", nil, 0))
		c.three.giveBack("holder")
		c.w.refused(problem.Precondition)
		if c.has("/side/then") {
			t.Error("what goes with it was written")
		}
		c.wantNotices()
		c.ends()
	})
	t.Run("others of its batch are not harmed", func(t *testing.T) {
		r := newRig(t, "one", "two")
		r.pool("db", 3)
		one, two := r.hosts[0], r.hosts[1]
		two.ask("holder", 3).got()
		d := two.ask("d", 1)
		w := one.ask("w", 1, rank(1), extra(store.CreateEquals("/side/c", 0), "/side/w"))
		v := one.ask("v", 1, rank(1), extra(store.CreateEquals("/side/d", 0), "/side/v"))
		u := one.ask("u", 1, rank(1))
		r.txn(store.Put("/side/c", nil, 0))
		two.giveBack("holder")
		w.refused(problem.Precondition)
		v.got()
		u.got()
		d.got()
		r.wantUsed(3)
		r.wantNotices()
		if r.has("/side/w") || !r.has("/side/v") {
			t.Error("what goes with one was written with the other")
		}
		r.sound()
	})
	for name, done := range map[string]bool{"it did, and does not know": true, "it tried, and does not know": false} {
		t.Run(name, func(t *testing.T) {
			c := newContested(t, extra(store.CreateEquals("/side/then", 0), "/side/then"))
			c.grant()
			c.one.listen()
			c.one.isLost(c.one.plans(), done)
			c.one.wedged = false
			c.resolve()
			c.w.got()
			c.wantNotices()
			c.ends(c.one)
		})
	}
}

// A claim without a place to use it gives back what it was granted, and gets it when there is
// one.
func TestAGrantWithoutAPlaceIsGivenBack(t *testing.T) {
	places := NewPlaces(1)
	own, other := places.New(), places.New()
	c := newContested(t, func(r *Request) { r.Place = own })
	c.grant()
	other.Take()
	c.one.wedged = false
	c.resolve()
	c.w.waits()
	c.d.got()
	c.wantNotices()
	c.wantWaiters() // it could not use its slots
	other.Give()
	c.one.dirty = true
	c.resolve()
	c.wantWaiters("w")
	c.two.giveBack("d")
	c.w.got()
	if places.Free() != 0 {
		t.Error("it has taken no place")
	}
	own.Give()
	c.one.giveBack("w")
	c.pass(silentAfter + silentSpread + time.Second)
	c.clean()
}

// A request ends in one of three ways.
func endings() map[string]func(asked) {
	return map[string]func(asked){
		"canceled":  func(a asked) { a.h.core.cancel(a.id, a.reply, errStopped, a.h.r.now) },
		"timed out": func(a asked) { a.h.core.timeout(a.id, a.reply, nil, a.h.r.now) },
		"withdrawn": func(a asked) { a.h.core.withdraw(a.id, a.h.r.now) },
	}
}

// gone checks that the request was refused, whatever was granted meanwhile.
func (a asked) gone() {
	a.h.r.t.Helper()
	select {
	case o := <-a.reply:
		if o.err == nil {
			a.h.r.t.Errorf("%s was granted", a.id)
		}
	default:
		a.h.r.t.Errorf("%s is not answered", a.id)
	}
}

// Whenever a request ends, its waiter goes, or what it was granted is given back.
func TestARequestThatEndsLeavesNothingGranted(t *testing.T) {
	for name, end := range endings() {
		t.Run(name+" while its waiter is written", func(t *testing.T) {
			c := newContested(t)
			end(c.w)
			c.resolve()
			c.w.gone()
			c.wantWaiters("d")
			c.three.giveBack("holder")
			c.ends()
		})
		t.Run(name+" before the grant arrives", func(t *testing.T) {
			c := newContested(t)
			grant := c.granting()
			end(c.w)
			c.one.arrives(c.one.plans())
			c.wantWaiters("d")
			if c.two.arrives(grant) {
				t.Error("a claim was granted that did not wait")
			}
			c.one.wedged, c.two.wedged = false, false
			c.w.gone()
			c.ends()
		})
		t.Run(name+" after the grant arrived", func(t *testing.T) {
			c := newContested(t)
			grant := c.granting()
			end(c.w)
			leaves := c.one.plans()
			if !c.two.arrives(grant) {
				t.Fatal("the grant has failed")
			}
			c.one.arrives(leaves) // the waiter is gone already
			c.one.wedged, c.two.wedged = false, false
			c.w.gone()
			c.ends()
		})
		t.Run(name+" before the notice is delivered", func(t *testing.T) {
			c := newContested(t)
			c.grant()
			end(c.w)
			c.w.gone()
			c.one.wedged = false
			c.ends()
		})
		t.Run(name+" while the confirmation is under way", func(t *testing.T) {
			for _, conditions := range [][]func(*Request){nil, {extra(store.CreateEquals("/side/then", 0), "/side/then")}} {
				for _, way := range []string{"it arrives", "it is lost", "its answer is lost", "too late"} {
					c := newContested(t, conditions...)
					c.pass(aliveWithin + tickEvery)
					c.grant()
					c.one.listen()
					call := c.one.plans()
					end(c.w)
					switch way {
					case "it arrives":
						c.one.arrives(call)
					case "too late":
						c.pass(ackWithin + tickEvery)
						c.one.arrives(call)
					default:
						c.one.isLost(call, way == "its answer is lost")
					}
					c.one.wedged = false
					c.resolve()
					switch {
					case name != "withdrawn":
						c.w.gone()
						c.ends()
					case way != "too late": // for the withdrawal: it is being claimed
						c.w.got()
						c.ends(c.one)
					default:
						c.wantWaiters("w")
						c.drain(c.w)
					}
				}
			}
		})
		t.Run(name+" after the notice was delivered", func(t *testing.T) {
			if name != "canceled" {
				t.Skip("it is answered")
			}
			c := newContested(t)
			c.grant()
			c.one.listen()
			end(c.w) // its client has not received the claim
			c.one.wedged = false
			c.ends()
		})
	}
}
