package pool_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

func TestSlotsGoFromHostToHostInOrder(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	engines := []*pool.Engine{c.engine("one"), c.engine("two"), c.engine("three")}
	held := c.claim(engines[0], "c0", db(1))
	var waiters []*waiting
	for i := 1; i < 9; i++ {
		waiters = append(waiters, c.wait(engines[i%3], fmt.Sprint("c", i), db(1)))
	}
	for i, w := range waiters {
		c.release(engines[i%3], held)
		next := w.got()
		if next.Fence <= held.Fence {
			t.Errorf("fence %d after %d", next.Fence, held.Fence)
		}
		held = next
	}
	c.release(engines[len(waiters)%3], held)
	c.empty()
}

// TestAWideClaimIsNotStarvedByOtherHosts has a stream of narrow ones in a pool
// of strict order.
func TestAWideClaimIsNotStarvedByOtherHosts(t *testing.T) {
	c := newCluster(t)
	limit, atOnce := 4, time.Duration(0)
	c.change("db", pool.Change{Limit: &limit, ReserveAfter: &atOnce})
	one, two := c.engine("one"), c.engine("two")
	var held []*pool.Claim
	for i := range 4 {
		held = append(held, c.claim(one, fmt.Sprint("a", i), db(1)))
	}
	wide := c.wait(two, "wide", db(4))
	var behind []*waiting
	for i := range 4 {
		behind = append(behind, c.wait(one, fmt.Sprint("b", i), db(1)))
	}
	for _, cl := range held {
		c.refused(problem.NoCapacity, one, "hasty", db(1))
		c.release(one, cl)
	}
	w := wide.got()
	if got := c.queue(); len(got) != 4 {
		t.Errorf("waiting are %v", got)
	}
	c.release(two, w)
	for _, b := range behind {
		c.release(one, b.got())
	}
	c.empty()
}

func TestALeaseThatIsLostEndsTheClaimsOnIt(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	e := c.engine("one")
	a := c.claim(e, "a", db(1))
	w := c.wait(e, "b", db(3))
	why := errors.New("no renewal succeeded")
	e.LeaseLost(a.Lease, why)
	<-a.Context().Done()
	if problem.CodeOf(a.Err()) != problem.ClaimLost || !errors.Is(a.Err(), why) {
		t.Errorf("the holder got %v", a.Err())
	}
	if again, err := e.Claim(c.ctx(), &pool.Request{ID: "a", Slots: db(1)}); again != nil || problem.CodeOf(err) != problem.ClaimLost {
		t.Errorf("asked for again: %v, %v", again, err)
	}
	c.release(e, a) // the holder has stopped
	// A lease that can't be trusted is good for nothing: what is granted on it
	// is lost at once.
	if b := w.got(); problem.CodeOf(b.Err()) != problem.ClaimLost {
		t.Errorf("a later holder got %v", b.Err())
	}
}

func TestSlotsThatEtcdTookAwayAreLost(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	one, two := c.engine("one"), c.engine("two")
	a, b := c.claim(one, "a", db(1)), c.claim(one, "b", db(1))
	w := c.wait(two, "c", db(3))
	if err := c.client.Revoke(c.ctx(), a.Lease); err != nil {
		t.Fatal(err)
	}
	w.got()
	for _, cl := range []*pool.Claim{a, b} {
		<-cl.Context().Done()
		if problem.CodeOf(cl.Err()) != problem.ClaimLost {
			t.Errorf("the holder of %s got %v", cl.ID, cl.Err())
		}
		c.release(one, cl) // no error, and no harm to the holder of the slot now
	}
	c.sound()
	if d, err := two.Pool(c.ctx(), "db"); err != nil || d.Claimed != 3 {
		t.Errorf("%d slots are held, %v", d.Claimed, err)
	}
}

func TestAnOperatorAsksAClaimBack(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	one, two := c.engine("one"), c.engine("two")
	a := c.claim(one, "a", db(1))
	w := c.wait(two, "b", db(1))
	r, err := c.revoker.Revoke(c.ctx(), "a", false)
	if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: a.Fence}); err != nil || r != want {
		t.Errorf("revoked: %+v, %v, want %+v", r, err, want)
	}
	<-a.Context().Done()
	if problem.CodeOf(a.Err()) != problem.ClaimRevoked {
		t.Errorf("the holder got %v", a.Err())
	}
	if d, err := two.Pool(c.ctx(), "db"); err != nil || d.Claimed != 1 {
		t.Errorf("%d slots are held before the holder has stopped, %v", d.Claimed, err)
	}
	c.release(one, a)
	b := w.got()
	eventually(t, "the revocation is done", func() bool { return c.keysUnder(c.keys.Revocations("one")) == 0 })
	if _, err := c.revoker.Revoke(c.ctx(), "a", false); problem.CodeOf(err) != problem.ClaimNotFound {
		t.Errorf("once more: %v", err)
	}
	c.release(two, b)
	c.caughtUp()
	// The id is free again, and nothing of the revocation hits it.
	again := c.claim(one, "a", db(1))
	c.caughtUp()
	if again.Context().Err() != nil {
		t.Errorf("a later holder got %v", again.Err())
	}
}

