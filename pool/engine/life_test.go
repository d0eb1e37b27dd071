package engine

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// The claims on a lease that is lost end here; their slots stay taken until they are released.
func TestALostLeaseEndsItsClaims(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		one := r.start("one")
		a, b := one.take("a", 1), one.take("b", 1)
		why := errors.New("no renewal succeeded")
		waits := one.ask("waits", 2)
		one.LeaseLost(a.Lease, why)
		time.Sleep(time.Second)
		for _, c := range []*pool.Claim{a, b} {
			if r.isLost(c); !errors.Is(c.Err(), why) {
				r.Errorf("the cause is missing in %v", c.Err())
			}
		}
		if n := r.left(r.keys.Slots("db")); n != 2 {
			r.Errorf("%d slots are taken", n)
		}
		if _, err := one.Claim(r.Context(), request("a")); problem.CodeOf(err) != problem.ClaimLost {
			r.Errorf("asked for again: %v", err)
		}
		waits.waits()
		if n, err := one.Unfinished(r.Context()); n != 2 || err != nil {
			r.Errorf("%d claims have slots: %v", n, err)
		}
		one.release(a, b)
		one.release(waits.got())
		r.nothingLeft()
	})
}

// A claim whose lease is lost during a combined release ends when that fails, and so does one at the end of its instance.
func TestALostLeaseEndsAClaimThatIsNotReleased(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one := r.start("one")
		one.slowWrites(time.Second)
		fails := func(meanwhile func(*pool.Claim)) {
			a := one.take("a", 1)
			x := store.Extra{If: []*pb.Compare{store.CreateEquals("/b/absent", 1)}}
			if _, err := one.ReleaseWith(r.Context(), a, x, nil, func() { meanwhile(a) }); !errors.Is(err, store.ErrChanged) {
				r.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			r.isLost(a)
			one.release(a)
		}
		fails(func(a *pool.Claim) {
			r.must(nil, r.root.Revoke(r.Context(), a.Lease))
			one.keeper.Suspect(a.Lease)
		})
		fails(func(*pool.Claim) { one.End(problem.New(problem.ClaimLost, "the end")) })
	})
}

// A claim that waits is served, in its place, though the lease of its demand is lost.
func TestADemandOnALostLeaseIsPutAgain(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one, two := r.start("one"), r.start("two")
		held := two.take("held", 1)
		first, second := one.ask("first", 1), two.ask("second", 1)
		all, err := store.ReadAll(r.Context(), r.root, r.keys.Demands("db", "one", "i"))
		r.must(nil, err)
		for _, kv := range all.KVs {
			r.must(nil, r.root.Revoke(r.Context(), store.LeaseID(kv.Lease)))
		}
		time.Sleep(30 * time.Second)
		first.waits()
		second.waits()
		two.release(held)
		time.Sleep(10 * time.Second)
		one.release(first.got())
		two.release(second.got())
		r.nothingLeft()
	})
}

// What waits is refused when an instance stops, and nothing of it is left. What is held stays so until End.
func TestStopAndEnd(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one, two := r.start("one"), r.start("two")
		held := one.take("held", 1)
		a, b := one.ask("a", 1), two.ask("b", 1)
		begun := time.Now()
		r.must(nil, one.Stop(r.Context()))
		if took := time.Since(begun); took >= leaveTimeout {
			r.Errorf("it took %s", took)
		}
		a.refused(problem.Stopping)
		if _, err := one.Claim(r.Context(), request("new")); problem.CodeOf(err) != problem.Stopping {
			r.Errorf("%v", err)
		}
		if same, err := one.Claim(r.Context(), request("held")); same != held {
			r.Errorf("asked for again: %v, %v", same, err)
		}
		if n := r.left(r.keys.Demands("db", "one", "i")); n > 0 {
			r.Errorf("%d demands keys are left", n)
		}
		r.isHeld(held)
		why := problem.New(problem.ClaimLost, "the end")
		one.End(why)
		time.Sleep(time.Second)
		if !errors.Is(held.Err(), why) {
			r.Errorf("%v", held.Err())
		}
		if n, _ := one.Unfinished(r.Context()); n != 1 {
			r.Errorf("%d unfinished", n)
		}
		b.waits()
		one.release(held)
		two.release(b.got())
		one.stopRun()
		if _, err := one.Claim(r.Context(), request("late")); problem.CodeOf(err) != problem.Stopping {
			r.Errorf("%v", err)
		}
		r.must(nil, one.RemoveGuard(r.Context()))
		if n := r.left(r.keys.Guards("one")); n > 0 {
			r.Errorf("%d guards are left", n)
		}
	})
}

// When the dispatcher stops, an instance that waits follows it: the queue goes on with its next poll.
func TestAnotherInstanceFollowsADispatcherThatStops(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one, two, three := r.start("one"), r.start("two"), r.start("three")
		held := three.take("held", 1)
		first := one.ask("first", 1) // it dispatches now
		b := two.ask("b", 1)
		r.must(nil, one.Stop(r.Context()))
		first.refused(problem.Stopping)
		begun := time.Now()
		three.release(held)
		two.release(b.got())
		if took := time.Since(begun); took > 1500*time.Millisecond {
			r.Errorf("it took %s", took)
		}
	})
}

// Claims that were abandoned end here, and stay in etcd.
func TestAbandonedClaimsStayInEtcd(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		one := r.start("one")
		a := one.take("a", 1)
		waits := one.ask("waits", 2)
		one.stopRun()
		waits.refused(problem.Stopping)
		r.isHeld(a)
		why := problem.New(problem.ClaimLost, "left to the next process")
		one.Abandon(why)
		if !errors.Is(a.Err(), why) || r.left(r.keys.Slots("db")) != 1 {
			r.Errorf("%v, %d slots", a.Err(), r.left(r.keys.Slots("db")))
		}
	})
}

// A claim whose slots are being taken when the instance stops is given back.
func TestStopGivesBackWhatIsBeingTaken(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one := r.start("one")
		one.release(one.take("warm", 1))
		one.slowWrites(300 * time.Millisecond)
		a := make(chan outcome, 1)
		go func() {
			c, err := one.Claim(r.Context(), request("a"))
			a <- outcome{c, err}
		}()
		time.Sleep(100 * time.Millisecond)
		if n, _ := one.Unfinished(r.Context()); n != 1 {
			r.Errorf("%d unfinished", n)
		}
		r.must(nil, one.Stop(r.Context()))
		if o := <-a; problem.CodeOf(o.err) != problem.Stopping {
			r.Errorf("%v", o.err)
		}
		r.nothingLeft()
	})
}

// No pool is left pending by an instance that stops while a claim begins to wait.
func TestStopLeavesNoPoolPending(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		one := r.start("one")
		held := one.take("held", 1)
		one.slowWrites(300 * time.Millisecond)
		a := make(chan error, 1)
		go func() {
			_, err := one.Claim(r.Context(), request("a"))
			a <- err
		}()
		time.Sleep(500 * time.Millisecond) // its demand is on its way
		r.must(nil, one.Stop(r.Context()))
		if err := <-a; problem.CodeOf(err) != problem.Stopping {
			r.Errorf("%v", err)
		}
		one.release(held)
		time.Sleep(5 * time.Second)
		r.nothingLeft()
		if n := r.left(r.keys.Pending("db")); n > 0 {
			r.Error("pool db is left pending")
		}
	})
}
