package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// puts reports whether a transaction puts a key with a prefix.
func puts(call storetest.Call, prefix string) bool {
	if call.Op != storetest.OpTxn {
		return false
	}
	for _, op := range call.Txn.Success {
		if n := op.GetRequestTxn(); n != nil && puts(storetest.Call{Op: storetest.OpTxn, Txn: n}, prefix) {
			return true
		}
		if strings.HasPrefix(string(op.GetRequestPut().GetKey()), prefix) {
			return true
		}
	}
	return false
}

// A claim whose demand is not in etcd yet is listed by its own instance, last in the queue, and by no other one.
func TestADemandThatIsNotInEtcdIsListedByItsInstance(t *testing.T) {
	withEngines(t, 2, 1, func(b *bubble) {
		one, by, two := b.engines[0], b.by[0], b.engines[1]
		claim(b.T, two, request("held"))
		by.Inject(func(call storetest.Call) storetest.Fault {
			return storetest.Fault{Drop: puts(call, b.keys.DemandsAll("db"))}
		})
		ctx, cancel := context.WithCancel(b.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() {
			if _, err := one.Claim(ctx, request("waits")); problem.CodeOf(err) != problem.ClaimCanceled {
				b.Error(err)
			}
		})
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		_, waiting := listed(b.T, one)
		same(b.T, "its instance lists", waiting, "waits")
		y, err := one.Why(b.Context(), "waits")
		if err != nil || y.Waiter == nil || y.Reason.Position != 1 || y.Reason.Text != "pool 'db' full (1/1 slots)" {
			b.Errorf("its instance says %+v: %v", y, err)
		}
		_, waiting = listed(b.T, two)
		same(b.T, "another one lists", waiting)
		cancel()
		tasks.Wait()
		_, waiting = listed(b.T, one)
		same(b.T, "after it has left", waiting)
	})
}

