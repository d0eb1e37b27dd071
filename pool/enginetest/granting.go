package enginetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// granting has what a claim is granted, and when it is not.
var granting = []behavior{
	{"a claim takes its slots and a release frees them", claimAndRelease, everywhere},
	{"a claim of several pools takes all or none", allOrNone, everywhere},
	{"claims of pools in opposite order do not block each other", oppositeOrder, everywhere},
	{"a claim may take a whole pool and pools of many slots", wholePools, everywhere},
	{"many clients of several hosts never exceed a limit and all are granted", manyClients, everywhere},
	{"claims that lose races are granted in the end", lostRaces, standIn},
	{"claims of many slots and of few that come together are all granted", manyAndFew, everywhere},
	{"claims that come together share transactions", sharedTransactions, standIn},
	{"what goes with a claim happens in its revision or not at all", withExtra, everywhere},
	{"a condition that fails refuses one of many claims", oneCondition, everywhere},
	{"keys that go with a claim end with its lease", leasedKeys, standIn},
	{"requests beyond the bounds are refused with the field", beyondBounds, everywhere},
	{"a claim that does not wait is granted slots that nobody waits for", backfill, everywhere},
	{"a claim that does not wait does not pass a claim that waits for the slots", doesNotPass, everywhere},
	{"a gated run that does not fit is refused and its record is not written", gatedRun, everywhere},
	{"prospects are what would be granted", prospects, everywhere},
	{"prospects leave what is reserved for a claim that waits", prospectsReserved, standIn},
	{"observers are called when a claim waits and when it is written", observers, everywhere},
	{"a claim waits only for pools that are short", onlyWhereShort, everywhere},
	{"a claim that fits is not delayed by one of several pools that does not", fitsBesides, everywhere},
}

// grant is what a claim was granted, to be compared.
type grant struct {
	ID        string
	Slots     map[string]int
	Fence     store.Fence
	Lease     store.LeaseID
	Holder    pool.Holder
	Priority  int
	ClaimedAt time.Time
	Keys      int
	Extra     []*pb.ResponseOp
}

func grantOf(c *pool.Claim) grant {
	return grant{c.ID, c.Slots, c.Fence, c.Lease, c.Holder, c.Priority, c.ClaimedAt, c.Keys, c.Extra}
}

func claimAndRelease(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	holder := pool.Holder{ClaimedBy: "user:alice", Run: "nightly", Step: "load", PID: 7, Labels: map[string]string{"team": "x"}, Bind: "pid"}
	a := one.take("a", slots(2), priority(7), func(r *pool.Request) { r.Holder = holder })
	g := grantOf(a)
	holder.Host, holder.Instance = "one", "test"
	w.same("it is granted", g, grant{
		ID: "a", Slots: slots(2), Priority: 7, Holder: holder, Extra: g.Extra,
		Fence: g.Fence, Lease: g.Lease, Keys: g.Keys, ClaimedAt: g.ClaimedAt,
	})
	if g.Fence.Revision() <= 0 || g.Lease == 0 || g.Keys < 1 {
		w.Errorf("its fence is %d, on lease %d with %d keys", g.Fence, g.Lease, g.Keys)
	}
	w.held(a)
	w.wantUsed("db", 2)
	two.refuses(problem.NoCapacity, "b", slots(2))
	b := two.take("b", slots(1))
	if b.Fence <= g.Fence {
		w.Errorf("fence %d after %d", b.Fence, g.Fence)
	}
	w.wantUsed("db", 3)
	one.release(a, a) // the second is no error
	if a.Err() != nil || a.Context().Err() == nil || !a.Freed() {
		w.Errorf("after its release: %v, freed %t", a.Err(), a.Freed())
	}
	w.wantUsed("db", 1)
	two.release(b)
	w.empty()
}

func allOrNone(w world) {
	for _, p := range []string{"db", "api", "disk"} {
		w.pool(p, 2)
	}
	one, two := w.host("one"), w.host("two")
	all := map[string]int{"db": 1, "api": 2, "disk": 1}
	a := one.take("a", all)
	two.refuses(problem.NoCapacity, "b", all)
	w.wantUsed("db", 1)
	b := two.queued("b", map[string]int{"db": 1, "api": 1})
	w.wantUsed("db", 1)
	one.release(a)
	two.release(b.got())
	w.empty()
}

