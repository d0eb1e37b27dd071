package pool_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// counted counts what an engine reads and watches of the pools.
type counted struct {
	store.Backend
	keys store.Keys

	mu    sync.Mutex
	reads []string // prefixes, without that of all pools
	open  map[string]int
	hold  chan struct{} // of further reads, unless it is nil
}

// count has further engines of a bubble count.
func (b *bubble) count() *counted {
	c := &counted{keys: b.keys, open: map[string]int{}}
	b.wrap = func(by store.Backend) store.Backend {
		c.Backend = by
		by.(*storetest.Backend).Inject(func(call storetest.Call) storetest.Fault {
			if call.Op != storetest.OpRange || len(call.Range.RangeEnd) == 0 {
				return storetest.Fault{}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reads = append(c.reads, strings.TrimPrefix(string(call.Range.Key), c.keys.Pools()))
			if string(call.Range.Key) != c.keys.Pools() {
				return storetest.Fault{} // for a claim
			}
			return storetest.Fault{Hold: c.hold}
		})
		return c
	}
	return c
}

// Watch implements [store.Backend].
func (c *counted) Watch(ctx context.Context, keys store.KeyRange, from int64) store.Watch {
	name := strings.TrimPrefix(keys.Key, c.keys.Pools())
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open[name] += n; c.open[name] == 0 {
			delete(c.open, name)
		}
	}
	add(1)
	context.AfterFunc(ctx, func() { add(-1) })
	return c.Backend.Watch(ctx, keys, from)
}

// taken returns what was read since the last call.
func (c *counted) taken() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	reads := c.reads
	c.reads = nil
	return reads
}

// holding holds reads back until the returned function is called.
func (c *counted) holding() (release func()) {
	hold := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = hold
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		close(hold)
		c.hold = nil
	}
}

func (c *counted) want(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := c.taken(); !slices.Equal(got, want) {
		t.Errorf("%s: read %q, want %q", what, got, want)
	}
}

