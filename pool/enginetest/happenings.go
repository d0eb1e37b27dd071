package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// happenings has what instances publish.
var happenings = []behavior{
	{"events tell the life of a claim in order", storyOfClaims, everywhere},
	{"events of runs are those of claims that carry a run", runEvents, everywhere},
	{"a claim that waits is published with the reason and its pools", waitingEvent, everywhere},
	{"a claim that is granted directly is not published as waiting", directEvent, everywhere},
	{"a claim that ends is published with the reason", endedEvent, everywhere},
	{"a renewal is published once for each claim and after a gap", renewedEvent, everywhere},
	{"changes of a pool by any host are published", poolEvents, everywhere},
	{"what is read after an event shows it", readAfterEvent, everywhere},
	{"a slow reader learns that events are missing and blocks nobody", laggingReader, everywhere},
}

// nextEvent returns the next event.
func (w world) nextEvent(events <-chan pool.Event) pool.Event {
	w.Helper()
	select {
	case ev := <-events:
		return ev
	case <-time.After(patience):
		w.Fatal("there is no event")
		return pool.Event{}
	}
}

// story returns what has happened up to a last event, as "type claim".
func (w world) story(events <-chan pool.Event, last string) (all []string) {
	w.Helper()
	for len(all) == 0 || all[len(all)-1] != last {
		ev := w.nextEvent(events)
		if ev.Lagged {
			w.Error("events are missing")
		}
		all = append(all, string(ev.Type)+" "+ev.Claim)
	}
	return all
}

// storyOf returns what a story has of one claim.
func storyOf(all []string, id string) (some []string) {
	for _, x := range all {
		if kind, ok := strings.CutSuffix(x, " "+id); ok {
			some = append(some, kind)
		}
	}
	return some
}

func storyOfClaims(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	events, err := one.Subscribe(ctx)
	w.must(err)
	a := one.take("a", slots(1))
	b := one.queued("b", slots(1))
	one.release(a)
	held := b.got()
	_, err = w.Revoke(w.ctx(), "b", false)
	w.must(err)
	w.ended(held, problem.ClaimRevoked)
	one.release(held)
	all := w.story(events, "ClaimReleased b")
	w.same("of a", storyOf(all, "a"), []string{"ClaimGranted", "ClaimReleased"})
	w.same("of b", storyOf(all, "b"), []string{"ClaimWaiting", "ClaimGranted", "ClaimEnded", "ClaimReleased"})
	two.release(two.take("c", slots(1)))
	w.rest(time.Second)
	if len(events) > 0 {
		w.Errorf("an event of a claim of another instance: %+v", <-events)
	}
	cancel()
	one.release(one.take("d", slots(1))) // nobody reads, and nothing blocks
}

// carrying has a claim carry a run.
func carrying(r *pool.Request) {
	r.Holder = pool.Holder{Run: "r", Step: "s", ClaimedBy: "user:alice", Bind: "pid 7"}
}

func runEvents(w world) {
	w.pool("db", 1)
	one := w.host("one")
	events, err := one.SubscribeRuns(w.ctx())
	w.must(err)
	one.release(one.take("of-none", slots(1)))
	one.release(one.take("a", slots(1), carrying))
	for _, want := range []pool.EventType{pool.ClaimGranted, pool.ClaimReleased} {
		ev := w.nextEvent(events)
		w.same("the event", ev, pool.Event{
			Type: want, Pools: []string{"db"}, Claim: "a", Run: "r", Step: "s", ClaimedBy: "user:alice", Bind: "pid 7",
		})
	}
}

func waitingEvent(w world) {
	w.pool("db", 1)
	w.pool("api", 1)
	one := w.host("one")
	events, err := one.SubscribeRuns(w.ctx())
	w.must(err)
	one.take("held", slots(1))
	one.queued("a", map[string]int{"db": 1, "api": 1}, carrying)
	ev := w.nextEvent(events)
	w.same("the event", []any{ev.Type, ev.Claim, ev.Reason, ev.Pools}, []any{pool.ClaimWaiting, "a", "pool 'db' full (1/1 slots)", []string{"api", "db"}})
	w.rest(3 * time.Second)
	if len(events) > 0 {
		w.Errorf("it is published again: %+v", <-events)
	}
}

func directEvent(w world) {
	w.pool("db", 1)
	one := w.host("one")
	events, err := one.Subscribe(w.ctx())
	w.must(err)
	for i := range 5 {
		one.release(one.ask(fmt.Sprint("a", i), slots(1)).got())
	}
	for _, x := range w.story(events, "ClaimReleased a4") {
		if strings.HasPrefix(x, string(pool.ClaimWaiting)) {
			w.Errorf("published: %s", x)
		}
	}
}

