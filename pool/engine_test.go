package pool_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// If slots are retained, clients carry out most operations themselves, in turn with the loop.
func TestManyClientsOfTwoHostsNeverExceedALimit(t *testing.T) {
	for name, retain := range map[string]time.Duration{"written": 0, "retained": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.pool("db", 3)
			c.change("db", pool.Change{Retain: &retain})
			engines := []*pool.Engine{c.engine("one"), c.engine("two")}
			var running, most atomic.Int64
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					e := engines[i%len(engines)]
					for j := range 5 {
						id := fmt.Sprintf("c%d-%d", i, j)
						claim, err := e.Claim(c.ctx(), &pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Minute})
						if err != nil {
							t.Errorf("claim: %v", err)
							return
						}
						n := running.Add(1)
						for {
							m := most.Load()
							if n <= m || most.CompareAndSwap(m, n) {
								break
							}
						}
						running.Add(-1)
						if err := e.Release(c.ctx(), claim); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
			wg.Go(func() {
				for range 100 { // what the loop does meanwhile
					for _, e := range engines {
						e.LeasesReady()
						if _, err := e.Held(c.ctx()); err != nil {
							t.Error(err)
						}
					}
				}
			})
			wg.Wait()
			if most.Load() > 3 {
				t.Errorf("%d claims of a pool of 3 were held at once", most.Load())
			}
			for _, e := range engines {
				d, err := e.Pool(c.ctx(), "db")
				if err != nil {
					t.Fatal(err)
				}
				if err := e.WaitRevision(c.ctx(), d.Revision); err != nil {
					t.Fatal(err)
				}
				if err := e.Stop(c.ctx()); err != nil {
					t.Fatal(err)
				}
				c.refused(problem.Stopping, e, "late", map[string]int{"db": 1})
			}
		})
	}
}

// Callers wait for a revision on goroutines of their own, while the engine begins watches. The
// race detector finds what both use.
func TestAnEngineBeginsWatchesWhileCallersWaitForARevision(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.pool(9)
		one := b.engine("one")
		b.got(<-one.ask("a", 1, 0))
		b.got(<-one.ask("b", 1, 0)) // from now on it watches the pool
		one.by.Freeze()
		rev, err := store.Commit(t.Context(), b.root, nil, store.Put("/elsewhere", nil, 0))
		if err != nil {
			t.Fatal(err)
		}
		limit := 9
		reg := registry.Registry{Backend: b.root, Keys: b.keys}
		if _, err := reg.Set(t.Context(), "other", pool.Change{Limit: &limit}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := one.WaitRevision(t.Context(), rev); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			defer one.by.Thaw()
			for i := range 2 {
				time.Sleep(time.Millisecond) // meanwhile the other one has asked
				if _, err := one.Claim(t.Context(), &pool.Request{ID: fmt.Sprint("c", i), Slots: map[string]int{"other": 1}}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
	})
}

// A holder learns of a release by force though the watch of revocations begins again without it:
// after an absence within the lease of the claim, in which the key was deleted.
func TestAHolderLearnsOfAForcedReleaseAfterAGap(t *testing.T) {
	for name, tc := range map[string]struct {
		lease, absent time.Duration
		other         bool // another instance of the host deletes the key after a minute
	}{
		"default lease, other instance of the host": {pool.DefaultLeaseDuration, 2 * time.Minute, true},
		"long lease": {time.Hour, 11 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.pool(1)
				reg := registry.Registry{Backend: b.root, Keys: b.keys}
				if _, err := reg.Set(t.Context(), "db", pool.Change{LeaseDuration: &tc.lease}); err != nil {
					t.Fatal(err)
				}
				one := b.engine("one")
				if tc.other {
					by := b.root.Peer()
					e := pool.New(pool.Config{Backend: by, Keys: b.keys, Host: "one", Instance: "other",
						Leases: forWaiters(t, b.root), WaiterLeases: forWaiters(t, b.root)})
					ctx, cancel := context.WithCancel(context.Background())
					done := make(chan struct{})
					go func() { defer close(done); _ = e.Run(ctx) }()
					t.Cleanup(func() { cancel(); <-done; by.Close() })
				}
				a := b.got(<-one.ask("a", 1, 0))
				time.Sleep(10 * time.Second)
				one.by.Down()
				if _, err := (pool.Revoker{Backend: b.root, Keys: b.keys}).Revoke(t.Context(), "a", true); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tc.absent)
				if n := b.keysUnder(b.keys.Revocations("one")); n != 0 {
					t.Fatal("the revocation is there still")
				}
				b.root.Do(func(e *storetest.Etcd) {
					if err := e.Compact(e.Revision()); err != nil {
						t.Fatal(err)
					}
				})
				one.by.Up()
				time.Sleep(2 * time.Minute)
				if a.Context().Err() == nil {
					t.Error("the holder believes that it holds slots that are free, and may be another's")
				}
			})
		})
	}
}

// retaining returns an engine, and has a pool whose slots may be retained for some time.
func (b *bubble) retaining(limit int, retain time.Duration) *guest {
	b.t.Helper()
	b.pool(limit)
	if _, err := (registry.Registry{Backend: b.root, Keys: b.keys}).Set(b.t.Context(), "db", pool.Change{Retain: &retain}); err != nil {
		b.t.Fatal(err)
	}
	return b.engine("one")
}

// While a batch is in flight, slots that are released go to a claim that the next batch would grant.
func TestReleasedSlotsGoToAClaimThatIsNotWrittenYet(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		one := b.retaining(3, 2*time.Second)
		_, has := b.regranted(one)
		one.by.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 100 * time.Millisecond} })
		written := one.ask("written", 1, time.Minute)
		next := one.ask("next", 1, time.Minute)
		b.release(one, has)
		a := <-next
		if b.got(a); a.took != 0 {
			t.Errorf("it has waited for %s", a.took)
		}
		b.got(<-written)
	})
}

// Callers carry out operations on retained slots themselves. The loop learns of what has to be done
// later: here, that a grant without a write is shown in etcd, and that idle slots are returned.
func TestTheLoopFollowsWhatCallersHaveDone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		retain := 2 * time.Second
		one := b.retaining(3, retain)
		shown := func() (ids []string) {
			all, err := store.ReadAll(t.Context(), b.root, b.keys.Slots("db"))
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range all.KVs {
				ids = append(ids, string(kv.Value))
			}
			return ids
		}
		before, has := b.regranted(one)
		if s := shown(); len(s) != 1 || !strings.Contains(s[0], `"`+before+`"`) {
			t.Fatalf("etcd shows %q", s)
		}
		wide := <-one.ask("wide", 2, 0) // is granted by a write, at once
		if wide.took != 0 {
			t.Errorf("a claim that its caller has asked for itself took %s", wide.took)
		}
		b.release(one, b.got(wide))
		time.Sleep(retain + retain/2)
		if s := shown(); len(s) != 1 || !strings.Contains(s[0], `"`+has.ID+`"`) {
			t.Errorf("after the time to retain, etcd shows %q", s)
		}
		b.release(one, has)
		b.release(one, b.got(<-one.ask("last", 1, 0)))
		time.Sleep(retain + 10*time.Millisecond)
		if s := shown(); len(s) != 0 {
			t.Errorf("nothing is held, and etcd shows %q", s)
		}
	})
}
