package pool_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// changed reads events of pools until one is about a pool.
func changed(t *testing.T, events <-chan pool.Event, name string) pool.Event {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case ev := <-events:
			if ev.Type != pool.PoolChanged || ev.Claim != "" {
				t.Errorf("a subscriber of pools got %+v", ev)
			}
			if slices.Contains(ev.Pools, name) {
				return ev
			}
		case <-late:
			t.Fatalf("%s has not changed", name)
		}
	}
}

// happened reads events until one is the last of a claim, and returns all as "type claim".
func happened(t *testing.T, events <-chan pool.Event, last string) (claims []string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case ev := <-events:
			if ev.Lagged {
				t.Error("events are missing")
			}
			claims = append(claims, string(ev.Type)+" "+ev.Claim)
			if claims[len(claims)-1] == last {
				return claims
			}
		case <-late:
			t.Fatalf("%q has not happened, but %q", last, claims)
		}
	}
}

func TestEventsOfClaimsThatCarryARun(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.engine("one")
	events, err := e.SubscribeRuns(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	c.release(e, c.claim(e, "of-none", db(1)))
	cl, err := e.Claim(c.ctx(), &pool.Request{ID: "a", Slots: db(1), Holder: pool.Holder{Run: "r", Step: "s"}})
	if err != nil {
		t.Fatal(err)
	}
	c.release(e, cl)
	for _, want := range []pool.EventType{pool.ClaimGranted, pool.ClaimReleased} {
		if ev := <-events; ev.Type != want || ev.Claim != "a" || ev.Run != "r" || ev.Step != "s" {
			t.Errorf("%+v, want %s", ev, want)
		}
	}
}

func TestEventsTellTheStoryOfClaims(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	c.pool("quiet", 1)
	one, two := c.engine("one"), c.engine("two")
	ctx, cancel := context.WithCancel(c.ctx())
	events, err := one.Subscribe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := one.SubscribePools(ctx, "db")
	if err != nil {
		t.Fatal(err)
	}
	all, err := one.SubscribePools(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a := c.claim(one, "a", db(1))
	b := c.wait(one, "b", db(1))
	c.release(one, a)
	held := b.got()
	if _, err := c.revoker.Revoke(c.ctx(), "b", false); err != nil {
		t.Fatal(err)
	}
	<-held.Context().Done()
	c.release(one, held)
	claims := happened(t, events, "ClaimReleased b")
	want := []string{
		"ClaimGranted a", "ClaimWaiting b", "ClaimReleased a", "ClaimGranted b", "ClaimEnded b", "ClaimReleased b",
	}
	// The release of one and the grant of the next share a transaction.
	if i := slices.Index(claims, "ClaimGranted b"); i == 2 {
		want[2], want[3] = want[3], want[2]
	}
	if diff := cmp.Diff(want, claims); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// What others do shows in the pools alone.
	c.release(two, c.claim(two, "c", map[string]int{"quiet": 1}))
	changed(t, all, "quiet")
	c.change("db", pool.Change{Paused: new(bool)})
	last := changed(t, changes, "db")
	for len(changes) > 0 {
		last = <-changes
	}
	if !slices.Equal(last.Pools, []string{"db"}) {
		t.Errorf("a subscriber of db got %+v", last)
	}
	if len(events) > 0 {
		t.Errorf("got an event of a claim of another host: %+v", <-events)
	}
	cancel()
	c.release(one, c.claim(one, "d", db(1))) // nobody listens, and nothing blocks
}

func TestReasonsOfEventsAreThoseOfRefusals(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.engine("one")
	events, err := e.Subscribe(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	a := c.claim(e, "a", db(1))
	c.wait(e, "b", db(1))
	e.LeaseLost(a.Lease, context.DeadlineExceeded)
	reasons := map[pool.EventType]string{}
	for len(reasons) < 2 {
		select {
		case ev := <-events:
			if ev.Reason != "" {
				reasons[ev.Type] = ev.Reason
			}
		case <-c.ctx().Done():
			t.Fatalf("got %v", reasons)
		}
	}
	if got := reasons[pool.ClaimWaiting]; got != "pool 'db' full (1/1 slots)" {
		t.Errorf("it waits because %q", got)
	}
	if got := reasons[pool.ClaimEnded]; !strings.Contains(got, "lost") {
		t.Errorf("it has ended because %q", got)
	}
}

func TestASlowReaderLearnsThatEventsAreMissing(t *testing.T) {
	c := newCluster(t)
	c.pool("db", pool.Unlimited)
	e := c.engine("one")
	events, err := e.Subscribe(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		c.claim(e, fmt.Sprintf("c%03d", i), db(1))
	}
	c.caughtUp()
	var granted []string
	read := func() (lagged bool) {
		for {
			select {
			case ev := <-events:
				if lagged = lagged || ev.Lagged; ev.Type == pool.ClaimGranted {
					granted = append(granted, ev.Claim)
				}
			default:
				return lagged
			}
		}
	}
	if read() {
		t.Error("events before the gap are marked")
	}
	if !slices.IsSorted(granted) || len(granted) == 0 || granted[0] != "c000" {
		t.Errorf("granted were %v", granted)
	}
	c.claim(e, "last", db(1))
	var first pool.Event
	select {
	case first = <-events:
	case <-c.ctx().Done():
		t.Fatal("nothing comes after the gap")
	}
	if !first.Lagged {
		t.Errorf("the first event after the gap is %+v", first)
	}
	if read() {
		t.Error("an event without a gap before it is marked")
	}
}

func TestAValueThatCanNotBeReadClosesItsPoolAndNoOther(t *testing.T) {
	k := store.NewKeys(store.DefaultPrefix)
	for name, key := range map[string]string{
		"a spec": k.Spec("db"), "a slot": k.Slot("db", 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.pool("db", 5)
			c.pool("other", 5)
			e := c.engine("one")
			good := c.claim(e, "good", map[string]int{"db": 1, "other": 1})
			spec := c.read().Pools()[0].Spec
			w := c.wait(e, "first", map[string]int{"db": 5})
			c.seen(c.txn(store.Put(key, []byte(`{"v":9,"n":1}`), 0)))

			p := c.refused(problem.CorruptValue, e, "a", db(1))
			if !strings.Contains(p.Message, key) || !strings.Contains(p.Message, "version 9") {
				t.Errorf("the refusal does not name the key and the version: %q", p.Message)
			}
			w.refused(problem.CorruptValue)
			c.release(e, c.claim(e, "b", map[string]int{"other": 4}))
			d, err := e.Pool(c.ctx(), "db")
			if err != nil || !strings.Contains(d.Problem, key) {
				t.Errorf("the pool is shown as %+v, %v", d, err)
			}
			if good.Context().Err() != nil && key == k.Spec("db") {
				t.Errorf("its holder got %v", good.Err())
			}

			if key == k.Spec("db") {
				c.txn(store.Delete(key))
				c.change("db", pool.Change{Limit: &spec.Limit})
			} else {
				c.seen(c.txn(store.Delete(key)))
			}
			c.claim(e, "a", db(1))
		})
	}
}

func TestAWaiterThatCanNotBeReadBlocksNobody(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	e := c.engine("one")
	a := c.claim(e, "a", db(1))
	key := c.keys.Waiter("db", pool.Order{Priority: 1000, Since: 1, Claim: "w"}.String())
	c.seen(c.txn(store.Put(key, []byte(`{}`), 0), store.Put(c.keys.Pools()+"db/what", nil, 0)))
	w := c.wait(e, "b", db(1))
	c.release(e, a)
	w.got()
}

// sample finds the value of a series, such as `name{label="x"}`, in a registry.
func sample(t *testing.T, reg *prometheus.Registry, series string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			if name != series {
				continue
			}
			switch {
			case m.Counter != nil:
				return m.Counter.GetValue()
			case m.Gauge != nil:
				return m.Gauge.GetValue()
			}
			return float64(m.Histogram.GetSampleCount())
		}
	}
	return 0
}

