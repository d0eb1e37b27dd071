package enginetest

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/hashicorp/go-hclog"
)

// bridges has how a claim changes hands from the leading coordinator to the instance that starts the run.
var bridges = []behavior{
	{"a bridge changes hands whole and its fence grows", changesHands, everywhere},
	{"a bridge of many slots changes hands whole", manyChangeHands, everywhere},
	{"a bridge changes hands in a pool that is paused", inPool(func(w world) { w.pause("db", true) }), everywhere},
	{"a bridge changes hands in a pool that is closed", inPool(func(w world) { w.pool("db", pool.Closed) }), everywhere},
	{"a bridge changes hands in a pool whose limit was lowered", inPool(func(w world) { w.pool("db", 1) }), everywhere},
	{"a bridge changes hands in a pool that was deleted", inPool(deletePool), everywhere},
	{"a bridge changes hands though others wait", inPool(othersWait), everywhere},
	{"only the claim that is meant changes hands", onlyMeant, everywhere},
	{"of two instances that take over a claim one gets it", oneTakesOver, standIn},
	{"a take-over happens with its conditions or not at all", takeOverExtra, everywhere},
	{"a take-over whose answer is lost is made once", takeOverLost, standIn},
	{"a take-over that is refused by etcd leaves the bridge as it is", takeOverDenied, standIn},
	{"a take-over that is canceled leaves the bridge, or gives it back", takeOverCanceled, standIn},
	{"a bridge whose answer was lost and that was taken over is not reported as never granted", lostBridge, standIn},
	{"nothing is taken over while an instance stops", noTakeOver, everywhere},
	{"a bridge that ends is not reported as lost", quietEnd, standIn},
	{"a bridge that is freed by force is no longer held in the view of a follower", forcedBridge, everywhere},
	{"a claim that was taken over can be restarted and released", takenOverRestart, standIn},
}

// bridged claims slots of pool "db" for another instance.
func bridged(h *host, id string, need map[string]int) *pool.Claim {
	h.w.Helper()
	return h.take(id, need, priority(7), func(r *pool.Request) {
		r.Bridge, r.Holder = true, pool.Holder{Run: "nightly", Bind: "bridge"}
	})
}

// takeOver asks for a bridge.
func takeOver(h *host, of *pool.Claim, x store.Extra) (*pool.Claim, error) {
	return h.TakeOver(h.w.ctx(), pool.TakeOver{
		ID: of.ID, Fence: of.Fence, Slots: of.Slots, Holder: pool.Holder{Run: "nightly", Bind: "run", ClaimedBy: "user:alice"}, Extra: x,
	})
}

// takesOver takes a bridge over, which must succeed.
func takesOver(h *host, of *pool.Claim) *pool.Claim {
	h.w.Helper()
	c, err := takeOver(h, of, store.Extra{})
	if err != nil {
		h.w.Fatalf("take over %s: %v", of.ID, err)
	}
	return c
}

func changesHands(w world) { handsOver(w, slots(3)) }

func manyChangeHands(w world) {
	w.pool("wide", 20000)
	handsOver(w, map[string]int{"db": 3, "wide": 20000})
}

func handsOver(w world, need map[string]int) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	old := bridged(one, "a", need)
	w.caughtUp()
	c, err := takeOver(two, old, store.Extra{
		Then:   []*pb.RequestOp{store.Put(w.key("then"), []byte("x"), 0)},
		Leased: []*pb.RequestOp{store.Put(w.key("leased"), []byte("x"), 0)},
	})
	w.must(err)
	was, is := grantOf(old), grantOf(c)
	if is.Fence <= was.Fence || is.Lease == was.Lease {
		w.Errorf("fence %d after %d, lease %d after %d", is.Fence, was.Fence, is.Lease, was.Lease)
	}
	if !is.ClaimedAt.Equal(was.ClaimedAt) {
		w.Errorf("claimed at %s, want %s", is.ClaimedAt, was.ClaimedAt)
	}
	holder := pool.Holder{Host: "two", Instance: "test", Run: "nightly", Bind: "run", ClaimedBy: "user:alice"}
	w.same("it is", is, grant{
		ID: "a", Slots: need, Priority: 7, Holder: holder,
		Fence: is.Fence, Lease: is.Lease, Keys: is.Keys, ClaimedAt: is.ClaimedAt, Extra: is.Extra,
	})
	if !w.has(w.key("then")) || !w.has(w.key("leased")) {
		w.Error("what goes with it has not happened")
	}
	w.must(w.etcd.any.Revoke(w.ctx(), was.Lease)) // it holds nothing any longer
	w.wantUsed("db", need["db"])
	w.sound()
	y, err := w.read().Why("a")
	w.must(err)
	w.same("etcd shows its holder", y.Held.Holder, holder)
	w.held(c)
	one.release(old) // late, and of no effect
	w.wantUsed("db", need["db"])
	two.release(c)
	w.empty()
}

