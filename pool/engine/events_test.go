package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// next returns the next event.
func next(t *testing.T, events <-chan pool.Event) pool.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case ev := <-events:
		return ev
	case <-ctx.Done():
		t.Fatal("there is no event")
		return pool.Event{}
	}
}

func subscribed(t *testing.T, subscribe func(context.Context) (<-chan pool.Event, error)) <-chan pool.Event {
	t.Helper()
	events, err := subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func release(t *testing.T, e *Engine, c *pool.Claim) {
	t.Helper()
	if err := e.Release(t.Context(), c); err != nil {
		t.Error(err)
	}
}

func TestEventsTellTheStoryOfAClaim(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 2, 1)
	spec(t, b, keys, "gpu", 1) // for which none has waited
	held := claim(t, engines[1], request("held"))
	all, runs := subscribed(t, engines[0].Subscribe), subscribed(t, engines[0].SubscribeRuns)
	r := request("a")
	r.Holder = pool.Holder{Run: "r", Step: "s", ClaimedBy: "user:alice", Bind: "pid 7"}
	got := make(chan *pool.Claim, 1)
	go func() {
		c, err := engines[0].Claim(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	want := pool.Event{Pools: []string{"db"}, Claim: "a", Run: "r", Step: "s", ClaimedBy: "user:alice", Bind: "pid 7"}
	is := func(kind pool.EventType, reason string) {
		t.Helper()
		want.Type, want.Reason = kind, reason
		for _, events := range []<-chan pool.Event{all, runs} {
			if ev := next(t, events); fmt.Sprint(ev) != fmt.Sprint(want) {
				t.Errorf("%+v, want %+v", ev, want)
			}
		}
	}
	is(pool.ClaimWaiting, "pool 'db' full (1/1 slots)")
	release(t, engines[1], held)
	c := <-got
	is(pool.ClaimGranted, "")
	engines[0].LeaseRenewed(c.Lease+1, true)
	engines[0].LeaseRenewed(c.Lease, false)
	engines[0].LeaseRenewed(c.Lease, false)
	is(pool.ClaimRenewed, "")
	engines[0].LeaseRenewed(c.Lease, true)
	is(pool.ClaimRenewed, "its lease could be renewed again")
	release(t, engines[0], c)
	is(pool.ClaimReleased, "")

	r = request("of-none")
	r.Slots = map[string]int{"gpu": 1}
	release(t, engines[0], claim(t, engines[0], r))
	if ev := next(t, all); ev.Type != pool.ClaimGranted || ev.Claim != "of-none" {
		t.Errorf("a claim that did not wait: %+v", ev)
	}
	next(t, all)
	if len(all)+len(runs) > 0 {
		t.Errorf("%d and %d events more", len(all), len(runs))
	}
}

// Of each claim there is at most one event that it waits, before all others of it, and none is missing, while claims wait and are
// granted, withdrawn and released on two hosts.
func TestAClaimIsPublishedAsWaitingOnlyBeforeItsGrant(t *testing.T) {
	t.Parallel()
	const clients, turns = 6, 8
	engines, _, _ := hosts(t, 2, 2)
	events := subscribed(t, engines[0].Subscribe)
	first := []*pool.Claim{claim(t, engines[1], request("x")), claim(t, engines[1], request("y"))}
	var g errgroup.Group
	g.Go(func() error {
		for { // at least one waits
			_, waiting, err := engines[0].Claims(t.Context())
			if err != nil {
				return err
			}
			if len(waiting) > 0 {
				break
			}
		}
		for _, c := range first {
			release(t, engines[1], c)
		}
		return nil
	})
	for i, e := range engines {
		for k := range clients {
			g.Go(func() error {
				for n := range turns {
					r := request(fmt.Sprintf("c-%d-%d-%d", i, k, n))
					if n%4 == 3 {
						r.Wait = time.Millisecond
					}
					c, err := e.Claim(t.Context(), r)
					if problem.CodeOf(err) == problem.ClaimTimeout {
						continue
					} else if err != nil {
						return err
					}
					if err := e.Release(t.Context(), c); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	story := map[string][]pool.EventType{}
	waited := 0
	last := subscribed(t, engines[0].Subscribe)
	release(t, engines[0], claim(t, engines[0], request("last")))
	next(t, last)
	for ev := next(t, events); ev.Claim != "last"; ev = next(t, events) {
		if ev.Lagged || ev.Claim[:4] != "c-0-" {
			t.Errorf("%+v", ev)
		}
		if ev.Type == pool.ClaimWaiting {
			if waited++; ev.Reason == "" {
				t.Errorf("%s waits without a reason", ev.Claim)
			}
		}
		story[ev.Claim] = append(story[ev.Claim], ev.Type)
	}
	for id, s := range story {
		if s[0] == pool.ClaimWaiting {
			s = s[1:]
		}
		if len(s) > 0 && !slices.Equal(s, []pool.EventType{pool.ClaimGranted, pool.ClaimReleased}) {
			t.Errorf("%s: %v", id, story[id])
		}
	}
	if waited == 0 {
		t.Error("none has waited")
	}
}

// A claim that is granted or ends before the reason was read for which it waits is published as waiting first, with what its
// owner knows, and not again.
func TestAReasonThatComesLateIsNotPublished(t *testing.T) {
	b := &broker{}
	s := newSubscriber(false)
	b.add(s)
	w := newWaitings(nil, b)
	early, late, unread := &entry{request: request("early")}, &entry{request: request("late")}, &entry{request: request("unread")}
	for _, e := range []*entry{early, late, unread} {
		w.not[e] = unpublished{known: "as known"}
	}
	w.flush(late)
	w.flush(late)
	w.read([]*entry{early, late, unread}, []string{"as read", "as read", ""})
	w.flush(early)
	var got []string
	for len(s.events) > 0 {
		ev := <-s.events
		got = append(got, ev.Claim+" "+ev.Reason)
	}
	same(t, "published", got, "late as known", "early as read", "unread as known")
	if len(w.not) > 0 {
		t.Errorf("%d are left", len(w.not))
	}
}

func TestASlowReaderLosesEventsAndLearnsOfIt(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 1, pool.Unlimited)
	e := engines[0]
	events := subscribed(t, e.Subscribe)
	for i := range eventBuffer + 40 {
		claim(t, e, request(fmt.Sprintf("c%03d", i)))
	}
	for i := range eventBuffer {
		if ev := next(t, events); ev.Lagged || ev.Claim != fmt.Sprintf("c%03d", i) {
			t.Fatalf("event %d is %+v", i, ev)
		}
	}
	for i, id := range []string{"last", "more"} {
		claim(t, e, request(id))
		if ev := next(t, events); ev.Lagged != (i == 0) || ev.Claim != id {
			t.Errorf("%+v", ev)
		}
	}
}

// A subscriber that has left gets nothing, and its events are not made.
func TestASubscriptionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 1, 1)
	e := engines[0]
	ctx, cancel := context.WithCancel(t.Context())
	events, err := e.Subscribe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for left := false; !left; {
		if left, err = ask(t.Context(), e, func() bool { return len(e.broker.subs) == 0 }); err != nil {
			t.Fatal(err)
		}
	}
	release(t, e, claim(t, e, request("a")))
	if len(events) > 0 {
		t.Errorf("%+v", <-events)
	}
	if _, err := e.Subscribe(ctx); err == nil {
		t.Error("a subscription with a context that has ended")
	}
}

// Changes of pools by any host are published to those who want to know, and a read after the event shows them.
func TestChangesOfPoolsArePublished(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 2, 3)
	spec(t, b, keys, "other", 3)
	db := subscribed(t, func(ctx context.Context) (<-chan pool.Event, error) {
		return engines[0].SubscribePools(ctx, "db", "db")
	})
	all := subscribed(t, func(ctx context.Context) (<-chan pool.Event, error) { return engines[0].SubscribePools(ctx) })
	until := func(events <-chan pool.Event, name string) {
		t.Helper()
		for {
			ev := next(t, events)
			if ev.Type != pool.PoolChanged || ev.Claim != "" || ev.Lagged {
				t.Errorf("%+v", ev)
			}
			if slices.Contains(ev.Pools, name) {
				return
			}
		}
	}
	for i := range 3 {
		claim(t, engines[1], request(fmt.Sprint("c", i)))
		for n := -1; n != i+1; {
			until(db, "db")
			d, err := engines[0].Pool(t.Context(), "db")
			if err != nil {
				t.Fatal(err)
			}
			n = d.Claimed
		}
		until(all, "db")
	}
	waits(t, engines[1], request("waits")) // a demand is a change too
	until(db, "db")
	r := request("other")
	r.Slots = map[string]int{"other": 1}
	claim(t, engines[1], r)
	until(all, "other")
	for len(db) > 0 {
		if ev := <-db; !slices.Equal(ev.Pools, []string{"db"}) {
			t.Errorf("a subscriber of db gets %+v", ev)
		}
	}
}