// A claim that has ended, and whose slots its host has granted again, is not released by force with
// those of the next one.
func TestByForceTheSlotsOfTheNextClaimStay(t *testing.T) {
	for name, change := range map[string]*pool.Change{
		"retained": nil, "paused": {Paused: new(true)},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.pool("db", 1)
			if _, err := c.reg.Change(c.ctx(), "db", pool.Change{Retain: new(10 * time.Second)}); err != nil {
				t.Fatal(err)
			}
			one := c.engine("one")
			var b *pool.Claim
			for n := 0; b == nil; n++ { // until what the host knows of etcd is recent
				a := c.claim(one, "a", db(1))
				c.release(one, a)
				if next := c.claim(one, fmt.Sprint("b", n), db(1)); next.Fence.Revision() == a.Fence.Revision() {
					b = next
				} else {
					c.release(one, next)
				}
			}
			if change != nil {
				if _, err := c.reg.Change(c.ctx(), "db", *change); err != nil {
					t.Fatal(err)
				}
			}
			if r, err := c.revoker.Revoke(c.ctx(), "a", true); err == nil {
				t.Errorf("revoked: %+v", r)
			}
			if b.Context().Err() != nil {
				t.Errorf("the next claim has ended: %v", b.Err())
			}
			c.release(one, b)
			c.sound()
		})
	}
}

func TestByForceTheSlotsAreFreeAtOnce(t *testing.T) {
	for name, slots := range map[string]map[string]int{
		"one key": db(1), "many keys": {"db": 1, "big": 1000, "bigger": 1000},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			for p, n := range slots {
				c.pool(p, n)
			}
			one, two := c.engine("one"), c.engine("two")
			a := c.claim(one, "a", slots)
			w := c.wait(two, "b", slots)
			r, err := c.revoker.Revoke(c.ctx(), "a", true)
			if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: a.Fence, Forced: true}); err != nil || r != want {
				t.Errorf("revoked: %+v, %v, want %+v", r, err, want)
			}
			b := w.got() // whatever the old holder does
			if b.Fence <= a.Fence {
				t.Errorf("fence %d after %d", b.Fence, a.Fence)
			}
			<-a.Context().Done()
			if problem.CodeOf(a.Err()) != problem.ClaimLost {
				t.Errorf("the holder got %v", a.Err())
			}
			c.release(one, a)
			c.sound()
			if d, err := two.Pool(c.ctx(), "db"); err != nil || d.Claimed != 1 {
				t.Errorf("%d slots are held, %v", d.Claimed, err)
			}
		})
	}
}

// Its host need not watch the pool.
func TestAHolderLearnsThatItsSlotsWereFreed(t *testing.T) {
	for name, tc := range map[string]struct{ full, bridge bool }{
		"a claim": {}, "while etcd is full": {full: true}, "a bridge, without a holder": {bridge: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.pool(1)
				one, two := b.engine("one"), b.engine("two")
				a, err := one.Claim(t.Context(), &pool.Request{ID: "a", Slots: db(1), Bridge: tc.bridge})
				if err != nil {
					t.Fatal(err)
				}
				now, err := pool.Read(t.Context(), b.root, b.keys)
				if err != nil {
					t.Fatal(err)
				}
				one.by.Freeze() // the revocation stays
				operator := b.root.Peer()
				defer operator.Close()
				operator.Inject(func(call storetest.Call) storetest.Fault {
					if tc.full && call.Op == storetest.OpGrant {
						return storetest.Fault{Drop: true, Err: store.ErrNoSpace}
					}
					return storetest.Fault{}
				})
				revoker, revocations := pool.Revoker{Backend: operator, Keys: b.keys}, 0
				if tc.bridge {
					err = revoker.FreeBridge(t.Context(), now, "a", a.Fence)
				} else {
					var r pool.Revocation
					r, err = revoker.Free(t.Context(), now, "a", a.Fence)
					if want := (pool.Revocation{Claim: "a", Host: "one", Instance: "test", Fence: a.Fence, Forced: true, Unnotified: tc.full}); r != want {
						t.Errorf("freed: %+v, want %+v", r, want)
					}
					if !tc.full {
						revocations = 1
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := b.keysUnder(b.keys.Revocations("one")); got != revocations {
					t.Errorf("%d revocations were put, want %d", got, revocations)
				}
				b.got(<-two.ask("b", 1, 0))
				one.by.Thaw()
				time.Sleep(time.Second)
				synctest.Wait()
				if ended := a.Context().Err() != nil; ended == tc.full {
					t.Errorf("the old holder has learned of it: %v, %v", ended, a.Err())
				}
				if got := b.keysUnder(b.keys.Revocations("one")); got != 0 {
					t.Errorf("%d revocations are left", got)
				}
			})
		})
	}
}