func deletePool(w world) {
	_, err := w.Delete(w.ctx(), "db", nil)
	w.must(err)
	w.caughtUp()
}

func othersWait(w world) { w.host("waits").queued("first", slots(3), priority(1000)) }

// inPool returns a behavior in which a bridge changes hands after something has happened to its pool.
func inPool(happens func(w world)) func(w world) {
	return func(w world) {
		w.pool("db", 3)
		one, two := w.host("one"), w.host("two")
		old := bridged(one, "a", slots(2))
		happens(w)
		c := takesOver(two, old)
		w.wantUsed("db", 2)
		w.sound()
		w.held(c)
		two.release(c)
	}
}

func onlyMeant(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	old := bridged(one, "a", slots(1))
	w.caughtUp()
	for _, change := range []func(g *pool.Claim){
		func(g *pool.Claim) { g.Fence -= 1024 },
		func(g *pool.Claim) { g.ID = "b" },
	} {
		g := &pool.Claim{ID: old.ID, Fence: old.Fence, Slots: old.Slots}
		change(g)
		_, err := takeOver(two, g, store.Extra{})
		w.problem(err, problem.Precondition)
	}
	w.held(old)
	w.wantUsed("db", 1)
	one.release(old)
	again := bridged(one, "a", slots(1))
	_, err := takeOver(two, old, store.Extra{})
	w.problem(err, problem.Precondition)
	c := takesOver(two, again)
	_, err = takeOver(two, again, store.Extra{})
	w.problem(err, problem.IDInUse)
	two.release(c)
	w.empty()
}

func oneTakesOver(w world) {
	w.pool("db", 3)
	one, two, three := w.host("one"), w.host("two"), w.host("three")
	old := bridged(one, "a", slots(2))
	w.pass(time.Second)
	type answer struct {
		h   *host
		c   *pool.Claim
		err error
	}
	answers := make(chan answer, 2)
	for _, h := range []*host{two, three} {
		slowWrites(h, 50*time.Millisecond)
		go func() {
			c, err := takeOver(h, old, store.Extra{})
			answers <- answer{h, c, err}
		}()
	}
	taken := 0
	for range 2 {
		a := <-answers
		if a.err != nil {
			w.problem(a.err, problem.Precondition)
			continue
		}
		taken++
		w.wantUsed("db", 2)
		a.h.mend()
		a.h.release(a.c)
	}
	w.same("how often it was taken over", taken, 1)
	w.empty()
}

func takeOverExtra(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	old := bridged(one, "a", slots(2))
	w.caughtUp()
	x := store.Extra{If: []*pb.Compare{store.Present(w.key("no"))}, Then: []*pb.RequestOp{store.Put(w.key("x"), nil, 0)}}
	_, err := takeOver(two, old, x)
	w.problem(err, problem.Precondition)
	if w.has(w.key("x")) {
		w.Error("it was written although the condition does not hold")
	}
	w.held(old)
	w.wantUsed("db", 2)
	c := takesOver(two, old)
	two.release(c)
	w.empty()
}

func takeOverLost(w world) {
	for name, f := range map[string]storetest.Fault{
		"the request is lost": {Drop: true}, "the answer is lost": {LoseAnswer: true}, "it comes late": {Delay: 5 * time.Second},
	} {
		w.pool("db", 3)
		one, two := w.host("one-"+name[:3]), w.host("two-"+name[:3])
		old := bridged(one, "a", slots(2))
		w.pass(time.Second)
		happened := two.failsOnce(f, putsTo("db"))
		c := takesOver(two, old)
		if !happened() {
			w.Errorf("%s: nothing was written", name)
		}
		w.pass(time.Minute)
		w.held(c)
		w.wantUsed("db", 2)
		y, err := w.read().Why("a")
		w.must(err)
		w.same(name+": the fence in etcd", y.Held.Fence, c.Fence)
		two.release(c)
		w.empty()
		one.kill()
		two.kill()
	}
}

func takeOverDenied(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	old := bridged(one, "a", slots(2))
	w.pass(time.Second)
	two.fails(storetest.Fault{Drop: true, Err: store.ErrDenied}, putsTo("db"))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if c, err := two.TakeOver(ctx, pool.TakeOver{ID: "a", Fence: old.Fence, Slots: slots(2)}); err == nil {
		w.Errorf("it was taken over: %v", c)
	}
	w.held(old)
	two.mend()
	w.pass(10 * time.Second)
	w.wantUsed("db", 2)
	two.release(takesOver(two, old))
	w.empty()
}

