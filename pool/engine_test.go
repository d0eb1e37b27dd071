package pool_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

func TestManyClientsOfTwoHostsNeverExceedALimit(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	engines := []*pool.Engine{c.engine("one"), c.engine("two")}
	var running, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			e := engines[i%len(engines)]
			for j := range 5 {
				id := fmt.Sprintf("c%d-%d", i, j)
				claim, err := e.Claim(c.ctx(), pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Minute})
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
		reg := pool.Registry{Backend: b.root, Keys: b.keys}
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
				if _, err := one.Claim(t.Context(), pool.Request{ID: fmt.Sprint("c", i), Slots: map[string]int{"other": 1}}); err != nil {
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
				reg := pool.Registry{Backend: b.root, Keys: b.keys}
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
				if _, err := reg.Revoke(t.Context(), "a", true); err != nil {
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