func endedEvent(w world) {
	w.pool("db", 3)
	one := w.host("one")
	events, err := one.SubscribeRuns(w.ctx())
	w.must(err)
	a := one.take("a", slots(1), carrying)
	w.nextEvent(events)
	one.LeaseLost(a.Lease, context.DeadlineExceeded)
	if ev := w.nextEvent(events); ev.Type != pool.ClaimEnded || !strings.Contains(ev.Reason, "lost") {
		w.Errorf("the event is %+v", ev)
	}
	one.LeaseLost(a.Lease, context.DeadlineExceeded) // once is enough
	one.release(a)
	if ev := w.nextEvent(events); ev.Type != pool.ClaimReleased {
		w.Errorf("the event is %+v", ev)
	}
}

func renewedEvent(w world) {
	w.pool("db", 9)
	one := w.host("one")
	events, err := one.SubscribeRuns(w.ctx())
	w.must(err)
	next := func(want pool.EventType, claim, reason string) {
		w.Helper()
		ev := w.nextEvent(events)
		w.same("the event", []any{ev.Type, ev.Claim, ev.Reason}, []any{want, claim, reason})
	}
	const gap = "its lease could be renewed again"
	a := one.take("a", slots(1), carrying)
	on := a.Lease
	one.take("of-none", slots(1))
	next(pool.ClaimGranted, "a", "")
	one.LeaseRenewed(on, false)
	one.LeaseRenewed(on, false)
	one.LeaseRenewed(on+1, true)
	next(pool.ClaimRenewed, "a", "")
	b := one.take("b", slots(1), carrying)
	next(pool.ClaimGranted, "b", "")
	if b.Lease != on {
		w.Fatal("they are on leases of their own")
	}
	one.LeaseRenewed(on, false)
	next(pool.ClaimRenewed, "b", "")
	one.LeaseRenewed(on, true)
	both := []string{w.nextEvent(events).Claim, w.nextEvent(events).Claim}
	slices.Sort(both)
	w.same("renewed after a gap", both, []string{"a", "b"})
	one.release(a)
	next(pool.ClaimReleased, "a", "")
	one.LeaseRenewed(on, true)
	next(pool.ClaimRenewed, "b", gap)
}

// changed reads events until one is of a pool.
func (w world) changed(events <-chan pool.Event, name string) {
	w.Helper()
	for {
		ev := w.nextEvent(events)
		if ev.Type != pool.PoolChanged || ev.Claim != "" {
			w.Errorf("a subscriber of pools got %+v", ev)
		}
		if slices.Contains(ev.Pools, name) {
			return
		}
	}
}

// drain reads the events that are there.
func drain(events <-chan pool.Event) (all []pool.Event) {
	for len(events) > 0 {
		all = append(all, <-events)
	}
	return all
}

func poolEvents(w world) {
	w.pool("db", 1)
	w.pool("quiet", 1)
	one, two := w.host("one"), w.host("two")
	some, err := one.SubscribePools(w.ctx(), "db")
	w.must(err)
	all, err := one.SubscribePools(w.ctx())
	w.must(err)
	var held *pool.Claim
	var waits *asked
	for _, happens := range []func(){
		func() { held = two.take("a", slots(1)) },
		func() { waits = two.queued("b", slots(1)) },
		func() { waits.hangUp() },
		func() { two.release(held) },
		func() { w.pause("db", true) },
		func() { deletePool(w) },
	} {
		happens()
		w.changed(some, "db")
		w.changed(all, "db")
		w.rest(time.Second)
		drain(some)
		drain(all)
	}
	two.release(two.take("c", map[string]int{"quiet": 1}))
	w.changed(all, "quiet")
	w.rest(time.Second)
	for _, ev := range drain(some) {
		w.same("pools of a subscriber of db", ev.Pools, []string{"db"})
	}
}

func readAfterEvent(w world) {
	w.pool("db", 99)
	one, two := w.host("one"), w.host("two")
	events, err := one.SubscribePools(w.ctx(), "db")
	w.must(err)
	for i := range 5 {
		c := two.take(fmt.Sprint("a", i), slots(1))
		w.changed(events, "db")
		w.eventually("it is shown by a read after one of the events", func() bool {
			drain(events)
			d, err := one.Pool(w.ctx(), "db")
			w.must(err)
			return d.Claimed == i+1
		})
		w.held(c)
	}
}

func laggingReader(w world) {
	w.pool("db", pool.Unlimited)
	one := w.host("one")
	events, err := one.Subscribe(w.ctx())
	w.must(err)
	n := cap(events) + 50
	for i := range n {
		one.take(fmt.Sprintf("c%04d", i), slots(1))
	}
	w.rest(time.Second)
	got := drain(events)
	if len(got) == 0 || len(got) >= n {
		w.Errorf("%d of %d events were delivered", len(got), n)
	}
	one.take("last", slots(1))
	if ev := w.nextEvent(events); !ev.Lagged || ev.Claim != "last" {
		w.Errorf("the next event is %+v", ev)
	}
	one.take("more", slots(1))
	if ev := w.nextEvent(events); ev.Lagged {
		w.Errorf("the one after it is %+v", ev)
	}
}