// shown reports whether etcd shows a claim.
func (b *bubble) shown(id string) bool {
	b.t.Helper()
	r, err := pool.Read(b.t.Context(), b.root, b.keys)
	if err != nil {
		b.t.Fatal(err)
	}
	_, err = r.Why(id)
	return err == nil
}

// regranted has an engine hold a claim that etcd does not show, and returns the one that it shows.
func (b *bubble) regranted(one *guest) (before string, has *pool.Claim) {
	before, has = "a0", b.got(<-one.ask("a0", 1, 0))
	for i := 1; b.shown(has.ID); i++ {
		time.Sleep(100 * time.Millisecond)
		b.release(one, has)
		before, has = has.ID, b.got(<-one.ask(fmt.Sprint("a", i), 1, 0))
	}
	return before, has
}

// A claim that etcd does not show is freed by force, also if its holder has to stop and does not.
func TestAClaimThatEtcdDoesNotShowIsFreedByForce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		reg, revoker := registry.Registry{Backend: b.root, Keys: b.keys}, pool.Revoker{Backend: b.root, Keys: b.keys}
		limit, retain := 1, 4*time.Second
		if _, err := reg.Set(t.Context(), "db", pool.Change{Limit: &limit, Retain: &retain}); err != nil {
			t.Fatal(err)
		}
		one := b.engine("one")
		_, has := b.regranted(one)
		has.Supervise(true)
		if err := revoker.RequestRevocation(t.Context(), "one", has.ID, has.Fence); err != nil {
			t.Fatal(err)
		}
		<-has.Context().Done()
		one.Show(t.Context(), has.ID)
		if _, err := revoker.Revoke(t.Context(), has.ID, true); err != nil {
			t.Error(err)
		}
	})
}

// A claim that slots were granted to without a write keeps them if an operator frees the claim before
// it by force, even if the pool retains nothing any more: the host has not shown it yet.
func TestAReleaseByForceAsksTheHostWhoHasTheSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		set := func(retain time.Duration) {
			limit := 1
			if _, err := (registry.Registry{Backend: b.root, Keys: b.keys}).Set(t.Context(), "db", pool.Change{Limit: &limit, Retain: &retain}); err != nil {
				t.Fatal(err)
			}
		}
		set(4 * time.Second)
		one := b.engine("one")
		before, has := b.regranted(one)
		one.by.Freeze()
		set(0)
		revoked := make(chan error, 1)
		go func() {
			_, err := (pool.Revoker{Backend: b.root, Keys: b.keys}).Revoke(t.Context(), before, true)
			revoked <- err
		}()
		time.Sleep(500 * time.Millisecond)
		one.by.Thaw()
		if err := <-revoked; problem.CodeOf(err) != problem.ClaimNotFound {
			t.Errorf("claim %s, which has ended, is freed: %v", before, err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if has.Err() != nil || !b.shown(has.ID) {
			t.Errorf("claim %s is gone: %v", has.ID, has.Err())
		}
	})
}

