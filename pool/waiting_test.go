package pool_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

func within(d time.Duration) func(*pool.Request) { return func(r *pool.Request) { r.Wait = d } }

func prio(p int) func(*pool.Request) { return func(r *pool.Request) { r.Priority = p } }

func reasonOf(t *testing.T, p *problem.Error) pool.Reason {
	t.Helper()
	r, ok := p.Detail.(pool.Reason)
	if !ok {
		t.Fatalf("the refusal has no reason: %+v", p)
	}
	if !strings.Contains(p.Message, r.Text) {
		t.Errorf("the message %q does not have the reason %q", p.Message, r.Text)
	}
	return r
}

func TestATimeoutTellsPositionAndHolders(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	one, two := c.engine("one"), c.engine("two")
	c.claim(one, "a", db(2), func(r *pool.Request) { r.Holder.Run, r.Holder.Step = "nightly", "load" })
	b := c.claim(two, "b", db(1))
	c.wait(two, "first", db(1))
	c.seen(b.Fence.Revision())
	eventually(t, "one sees the line", func() bool { d, err := one.Pool(c.ctx(), "db"); return err == nil && d.Waiting == 1 })
	p := c.refused(problem.ClaimTimeout, one, "late", db(2), within(30*time.Millisecond))
	got := reasonOf(t, p)
	want := pool.Reason{
		Text: "pool 'db' full (3/3 slots)", Position: 2, Waiting: 2, Dispatcher: "two/test",
		Pools: []pool.Shortage{{
			Pool: "db", Wanted: 2, Limit: 3, Claimed: 3, Short: 2,
			Holders: []pool.HolderRef{
				{Claim: "a", Host: "one", Run: "nightly", Step: "load", Slots: 2},
				{Claim: "b", Host: "two", Slots: 1},
			},
		}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(pool.Reason{}, "Since")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if time.Since(got.Since) > time.Minute || got.Since.After(time.Now()) {
		t.Errorf("it waits since %s", got.Since)
	}
	c.wantWaiters("first") // the late one has left
}

func TestRefusalsSayInOneSentenceWhatIsInTheWay(t *testing.T) {
	c := newCluster(t)
	e := c.engine("one")
	for name, limit := range map[string]int{"full": 2, "tight": 3, "closed": pool.Closed, "paused": 2, "free": 1} {
		c.pool(name, limit)
	}
	paused := true
	c.change("paused", pool.Change{Paused: &paused})
	c.claim(e, "a", map[string]int{"full": 2, "tight": 2})
	for _, tc := range []struct {
		slots map[string]int
		text  string
		pools int
	}{
		{map[string]int{"full": 1}, "pool 'full' full (2/2 slots)", 1},
		{map[string]int{"tight": 2}, "pool 'tight' has too few free slots (2/3 slots, 2 wanted)", 1},
		{map[string]int{"full": 1, "tight": 3, "free": 1}, "pools full: 'full' (2/2 slots), 'tight' (2/3 slots)", 2},
		{map[string]int{"closed": 1}, "pool 'closed' is closed", 1},
		{map[string]int{"paused": 1}, "pool 'paused' is paused", 1},
	} {
		r := reasonOf(t, c.refused(problem.NoCapacity, e, "b", tc.slots))
		if r.Text != tc.text || len(r.Pools) != tc.pools {
			t.Errorf("%v: %q of %d pools, want %q", tc.slots, r.Text, len(r.Pools), tc.text)
		}
	}
	c.refused(problem.PoolNotFound, e, "b", map[string]int{"full": 1, "missing": 1})
	if p := c.refused(problem.ExceedsLimit, e, "b", map[string]int{"full": 3}); p.Field != "pools.full" || !strings.Contains(p.Message, "limit is 2") {
		t.Errorf("%q of field %q", p.Message, p.Field)
	}
	if p := c.refused(problem.Invalid, e, "b/c", db(1)); p.Field != "id" {
		t.Errorf("%q of field %q", p.Message, p.Field)
	}
}

func TestWhyTellsOfHoldersAndWaitersOfAllHosts(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	one, two := c.engine("one"), c.engine("two")
	c.claim(one, "a", db(1), func(r *pool.Request) { r.Holder.Labels = map[string]string{"team": "x"} })
	c.wait(two, "b", db(1), prio(5))
	for _, why := range []func(string) (pool.Why, error){
		func(id string) (pool.Why, error) { return one.Why(c.ctx(), id) },
		func(id string) (pool.Why, error) { return two.Why(c.ctx(), id) },
		func(id string) (pool.Why, error) { return c.read().Why(id) },
	} {
		var held, waits pool.Why
		eventually(t, "both are seen", func() bool {
			var errA, errB error
			held, errA = why("a")
			waits, errB = why("b")
			return errA == nil && errB == nil
		})
		if h := held.Held; h == nil || held.Waiter != nil || h.Host != "one" || h.Slots != 1 || h.Labels["team"] != "x" || h.Fence == 0 {
			t.Errorf("held: %+v", held)
		}
		if w := waits.Waiter; w == nil || waits.Held != nil || w.Host != "two" || w.Priority != 5 || waits.Reason.Position != 1 || waits.Reason.Waiting != 1 || waits.Reason.Text != "pool 'db' full (1/1 slots)" {
			t.Errorf("waits: %+v, %+v", waits, waits.Waiter)
		}
		if _, err := why("nobody"); problem.CodeOf(err) != problem.ClaimNotFound {
			t.Errorf("an unknown claim: %v", err)
		}
	}
}

func TestAClientThatHangsUpLeavesNoWaiterAndKeepsItsPlace(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.engine("one")
	a := c.claim(e, "a", db(1))
	first := c.wait(e, "first", db(1))
	c.wait(e, "second", db(1))
	first.hangUp()
	c.wantWaiters("second")
	again := c.wait(e, "first", db(1))
	c.wantWaiters("first", "second")
	c.release(e, a)
	again.got()
}

func TestAHangUpTakesNothingWhenTheClaimIsGrantedJustThen(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.engine("one")
	for i := range 30 {
		a := c.claim(e, fmt.Sprint("a", i), db(1))
		w := c.wait(e, fmt.Sprint("b", i), db(1))
		var wg sync.WaitGroup
		wg.Go(func() { c.release(e, a) })
		wg.Go(w.cancel)
		wg.Wait()
		<-w.done
		if w.claim != nil { // it was granted, and another has it
			c.release(e, w.claim)
		}
		c.empty()
	}
}

func TestOneIDIsOneClaim(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 50)
	one, two := c.engine("one"), c.engine("two")
	const requesters = 20
	var claims [requesters]*pool.Claim
	var wg sync.WaitGroup
	for i := range requesters {
		wg.Go(func() { claims[i] = c.claim(one, "same", db(2)) })
	}
	wg.Wait()
	for _, cl := range claims {
		if cl != claims[0] {
			t.Fatalf("two claims of one id, with fences %d and %d", cl.Fence, claims[0].Fence)
		}
	}
	d, err := one.Pool(c.ctx(), "db")
	if err != nil || d.Claimed != 2 {
		t.Errorf("%d slots are claimed, %v", d.Claimed, err)
	}
	c.refused(problem.IDInUse, one, "same", db(3))
	c.refused(problem.IDInUse, one, "same", db(2), prio(1))
	c.refused(problem.IDInUse, one, "same", db(2), func(r *pool.Request) { r.Holder.Run = "other" })
	c.seen(claims[0].Fence.Revision())
	if p := c.refused(problem.IDInUse, two, "same", db(2)); !strings.Contains(p.Message, "one/test") {
		t.Errorf("the refusal does not say who has it: %q", p.Message)
	}
	c.release(one, claims[0])
	eventually(t, "two sees the end", func() bool { d, err := two.Pool(c.ctx(), "db"); return err == nil && d.Claimed == 0 })
	c.release(two, c.claim(two, "same", db(3)))
	c.empty()
}

func TestWhoWaitsWithOthersUnderOneIDLeavesAlone(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.engine("one")
	a := c.claim(e, "a", db(1))
	first, second := c.wait(e, "same", db(1)), c.ask(e, "same", db(1))
	c.refused(problem.NoCapacity, e, "same", db(1)) // asks without waiting
	first.hangUp()
	c.wantWaiters("same")
	c.release(e, a)
	claim := second.got()
	if claim.Context().Err() != nil {
		t.Errorf("it has ended: %v", claim.Err())
	}
	// A repeated request finds it, and does not end it when canceled.
	again := c.ask(e, "same", db(1))
	if again.got() != claim {
		t.Error("another claim")
	}
	again.cancel()
	if claim.Context().Err() != nil {
		t.Errorf("it has ended: %v", claim.Err())
	}
}

func TestHigherPriorityGoesFirst(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	one, two := c.engine("one"), c.engine("two")
	held := c.claim(one, "held", db(1))
	waiters := map[string]*waiting{}
	engines := map[string]*pool.Engine{"low": one, "normal": two, "high": one, "higher": two, "later": one}
	for _, w := range []struct {
		id       string
		priority int
	}{{"low", -1000}, {"normal", 0}, {"high", 10}, {"later", 0}, {"higher", 1000}} {
		waiters[w.id] = c.wait(engines[w.id], w.id, db(1), prio(w.priority))
	}
	order := []string{"higher", "high", "normal", "later", "low"}
	c.wantWaiters(order...)
	c.caughtUp() // a release grants what its host has seen
	release := func() { c.release(one, held) }
	for _, id := range order {
		release()
		claim := waiters[id].got()
		release = func() { c.release(engines[id], claim) }
	}
	release()
	c.empty()
}

func TestALowPriorityDoesNotHoldUpWhatFits(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	e := c.engine("one")
	c.claim(e, "held", db(2))
	c.wait(e, "wide", db(2), prio(100))
	c.claim(e, "narrow", db(1), prio(-100)) // backfill
}

// What an instance knows of its waiters beyond etcd is shown by that instance alone.
func TestAWaiterThatIsNotInEtcdIsListedByItsInstance(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		one, two := b.engine("one"), b.engine("two")
		b.got(<-two.ask("held", 1, 0))
		time.Sleep(time.Second)
		one.by.Inject(func(call storetest.Call) storetest.Fault {
			return storetest.Fault{Drop: call.Op == storetest.OpTxn && len(call.Txn.Success) > 0}
		})
		one.ask("waits", 1, time.Hour)
		if _, waiting := ids(t, one.Engine); !slices.Equal(waiting, []string{"waits"}) {
			t.Errorf("its instance lists %q", waiting)
		}
		d, err := one.Pool(t.Context(), "db")
		if err != nil || len(d.Waiters) != 1 || d.Waiters[0].Position != 1 || d.Waiters[0].Reason != "pool 'db' full (1/1 slots)" || d.Waiters[0].Slots != 1 {
			t.Errorf("its instance shows %+v, %v", d.Waiters, err)
		}
		for _, id := range []string{"waits", "one/test/waits"} {
			if w, err := one.Why(t.Context(), id); err != nil || w.Waiter == nil || w.Reason.Position != 1 || w.Reason.Waiting != 1 {
				t.Errorf("of %s its instance says %+v, %v", id, w, err)
			}
		}
		if _, waiting := ids(t, two.Engine); waiting != nil {
			t.Errorf("another lists %q", waiting)
		}
		if _, err := two.Why(t.Context(), "waits"); problem.CodeOf(err) != problem.ClaimNotFound {
			t.Errorf("of it another says %v", err)
		}
		one.by.Inject(nil)
	})
}