// While etcd does not answer, a wait ends in time and says so, whether there is a pool is as it was, and the silence has an age.
func TestSilenceOfEtcd(t *testing.T) {
	withEngines(t, 1, 1, func(b *bubble) {
		one, by := b.engines[0], b.by[0]
		claim(b.T, one, request("held"))
		if one.HasPool("none") {
			b.Error("there is no such pool")
		}
		time.Sleep(10 * time.Second)
		if d := one.Age(b.Context()); d > askTimeout {
			b.Errorf("etcd was silent for %s", d)
		}
		events := subscribed(b.T, one.Subscribe)
		by.Inject(func(call storetest.Call) storetest.Fault { return storetest.Fault{Drop: true} })
		time.Sleep(time.Minute)
		if d := one.Age(b.Context()); d < time.Minute || d > time.Minute+2*askTimeout+askAfter {
			b.Errorf("etcd was silent for %s", d)
		}
		begun := time.Now()
		if one.HasPool("none") || !one.HasPool("db") || !one.HasPool("other") {
			b.Error("what is known of pools has changed")
		}
		if d := time.Since(begun); d > time.Second {
			b.Errorf("that took %s", d)
		}
		begun = time.Now()
		r := request("a")
		r.Wait = 3 * time.Second
		refusal(b.T, one, problem.EtcdUnavailable, r)
		if d := time.Since(begun); d < r.Wait || d > r.Wait+2*reasonTimeout {
			b.Errorf("a wait of 3 s ends after %s", d)
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if _, err := one.Pools(ctx); problem.CodeOf(err) != problem.EtcdUnavailable {
			b.Errorf("%v, want %s", err, problem.EtcdUnavailable)
		}
		by.Inject(nil)
		time.Sleep(time.Minute)
		if d := one.Age(b.Context()); d > askTimeout {
			b.Errorf("etcd is silent for %s", d)
		}
		if len(events) > 0 {
			b.Errorf("%+v", <-events)
		}
	})
}

// Pools are watched for as long as there are subscribers, and a few seconds longer. A subscription begins without a read, and
// misses nothing that happens after it, however late its watch begins.
func TestPoolsAreWatchedForTheirSubscribers(t *testing.T) {
	withEngines(t, 2, 3, func(b *bubble) {
		one, by, two := b.engines[0], b.by[0], b.engines[1]
		open := func(what string, want ...string) {
			b.Helper()
			synctest.Wait()
			one.feeds.mu.Lock()
			defer one.feeds.mu.Unlock()
			same(b.T, what, slices.Sorted(maps.Keys(one.feeds.byPool)), want...)
		}
		var reads atomic.Int64
		by.Inject(func(call storetest.Call) storetest.Fault {
			ofPools := call.Op == storetest.OpRange && strings.HasPrefix(string(call.Range.Key), b.keys.Pools()) // guards are swept, too
			if ofPools && len(call.Range.RangeEnd) > 0 {
				reads.Add(1)
			}
			return storetest.Fault{Delay: 10 * time.Millisecond}
		})
		subscribe := func(ctx context.Context, pools ...string) <-chan pool.Event {
			events, err := one.SubscribePools(ctx, pools...)
			if err != nil {
				b.Fatal(err)
			}
			return events
		}
		ctx, cancel := context.WithCancel(b.Context())
		first := subscribe(ctx, "db", "gpu")
		second := subscribe(b.Context(), "db")
		c := claim(b.T, two, request("a"))
		time.Sleep(time.Second)
		open("with subscribers", "db", "gpu")
		if n := reads.Load(); n > 0 {
			b.Errorf("a subscription has read %d times", n)
		}
		for i, events := range []<-chan pool.Event{first, second} {
			if ev := next(b.T, events); len(events) > 0 || ev.Type != pool.PoolChanged || len(ev.Pools) != 1 || ev.Pools[0] != "db" {
				b.Errorf("subscriber %d gets %+v and %d more", i, ev, len(events))
			}
		}
		held, _ := listed(b.T, one)
		same(b.T, "after the event", held, "a")
		cancel()
		time.Sleep(feedGrace - time.Second)
		open("shortly after a subscriber has left", "db", "gpu")
		time.Sleep(2 * time.Second)
		open("after a subscriber has left", "db")
		release(b.T, two, c)
		time.Sleep(time.Second)
		if len(first) > 0 || len(second) != 1 {
			b.Errorf("%d and %d events after the first has left", len(first), len(second))
		}
		subscribe(b.Context(), "gpu")
		time.Sleep(time.Second)
		open("with another subscriber", "db", "gpu")
	})
}

// After etcd has lost the history, pools that are gone have changed, and lists show what is there now.
func TestARestoreChangesPools(t *testing.T) {
	withEngines(t, 1, 3, func(b *bubble) {
		one := b.engines[0]
		claim(b.T, one, request("a"))
		events := subscribed(b.T, func(ctx context.Context) (<-chan pool.Event, error) { return one.SubscribePools(ctx) })
		spec(b.T, b.b, b.keys, "gone", 1)
		time.Sleep(time.Second)
		for len(events) > 0 {
			<-events
		}
		old := storetest.New(storetest.Options{})
		restored := storetest.NewBackend(old)
		spec(b.T, restored, b.keys, "new", 1)
		restored.Close()
		b.b.Restore(old)
		changed := map[string]bool{}
		for !changed["gone"] || !changed["new"] {
			for _, name := range next(b.T, events).Pools {
				changed[name] = true
			}
		}
		pools, err := one.Pools(b.Context())
		if err != nil || len(pool.Names(pools)) != 1 || pools[0].Name != "new" {
			b.Errorf("%+v, %v", pools, err)
		}
	})
}

// A claim that is granted while the reason is being read for which it waits is published as waiting first, as its owner knows it.
func TestAClaimIsPublishedAsWaitingWithoutARead(t *testing.T) {
	withEngines(t, 2, 1, func(b *bubble) {
		one, two := b.engines[0], b.engines[1]
		held := claim(b.T, two, request("held"))
		events := subscribed(b.T, one.Subscribe)
		_, err := ask(b.Context(), one, func() bool {
			one.waitings.busy = true // what is read is never delivered
			return true
		})
		b.must(err)
		a := b.ask(one, request("a"))
		a.waits()
		b.release(two, held)
		a.got()
		for _, want := range []pool.Event{{Type: pool.ClaimWaiting, Reason: "pool 'db' full"}, {Type: pool.ClaimGranted}} {
			if ev := next(b.T, events); ev.Type != want.Type || ev.Claim != "a" || ev.Reason != want.Reason {
				b.Errorf("%+v, want %+v", ev, want)
			}
		}
	})
}