func TestTheNextLifeOfAnInstanceTakesItsClaimsOver(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	c.pool("wide", 1000)
	before := c.stoppable("one")
	a := c.claim(before.Engine, "a", db(2), func(r *pool.Request) {
		r.Holder.Run, r.Holder.PID, r.Holder.Bind, r.Priority = "nightly", 7, "pid 7", 3
	})
	w := c.claim(before.Engine, "w", map[string]int{"wide": 1000, "db": 1})
	c.wait(before.Engine, "waits", db(5))
	before.stop()
	if a.Context().Err() != nil {
		t.Errorf("a stop ends validity by itself: %v", a.Err())
	}

	c.adopt = []store.LeaseID{a.Lease}
	now := c.engine("one", func(cfg *pool.Config) { cfg.Leases = before.leases })
	claims, err := now.Adopted(c.ctx())
	if err != nil || len(claims) != 2 {
		t.Fatalf("taken over are %v, %v", claims, err)
	}
	for i, was := range []*pool.Claim{a, w} {
		is := claims[i]
		if is.ID != was.ID || is.Fence != was.Fence || is.Lease != was.Lease || is.Keys != was.Keys || is.Priority != was.Priority ||
			is.Holder.Bind != was.Holder.Bind || is.Holder.PID != was.Holder.PID || !is.ClaimedAt.Equal(was.ClaimedAt) || is.Context().Err() != nil {
			t.Errorf("taken over is %+v, want %+v", is, was)
		}
	}
	// Its client comes again and finds it.
	same := c.claim(now, "a", db(2), func(r *pool.Request) {
		r.Holder.Run, r.Holder.PID, r.Holder.Bind, r.Priority = "nightly", 7, "pid 7", 3
	})
	if same != claims[0] {
		t.Error("the same request makes another claim")
	}
	c.sound()
	c.release(now, claims...)
	eventually(t, "nothing is held", func() bool { h, _ := c.read().Claims(); return len(h) == 0 })
}

func TestWhatIsNoClaimOnAnAdoptedLeaseIsGivenBack(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	lease, _, err := c.client.Grant(c.ctx(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	part := func(key string, value string) { c.txn(store.Put(key, []byte(value), lease)) }
	// Part of a claim, and a claim of another instance.
	part(c.keys.Slot("db", 0, 0), `{"v":1,"n":1,"claim":"torn","main":"db/3/0"}`)
	part(c.keys.Slot("db", 1, 0), `{"v":1,"n":1,"claim":"foreign","record":{"pools":{"db":1},"holder":{"host":"two","instance":"test"},"since":"2026-01-01T00:00:00Z"}}`)
	c.adopt = []store.LeaseID{lease}
	e := c.engine("one")
	claims, err := e.Adopted(c.ctx())
	if err != nil || len(claims) != 0 {
		t.Errorf("taken over are %v, %v", claims, err)
	}
	eventually(t, "the slots are free", func() bool { return c.keysUnder(c.keys.Slots("db")) == 0 })
	c.claim(e, "a", db(5))
}

func TestAnEngineThatStopsRefusesWhatWaits(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.stoppable("one")
	a := c.claim(e.Engine, "a", db(1))
	w := c.wait(e.Engine, "b", db(1))
	if err := e.Stop(c.ctx()); err != nil {
		t.Fatal(err)
	}
	w.refused(problem.Stopping)
	c.refused(problem.Stopping, e.Engine, "c", db(1))
	c.wantWaiters()
	same := c.claim(e.Engine, "a", db(1)) // what is held is found still
	if same != a || a.Context().Err() != nil {
		t.Errorf("the claim that is held has ended: %v", a.Err())
	}
	c.release(e.Engine, a)
	c.empty()
	e.stop()
	if _, err := e.Claim(c.ctx(), &pool.Request{ID: "d", Slots: db(1)}); problem.CodeOf(err) != problem.Stopping {
		t.Errorf("a claim after the end: %v", err)
	}
	if err := e.Release(c.ctx(), a); err != nil && problem.CodeOf(err) != problem.Stopping {
		t.Errorf("a release after the end: %v", err)
	}
	if _, err := e.Pools(c.ctx()); problem.CodeOf(err) != problem.Stopping {
		t.Errorf("a read after the end: %v", err)
	}
	if err := e.RemoveGuard(c.ctx()); err != nil || c.keysUnder(c.keys.Guards("one")) != 0 {
		t.Errorf("the guard is left: %v", err)
	}
}

func TestTheEndOfAnInstanceEndsAllClaims(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	why := problem.New(problem.ClaimLost, "the end")
	ended := c.engine("one")
	a := c.claim(ended, "a", db(1))
	ended.End(why)
	<-a.Context().Done()
	if !errors.Is(a.Err(), why) {
		t.Errorf("the holder got %v", a.Err())
	}
	c.refused(problem.Stopping, ended, "b", db(1))
	c.release(ended, a) // still possible

	abandoned := c.stoppable("two")
	b := c.claim(abandoned.Engine, "b", db(1))
	abandoned.stop()
	abandoned.Abandon(why)
	if b.Context().Err() == nil || !errors.Is(b.Err(), why) {
		t.Errorf("the holder got %v", b.Err())
	}
}
