package pool_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

func TestSeveralPoolsAreClaimedAllOrNone(t *testing.T) {
	c := newCluster(t)
	for _, p := range []string{"a", "b", "c"} {
		c.pool(p, 2)
	}
	e := c.engine("one")
	held := c.claim(e, "held", map[string]int{"b": 2})
	w := c.wait(e, "all", map[string]int{"a": 2, "b": 1, "c": 1})
	other := c.claim(e, "other", map[string]int{"a": 1}) // nothing is kept for it
	c.release(e, held)
	c.refused(problem.NoCapacity, e, "late", map[string]int{"a": 2})
	c.release(e, other)
	all := w.got()
	if all.Keys != 4 { // a: 2 groups of 1; b and c: one each
		t.Errorf("it has %d keys", all.Keys)
	}
	pools, err := e.Pools(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, p := range pools {
		got[p.Name] = p.Claimed
	}
	if want := map[string]int{"a": 2, "b": 1, "c": 1}; !maps.Equal(got, want) {
		t.Errorf("claimed are %v, want %v", got, want)
	}
	c.sound()
	c.release(e, all)
	c.empty()
}

func TestPoolsInOppositeOrderDoNotBlockEachOther(t *testing.T) {
	c := newCluster(t)
	c.pool("a", 1)
	c.pool("b", 1)
	engines := []*pool.Engine{c.engine("one"), c.engine("two")}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			e := engines[i%2]
			slots := map[string]int{"a": 1, "b": 1}
			if i%3 == 0 {
				delete(slots, []string{"a", "b"}[i/3%2])
			}
			for j := range 4 {
				c.release(e, c.ask(e, fmt.Sprintf("c%d-%d", i, j), slots).got())
			}
		})
	}
	wg.Wait()
	c.empty()
}

// wideSlots names n pools that it makes, and asks for all their slots.
func (c *cluster) wideSlots(n, limit int) map[string]int {
	c.t.Helper()
	slots := map[string]int{}
	for i := range n {
		name := fmt.Sprintf("p%02d", i)
		c.pool(name, limit)
		slots[name] = limit
	}
	return slots
}

func TestWideClaimsTakeWholePools(t *testing.T) {
	for name, tc := range map[string]struct{ pools, limit, keys int }{
		"1,000 slots of 3 pools":                     {3, 1000, 150},
		"more than 32 keys and less than 60":         {1, 40, 40},
		"just too many keys for a release in one go": {1, 1000, 50},
		"1,600 keys of 32 pools":                     {pool.MaxPools, 500, pool.MaxKeys},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			slots := c.wideSlots(tc.pools, tc.limit)
			one, two := c.engine("one"), c.engine("two")
			claim := c.claim(one, "wide", slots)
			if claim.Keys != tc.keys || !maps.Equal(claim.Slots, slots) {
				t.Errorf("it has %d keys, want %d", claim.Keys, tc.keys)
			}
			c.sound()
			if n := c.keysUnder(c.keys.Slots("p00")); n != tc.keys/tc.pools {
				t.Errorf("%d keys are in the first pool", n)
			}
			c.seen(claim.Fence.Revision())
			c.refused(problem.NoCapacity, two, "narrow", map[string]int{"p00": 1})
			narrow := c.wait(two, "narrow", map[string]int{"p00": 1})
			again := c.wait(two, "again", slots)
			c.release(one, claim)
			c.release(two, narrow.got())
			c.release(two, again.got())
			c.empty()
		})
	}
}

func TestClaimsBeyondTheBoundsAreRefusedWithTheNumbers(t *testing.T) {
	c := newCluster(t)
	e := c.engine("one")
	many := map[string]int{}
	for i := range pool.MaxPools + 1 {
		many[fmt.Sprint("p", i)] = 1
	}
	c.refused(problem.Invalid, e, "a", many)
	c.pool("db", pool.MaxLimit)
	c.refused(problem.Invalid, e, "a", db(pool.MaxLimit+1))
	c.release(e, c.claim(e, "a", db(pool.MaxLimit)))
	c.pool("open", pool.Unlimited)
	c.release(e, c.claim(e, "b", map[string]int{"open": pool.MaxLimit}), c.claim(e, "c", map[string]int{"open": 1}))
	c.empty()
}

// with adds conditions and writes to a request.
func with(ifs []*pb.Compare, then ...*pb.RequestOp) func(*pool.Request) {
	return func(r *pool.Request) { r.Extra = store.Extra{If: ifs, Then: then} }
}

func put(key string) *pb.RequestOp { return store.Put(key, []byte("x"), 0) }