func takeOverCanceled(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	for i, f := range []storetest.Fault{{}, {Delay: 500 * time.Millisecond}, {LoseAnswer: true}} {
		old := bridged(one, fmt.Sprint("a", i), slots(1))
		w.pass(time.Second)
		two.failsOnce(f, putsTo("db"))
		ctx, cancel := context.WithCancel(context.Background())
		answers := make(chan error, 1)
		go func() {
			c, err := two.TakeOver(ctx, pool.TakeOver{ID: old.ID, Fence: old.Fence, Slots: slots(1)})
			if err == nil {
				two.release(c)
			}
			answers <- err
		}()
		w.pass(100 * time.Millisecond)
		cancel()
		if err := <-answers; err != nil {
			w.problem(err, problem.ClaimCanceled)
		}
		w.pass(20 * time.Second)
		one.release(old) // if it is still there
		w.empty()
	}
}

func lostBridge(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	one.release(one.take("first", slots(1)))
	w.pass(time.Second)
	one.by.Inject(func(c storetest.Call) storetest.Fault { // the answer is lost, and etcd away for a while
		if !putsTo("db")(c) {
			return storetest.Fault{}
		}
		one.by.Down()
		return storetest.Fault{LoseAnswer: true, Err: store.ErrUnavailable}
	})
	a := one.ask("a", slots(1), func(r *pool.Request) { r.Bridge, r.Holder.Run = true, "nightly" })
	w.pass(time.Second)
	y, err := w.read().Why("a")
	w.must(err)
	c := takesOver(two, &pool.Claim{ID: "a", Fence: y.Held.Fence, Slots: slots(1)})
	one.mend()
	one.by.Up()
	if <-a.done; a.err == nil {
		w.ended(a.claim, problem.CodeOf(a.claim.Err()))
	} else if !store.OutcomeUnknown(a.err) {
		w.Errorf("it was taken over, and the leader is answered: %v", a.err)
	}
	w.held(c)
	w.wantUsed("db", 1)
	two.release(c)
	w.empty()
}

func noTakeOver(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	old := bridged(one, "a", slots(2))
	w.must(two.Stop(w.ctx()))
	_, err := takeOver(two, old, store.Extra{})
	w.problem(err, problem.Stopping)
	w.held(old)
	one.release(old)
	w.empty()
}

func quietEnd(w world) {
	w.pool("db", 3, leaseFor(10*time.Second))
	one := w.host("one")
	events, err := one.SubscribeRuns(w.ctx())
	w.must(err)
	a := bridged(one, "a", slots(1))
	b := bridged(one, "b", slots(1))
	w.pass(time.Second)
	w.must(w.FreeBridge(w.ctx(), w.read(), "a", a.Fence))
	w.must(w.etcd.any.Revoke(w.ctx(), b.Lease))
	w.pass(time.Minute)
	for len(events) > 0 {
		if ev := <-events; ev.Type == pool.ClaimEnded {
			w.Errorf("it is reported: %+v", ev)
		}
	}
	w.wantUsed("db", 0)
}

func forcedBridge(w world) {
	w.pool("db", 3)
	one := w.host("one")
	f := w.follow()
	a := bridged(one, "a", slots(2))
	holds := func() bool {
		_, held, _, err := f.Space([]string{"a", "b"})
		return err == nil && len(held) == 1 && held["a"][0].Fence == a.Fence
	}
	w.eventually("the follower shows it", holds)
	w.must(w.FreeBridge(w.ctx(), w.read(), "a", a.Fence))
	w.wantUsed("db", 0)
	w.eventually("the follower no longer shows it", func() bool { return !holds() })
	if n := w.under(w.keys.RevocationsAll()); n > 0 {
		w.Errorf("%d revocations were put for a claim without a holder", n)
	}
}

// follow runs a follower until the test ends.
func (w world) follow() *list.Follower {
	w.Helper()
	b, by := w.etcd.peer()
	f := list.NewFollower(b, w.keys, hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		<-done
		if by != nil {
			by.Close()
		}
	})
	w.eventually("the follower has read the pools", func() bool { _, _, _, err := f.Space(nil); return err == nil })
	return f
}

func takenOverRestart(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	c := takesOver(two, bridged(one, "a", slots(2)))
	w.pool("db", 1) // it was admitted before: that is no violation
	w.sound()
	two.kill()
	next := w.host("two")
	claims, err := next.Adopted(w.ctx())
	w.must(err)
	if len(claims) != 1 || claims[0].Fence != c.Fence {
		w.Fatalf("taken over are %v", claims)
	}
	w.same("how its holder lives", claims[0].Holder.Bind, "run")
	next.release(claims...)
	w.empty()
}
