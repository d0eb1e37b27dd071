package pool_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

func TestAPausedPoolKeepsItsWaitersAndHolders(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	one, two := c.engine("one"), c.engine("two")
	a := c.claim(one, "a", db(1))
	first, second := c.wait(two, "first", db(1)), c.wait(one, "second", db(1))
	yes, no := true, false
	c.change("db", pool.Change{Paused: &yes})
	c.release(one, a)
	c.refused(problem.NoCapacity, two, "hasty", db(1))
	c.wantWaiters("first", "second")
	third := c.wait(two, "third", db(1))
	c.change("db", pool.Change{Paused: &no})
	c.release(two, first.got())
	c.release(one, second.got())
	c.release(two, third.got())
	c.empty()
}

func TestAClosedPoolKeepsItsWaiters(t *testing.T) {
	c := newCluster(t)
	c.pool("db", pool.Closed)
	e := c.engine("one")
	w := c.wait(e, "a", db(2))
	c.pool("db", 2)
	claim := w.got()
	c.pool("db", pool.Closed) // the holder stays
	if claim.Context().Err() != nil {
		t.Error(claim.Err())
	}
	c.refused(problem.NoCapacity, e, "b", db(1))
	c.sound() // to be above a limit that was lowered is legal
	c.release(e, claim)
	c.empty()
}

func TestALimitTakesEffectWhileClaimsAreHeld(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	one, two := c.engine("one"), c.engine("two")
	var held []*pool.Claim
	for i := range 5 {
		held = append(held, c.claim(one, fmt.Sprint("a", i), db(1)))
	}
	wide, narrow := c.wait(two, "wide", db(3)), c.wait(one, "narrow", db(1))
	c.pool("db", 2)
	if p := c.refused(problem.ExceedsLimit, two, "new", db(3), within(time.Hour)); p.Field != "pools.db" {
		t.Errorf("%q of field %q", p.Message, p.Field)
	}
	for _, cl := range held[:3] {
		c.release(one, cl)
		c.sound()
	}
	c.wantWaiters("wide", "narrow") // the pool is above its limit, or full
	c.release(one, held[3])
	n := narrow.got()
	c.refused(problem.NoCapacity, two, "b", db(1))
	c.pool("db", 9) // another layout
	w := wide.got()
	more := c.claim(two, "b", db(4))
	c.refused(problem.NoCapacity, two, "c", db(1))
	c.sound()
	c.pool("db", pool.Unlimited)
	many := c.claim(two, "c", db(1000))
	c.release(one, held[4], n)
	c.release(two, w, more, many)
	c.empty()
}

func TestLimitsChangeUnderLoadWithoutAnAdmissionAboveThem(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	engines := []*pool.Engine{c.engine("one"), c.engine("two")}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			e := engines[i%2]
			for j := 0; !stop.Load(); j++ {
				claim, err := e.Claim(c.ctx(), &pool.Request{ID: fmt.Sprintf("c%d-%d", i, j), Slots: db(1 + i%2), Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				c.release(e, claim)
			}
		})
	}
	for _, limit := range []int{2, 9, 2, 60, 3, 5, pool.Unlimited, 4} {
		c.pool("db", limit)
		for range 5 {
			c.sound() // names a holder that was admitted above the limit
		}
	}
	stop.Store(true)
	wg.Wait()
	c.empty()
}

func TestADeletedPoolRefusesItsWaitersAndKeepsItsHolders(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	c.pool("other", 1)
	one, two := c.engine("one"), c.engine("two")
	a := c.claim(one, "a", db(1))
	w := c.wait(two, "b", map[string]int{"db": 1, "other": 1})
	rev, err := c.reg.Delete(c.ctx(), "db", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.refused(problem.PoolNotFound)
	c.seen(rev)
	d, err := two.Pool(c.ctx(), "db")
	if err != nil || !d.Deleted || d.Claimed != 1 || len(d.Holders) != 1 {
		t.Errorf("the pool is shown as %+v, %v", d, err)
	}
	if a.Context().Err() != nil {
		t.Errorf("its holder got %v", a.Err())
	}
	c.refused(problem.PoolNotFound, two, "c", db(1))
	// What is held counts when the pool is made again.
	c.pool("db", 1)
	c.refused(problem.NoCapacity, two, "c", db(1))
	again := c.wait(two, "c", db(1))
	c.release(one, a)
	c.release(two, again.got())
	if _, err := c.reg.Delete(c.ctx(), "db", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing of the pool is shown", func() bool {
		_, err := one.Pool(c.ctx(), "db")
		return problem.CodeOf(err) == problem.PoolNotFound
	})
}

// A claim from a pool that was created elsewhere is not refused, even if the view comes up to
// that while etcd is asked about it.
func TestAClaimFromANewPoolIsNotRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		one := b.engine("one")
		for range 2 { // often: from now on it watches
			<-one.ask("none", 1, 0)
		}
		synctest.Wait()
		asked, hold := make(chan struct{}, 1), make(chan struct{})
		one.by.Inject(func(call storetest.Call) storetest.Fault {
			if call.Op != storetest.OpTxn || len(call.Txn.Compare) > 0 || len(call.Txn.Success) != 1 || call.Txn.Success[0].GetRequestRange() == nil {
				return storetest.Fault{}
			}
			asked <- struct{}{}
			return storetest.Fault{Hold: hold}
		})
		one.by.Freeze()
		b.pool(1)
		done := one.ask("a", 1, 0)
		<-asked
		one.by.Thaw()
		synctest.Wait()
		close(hold)
		b.got(<-done)
	})
}

// What a list has shown of another's claim, or of a key that can't be read, is known to a claim
// that follows it, even if the view is behind.
func TestAClaimKnowsWhatAListHasShown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		one, two := b.engine("one"), b.engine("two")
		behind := func(end func()) {
			t.Helper()
			one.by.Freeze()
			end()
			done := one.ask("a", 1, 0)
			synctest.Wait()
			one.by.Thaw()
			b.release(one, b.got(<-done))
		}
		a := b.got(<-two.ask("a", 1, 0))
		if r := <-one.ask("a", 1, 0); problem.CodeOf(r.err) != problem.IDInUse {
			t.Fatal(r.err)
		}
		behind(func() { b.release(two, a) })
		key := b.keys.Slot("db", 0, 7)
		do := func(op *pb.RequestOp) {
			if _, err := b.root.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{op}}); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		do(store.Put(key, []byte("{"), 0))
		if r := <-one.ask("a", 1, 0); problem.CodeOf(r.err) != problem.CorruptValue {
			t.Fatal(r.err)
		}
		behind(func() { do(store.Delete(key)) })
	})
}