func oppositeOrder(w world) {
	w.pool("a", 1)
	w.pool("z", 1)
	hosts := []*host{w.host("one"), w.host("two")}
	var all sync.WaitGroup
	for i, h := range hosts {
		for n := range 10 {
			all.Go(func() {
				// Half of them hold one pool while they claim the other.
				first, second := "a", "z"
				if (i+n)%2 == 1 {
					first, second = second, first
				}
				c, err := h.Claim(w.ctx(), request(fmt.Sprintf("%d-%d", i, n), map[string]int{first: 1, second: 1}))
				if err == nil {
					err = h.Release(w.ctx(), c)
				}
				if err != nil {
					w.Error(err)
				}
			})
		}
	}
	all.Wait()
	w.empty()
}

func wholePools(w world) {
	w.pool("db", 1)
	w.pool("big", 3000)
	w.pool("bigger", 20000)
	one, two := w.host("one"), w.host("two")
	need := map[string]int{"db": 1, "big": 3000, "bigger": 20000}
	a := one.take("a", need)
	w.wantUsed("big", 3000)
	w.wantUsed("bigger", 20000)
	b := two.queued("b", need)
	one.release(a)
	two.release(b.got())
	w.empty()
}

func manyClients(w world) {
	const limit, hosts, clients, rounds = 5, 3, 8, 6
	w.pool("db", limit)
	var mu sync.Mutex
	now, most := 0, 0
	var all sync.WaitGroup
	for i := range hosts {
		h := w.host(fmt.Sprint("h", i))
		for n := range clients {
			all.Go(func() {
				for r := range rounds {
					size := 1 + (n+r)%2
					c, err := h.Claim(w.ctx(), request(fmt.Sprintf("%d-%d-%d", i, n, r), slots(size)))
					if err != nil {
						w.Error(err)
						return
					}
					mu.Lock()
					now += size
					most = max(most, now)
					mu.Unlock()
					<-time.After(time.Millisecond)
					mu.Lock()
					now -= size
					mu.Unlock()
					if err := h.Release(w.ctx(), c); err != nil {
						w.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	if most > limit {
		w.Errorf("%d slots were held, of %d", most, limit)
	}
	w.empty()
}

// lostRaces has three hosts fill a pool at the same time, each without knowing what the others have under way.
func lostRaces(w world) {
	w.pool("db", 60)
	hosts := []*host{w.host("one"), w.host("two"), w.host("three")}
	for _, h := range hosts {
		h.release(h.take("first", slots(1)))
		slowWrites(h, 5*time.Millisecond)
	}
	w.pass(time.Second)
	var all []*asked
	for i := range 60 {
		all = append(all, hosts[i%3].ask(fmt.Sprint("c", i), slots(1)))
	}
	for _, a := range all {
		if a.got(); a.took > 5*time.Second {
			w.Errorf("%s was granted after %s", a.id, a.took)
		}
	}
	w.wantUsed("db", 60)
	for _, a := range all {
		a.h.release(a.claim)
	}
	w.empty()
}

func manyAndFew(w world) {
	w.pool("db", 100)
	w.pool("wide", 30000)
	one := w.host("one")
	var all []*asked
	for i := range 12 {
		need := slots(1 + i)
		if i%4 == 0 {
			need = map[string]int{"wide": 10000, "db": 1}
		}
		all = append(all, one.ask(fmt.Sprint("c", i), need))
	}
	for _, a := range all {
		one.release(a.got())
	}
	w.empty()
}

func sharedTransactions(w world) {
	w.pool("db", 1000)
	h := w.host("one")
	h.release(h.take("first", slots(1))) // it has a lease now
	w.pass(time.Second)
	var txns atomic.Int64
	h.by.Inject(func(c storetest.Call) storetest.Fault {
		if !txnWrites(c) {
			return storetest.Fault{}
		}
		txns.Add(1)
		return storetest.Fault{Delay: 2 * time.Millisecond}
	})
	var all []*asked
	for i := range 200 {
		all = append(all, h.ask(fmt.Sprint("c", i), slots(1)))
	}
	for _, a := range all {
		a.got()
	}
	if n := txns.Load(); n > 50 {
		w.Errorf("200 claims took %d transactions", n)
	}
}

// extra has a claim write a key under a condition.
func extra(key string, conditions ...*pb.Compare) func(*pool.Request) {
	return func(r *pool.Request) {
		r.Extra = store.Extra{If: conditions, Then: []*pb.RequestOp{store.Put(key, []byte("x"), 0)}}
	}
}

func withExtra(w world) {
	w.pool("db", 1)
	one := w.host("one")
	key := w.key("extra")
	one.refuses(problem.Precondition, "a", slots(1), extra(key, store.Present(w.key("no"))))
	if w.has(key) {
		w.Error("it was written although the condition does not hold")
	}
	w.wantUsed("db", 0)
	b := one.take("b", slots(1), extra(key, store.CreateEquals(key, 0)))
	resp, err := w.etcd.any.Range(w.ctx(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != b.Fence.Revision() {
		w.Errorf("it has written %v, %v, at fence %d", resp, err, b.Fence)
	}
	// A claim that waits checks its condition when it is granted.
	c, d := one.queued("c", slots(1), extra(w.key("c"), store.Present(key))), one.queued("d", slots(1), extra(w.key("d"), store.Present(key)))
	w.txn(store.Delete(key))
	one.release(b)
	c.refused(problem.Precondition)
	d.refused(problem.Precondition)
	if w.has(w.key("c")) || w.has(w.key("d")) {
		w.Error("it was written although the condition did not hold any longer")
	}
	var stamped int
	one.release(one.take("e", slots(1), func(r *pool.Request) { r.Extra.Stamp = func(time.Time) { stamped++ } }))
	if stamped == 0 {
		w.Error("the time was not stamped")
	}
	w.empty()
}

func oneCondition(w world) {
	w.pool("db", 100)
	one := w.host("one")
	var all []*asked
	for i := range 40 {
		var with []func(*pool.Request)
		if i%4 == 3 {
			with = append(with, extra(w.key(fmt.Sprint(i)), store.Present(w.key("no"))))
		}
		all = append(all, one.ask(fmt.Sprint("c", i), slots(1), with...))
	}
	for i, a := range all {
		if i%4 == 3 {
			a.refused(problem.Precondition)
		} else {
			one.release(a.got())
		}
	}
	w.empty()
}

func leasedKeys(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1), func(r *pool.Request) {
		r.Extra.Leased = []*pb.RequestOp{store.Put(w.key("leased"), []byte("x"), 0)}
	})
	if !w.has(w.key("leased")) {
		w.Fatal("it was not written")
	}
	if err := w.etcd.any.Revoke(w.ctx(), a.Lease); err != nil {
		w.Fatal(err)
	}
	w.eventually("it ends with the lease", func() bool { return !w.has(w.key("leased")) })
	w.ended(a, problem.ClaimLost)
	one.release(a)
}

func beyondBounds(w world) {
	w.pool("db", 3)
	one := w.host("one")
	w.eventually("it is refused", func() bool { return one.refuses(problem.ExceedsLimit, "a", slots(4)) != nil })
	if p := one.refuses(problem.ExceedsLimit, "a", slots(4)); p.Field != "pools.db" {
		w.Errorf("field %q: %v", p.Field, p)
	}
	many := map[string]int{}
	for i := range pool.MaxPools + 1 {
		many[fmt.Sprint("p", i)] = 1
	}
	for _, need := range []map[string]int{{}, many, {"db": 0}, {"DB": 1}} {
		one.refuses(problem.Invalid, "a", need)
	}
	one.refuses(problem.Invalid, "a/b", slots(1))
	one.refuses(problem.Invalid, "a", slots(1), priority(pool.MaxPriority+1))
	one.refuses(problem.Invalid, "a", slots(1), func(r *pool.Request) { r.Holder.Labels = map[string]string{"": "x"} })
	one.refuses(problem.PoolNotFound, "a", map[string]int{"missing": 1})
	one.refuses(problem.Internal, "a", slots(1), func(r *pool.Request) {
		for range 17 {
			r.Extra.Then = append(r.Extra.Then, store.Put(w.key("x"), nil, 0))
		}
	})
	w.wantUsed("db", 0)
}

func backfill(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(2))
	wide := one.queued("wide", slots(2), priority(100))
	narrow := two.take("narrow", slots(1), priority(-100)) // the wide one could not use it
	gated := two.refuses(problem.NoCapacity, "gated", slots(1))
	if gated.Message == "" {
		w.Error("the refusal has no text")
	}
	two.release(narrow)
	one.release(two.take("gated", slots(1), func(r *pool.Request) { r.Bridge = true }))
	one.release(held)
	one.release(wide.got())
}

func doesNotPass(w world) {
	w.pool("db", 2, reserveAfter(0))
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	wide := one.queued("wide", slots(2))
	two.refuses(problem.NoCapacity, "hasty", slots(1))
	one.release(held)
	c := wide.got()
	two.refuses(problem.NoCapacity, "hasty", slots(1))
	one.release(c)
	w.eventually("it is granted when nobody waits", func() bool {
		c, err := two.Claim(w.ctx(), request("hasty", slots(1), wait(0)))
		if err == nil {
			two.release(c)
		}
		return err == nil
	})
	w.empty()
}

func gatedRun(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	record := w.key("run")
	admit := func(id string) (*pool.Claim, error) {
		return two.Claim(w.ctx(), request(id, slots(1), wait(0), extra(record), func(r *pool.Request) {
			r.Bridge, r.Holder = true, pool.Holder{Run: "nightly", Bind: "bridge"}
		}))
	}
	a := one.take("a", slots(1))
	_, err := admit("x")
	w.problem(err, problem.NoCapacity)
	b := one.queued("b", slots(1))
	one.release(a)
	c := b.got() // it has waited, the run has not
	_, err = admit("y")
	w.problem(err, problem.NoCapacity)
	if w.has(record) {
		w.Error("the record of a run that was not admitted is there")
	}
	one.release(c)
	w.eventually("the run is admitted", func() bool { _, err := admit("z"); return err == nil })
	if !w.has(record) {
		w.Error("the record of the admitted run is missing")
	}
}

func prospects(w world) {
	w.pool("db", 3)
	one := w.host("one")
	held := one.take("held", slots(1))
	ask := func(id string, n int) *pool.Request { return request(id, slots(n)) }
	got, err := one.Prospects(w.ctx(), []*pool.Request{ask("a", 1), ask("b", 2), ask("c", 1)})
	if want := []bool{true, false, true}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%v, %v, want %v", got, err, want)
	}
	one.release(held)
	got, err = one.Prospects(w.ctx(), []*pool.Request{ask("a", 3), ask("b", 1)})
	if want := []bool{true, false}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%v, %v, want %v", got, err, want)
	}
}

func prospectsReserved(w world) {
	w.pool("db", 3, reserveAfter(0))
	one := w.host("one")
	one.take("a", slots(2))
	one.queued("wide", slots(3))
	w.pass(2 * time.Second)
	got, err := one.Prospects(w.ctx(), []*pool.Request{request("x", slots(1))})
	w.must(err)
	w.same("the prospects", got, []bool{false})
}

// noted is what an observer was called with.
type noted struct {
	mu      sync.Mutex
	waits   int
	writes  []pool.Write
	claimed time.Time
}

func (n *noted) Waits(since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waits++
	n.claimed = since
}

func (n *noted) Written(x pool.Write) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.writes = append(n.writes, x)
}

// counts returns how often it was called.
func (n *noted) counts() (waits, writes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.waits, len(n.writes)
}

func (n *noted) observe(r *pool.Request) { r.Observer = n }

func observers(w world) {
	w.pool("db", 1)
	one := w.host("one")
	first, second := &noted{}, &noted{}
	a := one.take("a", slots(1), first.observe)
	if waits, writes := first.counts(); waits != 0 || writes != 1 {
		w.Errorf("a claim that is granted directly waits %d times and is written %d times", waits, writes)
	} else if x := first.writes[0]; x.Revision != a.Fence.Revision() || x.Grants < 1 || x.Answered.Before(x.Sent) || len(x.Observers) != 1 {
		w.Errorf("it was written by %+v", x)
	}
	b := one.queued("b", slots(1), second.observe)
	if waits, _ := second.counts(); waits == 0 || second.claimed.IsZero() {
		w.Error("a claim that waits was not reported")
	}
	one.release(a)
	one.release(b.got())
}

// onlyWhereShort has a claim of two pools wait for one of them.
func onlyWhereShort(w world) {
	w.pool("full", 1)
	w.pool("free", 2)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", map[string]int{"full": 1})
	both := one.queued("both", map[string]int{"full": 1, "free": 1})
	for i := range 5 {
		two.release(two.take(fmt.Sprint("c", i), map[string]int{"free": 2}))
	}
	one.release(held)
	one.release(both.got())
	w.empty()
}

// fitsBesides has claims that would wait, and must not.
func fitsBesides(w world) {
	w.pool("full", 1)
	w.pool("free", 2)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", map[string]int{"full": 1})
	both := one.queued("both", map[string]int{"full": 1, "free": 1})
	for i, h := range []*host{one, two} {
		seen := &noted{}
		c, err := h.Claim(w.ctx(), request(fmt.Sprint("c", i), map[string]int{"free": 1}, seen.observe))
		if err != nil {
			w.Fatal(err)
		}
		if waits, _ := seen.counts(); waits > 0 {
			w.Errorf("on host %s it waits for a pool with free slots", h.name)
		}
		h.release(c)
	}
	one.release(held)
	one.release(both.got())
}

// errIs checks an error that is no problem.
func (w world) errIs(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("the error is %v, want %v", err, want)
	}
}