func TestMetricsTellWhatHappened(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 2)
	reg := prometheus.NewRegistry()
	e := c.engine("one", func(cfg *pool.Config) { cfg.Registerer = reg })
	reg.MustRegister(e)
	a := c.claim(e, "a", db(2))
	c.refused(problem.NoCapacity, e, "b", db(1))
	c.refused(problem.ExceedsLimit, e, "b", db(3))
	c.refused(problem.PoolNotFound, e, "b", map[string]int{"no": 1})
	c.refused(problem.ClaimTimeout, e, "b", db(1), within(10*time.Millisecond))
	w := c.wait(e, "c", db(1))
	for series, want := range map[string]float64{
		`berth_claims_held{pool="db"}`:                        1,
		`berth_claims_waiting{pool="db"}`:                     1,
		`berth_claims_granted_total`:                          1,
		`berth_claims_refused_total{reason="no_capacity"}`:    1,
		`berth_claims_refused_total{reason="exceeds_limit"}`:  1,
		`berth_claims_refused_total{reason="pool_not_found"}`: 1,
		`berth_claims_refused_total{reason="claim_timeout"}`:  1,
		`berth_claim_conflicts_total`:                         0,
		`berth_claim_batches_outcome_unknown_total`:           0,
		`berth_watch_resyncs_total`:                           0,
	} {
		if got := sample(t, reg, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	c.release(e, a)
	e.LeaseLost(w.got().Lease, context.DeadlineExceeded)
	<-w.claim.Context().Done()
	for series, want := range map[string]float64{
		`berth_claims_granted_total`:                   2,
		`berth_claim_wait_seconds`:                     2,
		`berth_claims_lost_total{reason="claim_lost"}`: 1,
		`berth_claims_held{pool="db"}`:                 1,
	} {
		if got := sample(t, reg, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if got := sample(t, reg, `berth_claim_batches_total{shape="flat"}`); got < 3 {
		t.Errorf("%v flat batches", got)
	}
	if got := sample(t, reg, `berth_claim_batch_size`); got < 3 {
		t.Errorf("the size of %v batches", got)
	}
}

func TestConflictsAreCountedAndTriedAgain(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 1)
	reg := prometheus.NewRegistry()
	engines := []*pool.Engine{
		c.engine("one", func(cfg *pool.Config) { cfg.Registerer = reg }), c.engine("two"), c.engine("three"),
	}
	// All hosts claim the one slot without having seen each other's claims.
	for i := 0; sample(t, reg, `berth_claim_conflicts_total`) == 0; i++ {
		var all []*waiting
		for h, e := range engines {
			all = append(all, c.ask(e, fmt.Sprintf("c%d-%d", i, h), db(1)))
		}
		for range all { // in whatever order they come
			eventually(t, "one of them is granted", func() bool {
				for h, w := range all {
					if w == nil {
						continue
					}
					select {
					case <-w.done:
						c.release(engines[h], w.got())
						all[h] = nil
						return true
					default:
					}
				}
				return false
			})
		}
	}
	if n := sample(t, reg, `berth_claim_batches_total{shape="nested"}`); n == 0 {
		t.Error("no batch was nested after a conflict")
	}
	c.empty()
}

func TestPoolsAreWatchedForTheirSubscribers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		watches := b.count()
		one := b.engine("one")
		b.wrap = nil
		two := b.engine("two")
		open := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			watches.mu.Lock()
			defer watches.mu.Unlock()
			got := map[string]int{}
			for name, n := range watches.open {
				if strings.HasSuffix(name, "/") && !strings.HasPrefix(name, "/") {
					got[name] = n
				}
			}
			text := map[string]int{}
			for _, name := range want {
				text[name] = 1
			}
			if diff := cmp.Diff(text, got); diff != "" {
				t.Errorf("%s, watches:\n%s", what, diff)
			}
		}
		open("at first")
		watches.taken()
		ctx, cancel := context.WithCancel(t.Context())
		first, err := one.SubscribePools(ctx, "db", "gpu")
		if err != nil {
			t.Fatal(err)
		}
		second, err := one.SubscribePools(t.Context(), "db")
		if err != nil {
			t.Fatal(err)
		}
		open("with subscribers", "db/", "gpu/")
		watches.want(t, "a subscription begins without a read")
		cl := b.got(<-two.ask("a", 1, 0))
		synctest.Wait()
		for i, events := range []<-chan pool.Event{first, second} {
			if len(events) != 1 {
				t.Fatalf("subscriber %d has %d events", i, len(events))
			}
			if ev := <-events; ev.Type != pool.PoolChanged || !slices.Equal(ev.Pools, []string{"db"}) || ev.Lagged {
				t.Errorf("subscriber %d got %+v", i, ev)
			}
		}
		if held, _ := ids(t, one.Engine); !slices.Equal(held, []string{"a"}) {
			t.Errorf("after the event %q are listed", held)
		}
		cancel()
		time.Sleep(4 * time.Second)
		open("shortly after the last subscriber", "db/", "gpu/")
		time.Sleep(2 * time.Second)
		open("after the last subscriber", "db/")
		b.release(two, cl)
		synctest.Wait()
		if len(first) > 0 || len(second) != 1 {
			t.Errorf("%d and %d events after the first has left", len(first), len(second))
		}
		if _, err := one.SubscribePools(t.Context(), "gpu"); err != nil {
			t.Fatal(err)
		}
		open("with another subscriber", "db/", "gpu/")
	})
}

// A change right after the subscription is not missed, however late the watch begins.
func TestASubscriptionMissesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		one, two := b.engine("one"), b.engine("two")
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			events, err := one.SubscribePools(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cl := make(chan *pool.Claim, 1)
			go func() {
				claim, err := two.Claim(context.Background(), &pool.Request{ID: fmt.Sprint("c", i), Slots: db(1)})
				if err != nil {
					t.Error(err)
				}
				cl <- claim
			}()
			<-events
			b.release(two, <-cl)
			cancel()
			time.Sleep(10 * time.Second)
		}
	})
}