// ids returns the claims that an engine lists.
func ids(t *testing.T, e *pool.Engine) (held, waiting []string) {
	t.Helper()
	holders, waiters, err := e.Claims(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range holders {
		held = append(held, h.Claim)
	}
	for _, w := range waiters {
		waiting = append(waiting, w.Claim)
	}
	return held, waiting
}

func TestListsWithinASecondAreOneRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		reads := b.count()
		one := b.engine("one")
		b.got(<-one.ask("a", 1, 0))
		reads.taken()
		list := func() {
			var tasks sync.WaitGroup
			defer tasks.Wait()
			for i := range 100 {
				tasks.Go(func() {
					var err error
					switch i % 4 {
					case 0:
						_, err = one.Pools(t.Context())
					case 1:
						_, _, err = one.Claims(t.Context())
					case 2:
						_, err = one.Why(t.Context(), "a")
					case 3:
						_, err = one.Space(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		release := reads.holding()
		go release()
		list()
		reads.want(t, "100 at once", "")
		time.Sleep(time.Second - time.Millisecond)
		list()
		if _, err := one.Pool(t.Context(), "db"); err != nil {
			t.Error(err)
		}
		reads.want(t, "100 within the second")
		time.Sleep(time.Millisecond)
		list()
		reads.want(t, "a second later", "")
	})
}

// What this instance has done shows at once, also in what was being read meanwhile; what
// others have done shows after a second.
func TestAListShowsWhatTheInstanceHasDone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		reads := b.count()
		one := b.engine("one")
		b.wrap = nil
		two := b.engine("two")
		want := func(what string, want ...string) {
			t.Helper()
			if held, _ := ids(t, one.Engine); !slices.Equal(held, want) {
				t.Errorf("%s: %q are listed, want %q", what, held, want)
			}
		}
		want("at first")
		a := b.got(<-one.ask("a", 1, 0))
		want("after its claim", "a")
		b.got(<-two.ask("b", 1, 0))
		want("after the claim of another", "a")
		if w, err := one.Why(pool.Fresh(t.Context()), "b"); err != nil || w.Held == nil {
			t.Errorf("a fresh read does not show the claim of another: %v", err)
		}
		want("after a fresh read", "a", "b")
		c := b.got(<-two.ask("c", 1, 0))
		want("after the next claim of another", "a", "b")
		b.release(two, c)
		time.Sleep(time.Second)
		want("a second later", "a", "b")
		b.release(one, a)
		want("after its release", "b")

		time.Sleep(time.Second)
		reads.taken()
		release := reads.holding()
		early := make(chan int)
		go func() {
			all, err := one.Pools(t.Context())
			if err != nil {
				t.Error(err)
			}
			early <- len(all)
		}()
		reads.want(t, "before a claim", "")
		b.got(<-one.ask("c", 1, 0))
		late := make(chan []string)
		go func() {
			held, _ := ids(t, one.Engine)
			late <- held
		}()
		synctest.Wait()
		release()
		if n := <-early; n != 1 {
			t.Errorf("%d pools", n)
		}
		if held := <-late; !slices.Equal(held, []string{"b", "c"}) {
			t.Errorf("%q are listed after the claim", held)
		}
		// What a client knows of is shown as well.
		limit := 7
		put, err := (registry.Registry{Backend: b.root, Keys: b.keys}).Set(t.Context(), "db", pool.Change{Limit: &limit})
		if err != nil {
			t.Fatal(err)
		}
		if err := one.WaitRevision(t.Context(), put.Revision); err != nil {
			t.Fatal(err)
		}
		if all, err := one.Pools(t.Context()); err != nil || all[0].Limit != 7 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// What others have done to the claims of an instance shows as soon as the instance knows of it.
func TestAListShowsWhatHasBecomeOfTheInstancesClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		dispatcher, one := b.engine("dispatcher"), b.engine("one")
		held := b.got(<-dispatcher.ask("held", 1, 0))
		first := dispatcher.ask("a", 1, time.Hour)
		time.Sleep(100 * time.Millisecond) // its waiter is written: it dispatches
		waits := one.ask("b", 1, time.Hour)
		time.Sleep(100 * time.Millisecond) // and need not confirm a grant
		b.release(dispatcher, held)
		held = b.got(<-first)
		want := func(what string, wantHeld, wantWaiting []string) {
			t.Helper()
			held, waiting := ids(t, one.Engine)
			if !slices.Equal(held, wantHeld) || !slices.Equal(waiting, wantWaiting) {
				t.Errorf("%s: %q are held and %q wait, want %q and %q", what, held, waiting, wantHeld, wantWaiting)
			}
			if all, err := one.Pools(t.Context()); err != nil || all[0].Claimed != len(wantHeld) {
				t.Errorf("%s: the pools are %+v, %v", what, all, err)
			}
		}
		want("at first", []string{"a"}, []string{"b"})
		hold := make(chan struct{})
		one.by.Inject(func(call storetest.Call) storetest.Fault {
			if call.Op != storetest.OpTxn {
				return storetest.Fault{}
			}
			return storetest.Fault{Hold: hold} // it learns nothing from writes of its own
		})
		b.release(dispatcher, held)
		granted := b.got(<-waits)
		want("after the grant by another", []string{"b"}, nil)
		one.by.Inject(nil)
		close(hold)
		time.Sleep(time.Second)
		want("later", []string{"b"}, nil)
		if _, err := (pool.Revoker{Backend: b.root, Keys: b.keys}).Revoke(t.Context(), "b", true); err != nil {
			t.Fatal(err)
		}
		<-granted.Context().Done()
		want("after it was revoked by force", nil, nil)
	})
}

// A claim that was listed can be freed, even if the view does not show it yet.
func TestAReconciliationKnowsWhatWasListed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		one := b.engine("one")
		a := b.got(<-one.ask("a", 1, 0))
		one.by.Freeze()
		orphan := []byte(`{"v":1,"n":1,"claim":"orphan","record":{"pools":{"db":1},"holder":{"host":"one","instance":"test"},"since":"2026-01-01T00:00:00Z"}}`)
		if _, err := b.root.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(b.keys.Slot("db", 0, 5), orphan, a.Lease)}}); err != nil {
			t.Fatal(err)
		}
		if w, err := one.Why(t.Context(), "orphan"); err != nil || w.Held == nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- one.Reconcile(t.Context()) }()
		synctest.Wait()
		one.by.Thaw()
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.sound(1)
	})
}

func TestAPoolIsReadWithThePoolsOfItsClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		reg := registry.Registry{Backend: b.root, Keys: b.keys}
		for _, name := range []string{"alone", "db", "gpu", "other"} {
			limit := 2
			if _, err := reg.Set(t.Context(), name, pool.Change{Limit: &limit}); err != nil {
				t.Fatal(err)
			}
		}
		two := b.engine("two")
		reads := b.count()
		one := b.engine("one")
		ask := func(g *guest, id string, wait time.Duration, slots map[string]int) {
			go func() {
				_, _ = g.Claim(context.Background(), &pool.Request{ID: id, Slots: slots, Wait: wait})
			}()
			synctest.Wait()
		}
		ask(two, "a", 0, map[string]int{"db": 2, "gpu": 1})
		ask(two, "b", time.Hour, map[string]int{"gpu": 1, "db": 1})
		ask(two, "c", 0, map[string]int{"alone": 1})
		time.Sleep(time.Second)
		reads.taken()
		full, err := pool.Read(t.Context(), b.root, b.keys)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string][]string{
			"alone": {"alone/"}, "other": {"other/"}, "db": {"db/", "gpu/"}, "gpu": {"gpu/", "db/"},
		} {
			got, err := one.Pool(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			reads.want(t, name, want...)
			if want, _ := full.Pool(name); cmp.Diff(want, got) != "" {
				t.Errorf("%s, with the pools of its claims against all:\n%s", name, cmp.Diff(want, got))
			}
		}
		time.Sleep(time.Second)
		if _, err := one.Pool(t.Context(), "nowhere"); problem.CodeOf(err) != problem.PoolNotFound {
			t.Errorf("a pool that is not there: %v", err)
		}
		if _, err := two.Pool(t.Context(), "db"); err != nil {
			t.Error(err)
		}
	})
}

func TestAReadThatFailsSaysThatEtcdIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		reads := b.count()
		one := b.engine("one")
		if _, err := one.Pools(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		one.by.Down()
		for what, err := range map[string]error{
			"pools":  func() error { _, err := one.Pools(t.Context()); return err }(),
			"a pool": func() error { _, err := one.Pool(t.Context(), "db"); return err }(),
			"claims": func() error { _, _, err := one.Claims(t.Context()); return err }(),
			"why":    func() error { _, err := one.Why(t.Context(), "a"); return err }(),
			"space":  func() error { _, err := one.Space(t.Context()); return err }(),
		} {
			if problem.CodeOf(err) != problem.EtcdUnavailable {
				t.Errorf("%s: %v", what, err)
			}
		}
		if !one.HasPool("new") {
			t.Error("a pool of which nothing is known is taken for none")
		}
		one.by.Up()
		time.Sleep(time.Second)
		if !one.HasPool("db") || one.HasPool("new") {
			t.Error("it does not know which pools there are")
		}

		// A read that nobody waits for any more ends.
		defer reads.holding()()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := one.Pools(ctx)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Errorf("a canceled caller: %v", err)
		}
	})
}

// After a restore etcd is at earlier revisions than the instance has seen.
func TestReadsGoOnAfterARestore(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(3)
		var before *storetest.Saved
		b.root.Do(func(e *storetest.Etcd) { before = e.Save() })
		one := b.engine("one")
		b.got(<-one.ask("a", 1, 0))
		if held, _ := ids(t, one.Engine); len(held) != 1 {
			t.Fatalf("%q are held", held)
		}
		restored := storetest.New(storetest.Options{})
		restored.Restore(before, 0)
		b.root.Restore(restored)
		time.Sleep(10 * time.Second)
		if _, err := one.Pools(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestThePoolAndWhySayWhoDispatches(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(1)
		one, two := b.engine("one"), b.engine("two")
		dispatcher := func(e *pool.Engine) string {
			t.Helper()
			d, err := e.Pool(t.Context(), "db")
			if err != nil {
				t.Fatal(err)
			}
			all, err := e.Pools(t.Context())
			if err != nil || all[0].Dispatcher != d.Dispatcher {
				t.Errorf("a list has the dispatcher %q and the pool %q, %v", all[0].Dispatcher, d.Dispatcher, err)
			}
			return d.Dispatcher
		}
		held := b.got(<-one.ask("held", 1, 0))
		if got := dispatcher(one.Engine); got != "" {
			t.Errorf("%q dispatches, and nobody waits", got)
		}
		waits := two.ask("waits", 1, time.Hour)
		time.Sleep(time.Second)
		read, err := pool.Read(t.Context(), b.root, b.keys)
		if err != nil {
			t.Fatal(err)
		}
		for what, why := range map[string]func() (pool.Why, error){
			"its instance": func() (pool.Why, error) { return two.Why(t.Context(), "two/test/waits") },
			"another":      func() (pool.Why, error) { return one.Why(t.Context(), "waits") },
			"a reader":     func() (pool.Why, error) { return read.Why("waits") },
		} {
			w, err := why()
			if err != nil || w.Waiter == nil || w.Reason.Dispatcher != "two/test" || w.Reason.Text != "pool 'db' full (1/1 slots)" {
				t.Errorf("%s says %+v, %v", what, w.Reason, err)
			}
		}
		for _, g := range []*guest{one, two} {
			if got := dispatcher(g.Engine); got != "two/test" {
				t.Errorf("%q dispatches, want two/test", got)
			}
		}
		b.release(one, held)
		b.release(two, b.got(<-waits))
		time.Sleep(10 * time.Second)
		if got := dispatcher(one.Engine); got != "" {
			t.Errorf("%q dispatches, and nobody waits any more", got)
		}
	})
}