// mod returns the revision of a key, 0 for one that is not there.
func (c *cluster) mod(key string) int64 {
	c.t.Helper()
	resp, err := c.client.Range(c.ctx(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	return resp.Kvs[0].ModRevision
}

func TestWhatGoesWithAClaimHappensWithItOrNot(t *testing.T) {
	for name, slots := range map[string]map[string]int{
		"one key":            db(1),
		"a few":              {"db": 3, "other": 1},
		"too many for a few": {"db": 45, "other": 1},
		"150":                {"db": 1000, "other": 1000, "third": 1000},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			for p, n := range slots {
				c.pool(p, n)
			}
			e := c.engine("host")
			free := []*pb.Compare{store.CreateEquals("/side/taken", 0)}
			claim := c.claim(e, "a", slots, with(free, put("/side/taken"), put("/side/other")))
			if c.mod("/side/taken") != claim.Fence.Revision() || c.mod("/side/other") != claim.Fence.Revision() {
				t.Errorf("what goes with it was put at %d and %d, the claim at %d", c.mod("/side/taken"), c.mod("/side/other"), claim.Fence)
			}
			c.release(e, claim)
			c.refused(problem.Precondition, e, "b", slots, with(free, put("/side/wrong")))
			if c.mod("/side/wrong") != 0 {
				t.Error("a claim was refused, and what goes with it has happened")
			}
			// One that has to wait first finds the same.
			held := c.claim(e, "held", slots)
			w := c.wait(e, "c", slots, with([]*pb.Compare{store.Present("/side/taken")}, store.Delete("/side/taken")))
			c.release(e, held)
			c.release(e, w.got())
			if c.mod("/side/taken") != 0 {
				t.Error("what goes with it has not happened")
			}
			c.empty()
		})
	}
}

func TestAFailedConditionHarmsNoOther(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 50)
	e := c.engine("one")
	var wg sync.WaitGroup
	for i := range 30 { // many share a transaction
		wg.Go(func() {
			id := fmt.Sprint("c", i)
			if i%3 == 0 {
				c.refused(problem.Precondition, e, id, db(1), with([]*pb.Compare{store.Present("/side/no")}, put("/side/"+id)))
				return
			}
			c.claim(e, id, db(1), with(nil, put("/side/"+id)))
		})
	}
	wg.Wait()
	held, err := e.Held(c.ctx())
	if err != nil || len(held) != 20 || c.keysUnder("/side/") != 20 {
		t.Errorf("%d claims and %d writes, %v", len(held), c.keysUnder("/side/"), err)
	}
	for _, cl := range held {
		if c.mod("/side/"+cl.ID) != cl.Fence.Revision() {
			t.Errorf("claim %s has fence %d, its write %d", cl.ID, cl.Fence, c.mod("/side/"+cl.ID))
		}
	}
	c.sound()
}

func TestTooMuchToGoWithAClaimIsRefused(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	e := c.engine("one")
	most := func(n int) func(*pool.Request) {
		var ops []*pb.RequestOp
		var cmps []*pb.Compare
		for i := range n {
			ops = append(ops, put(fmt.Sprint("/side/", i)))
			cmps = append(cmps, store.CreateEquals(fmt.Sprint("/side/", i), 0))
		}
		return with(cmps, ops...)
	}
	c.refused(problem.Internal, e, "a", db(1), most(17))
	c.release(e, c.claim(e, "a", db(1), most(16)))
	if n := c.keysUnder("/side/"); n != 16 {
		t.Errorf("%d writes have happened", n)
	}
	slots := c.wideSlots(pool.MaxPools, 500)
	c.txn(&pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("/side/"), RangeEnd: store.RangeEnd("/side/")}}})
	held := c.claim(e, "held", map[string]int{"p00": 1})
	w := c.wait(e, "widest", slots, most(16)) // with a waiter in each pool
	c.release(e, held)
	claim := w.got()
	if claim.Keys != pool.MaxKeys || c.keysUnder("/side/") != 16 {
		t.Errorf("%d keys, %d writes", claim.Keys, c.keysUnder("/side/"))
	}
	c.sound()
	c.release(e, claim)
	c.empty()
}

func TestClaimsOfOneHostAreListed(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 5)
	one, two := c.engine("one"), c.engine("two")
	a := c.claim(one, "a", db(1))
	b := c.claim(two, "b", db(2))
	c.seen(b.Fence.Revision())
	held, err := one.Held(c.ctx())
	if err != nil || !slices.Equal(held, []*pool.Claim{a}) {
		t.Errorf("one holds %v, %v", held, err)
	}
	if got, err := one.Lookup(c.ctx(), "a"); err != nil || got != a {
		t.Errorf("looked up %v, %v", got, err)
	}
	if got, err := one.Lookup(c.ctx(), "b"); err != nil || got != nil {
		t.Errorf("looked up %v, %v", got, err)
	}
	holders, waiters, err := two.Claims(c.ctx())
	if err != nil || len(holders) != 2 || len(waiters) != 0 || holders[0].Claim != "a" || holders[1].Claim != "b" {
		t.Errorf("all hosts hold %+v, %v", holders, err)
	}
	if holders[1].Fence != b.Fence || holders[1].Lease != b.Lease || holders[1].Slots != 2 || !holders[1].Since.Equal(b.ClaimedAt) {
		t.Errorf("b is %+v, want %+v", holders[1], b)
	}
}
