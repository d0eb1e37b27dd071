package pool_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// plainLeases grants leases that nobody renews: long enough for a test.
type plainLeases struct {
	t testing.TB
	b store.Backend
	// atLeast is how long a lease lives, whatever is asked for.
	atLeast time.Duration
	mu      sync.Mutex
	by      map[time.Duration]store.LeaseID
	// slow is how long the engine is held up each time it asks for a lease.
	slow atomic.Int64
}

// forWaiters returns such leases for waiters.
func forWaiters(t testing.TB, b store.Backend) *plainLeases {
	return &plainLeases{t: t, b: b, by: map[time.Duration]store.LeaseID{}, atLeast: 24 * time.Hour}
}

func (l *plainLeases) Acquire(d time.Duration, _ int) (store.LeaseID, bool) {
	time.Sleep(time.Duration(l.slow.Load()))
	l.mu.Lock()
	defer l.mu.Unlock()
	d = max(d, l.atLeast)
	id, ok := l.by[d]
	if !ok {
		var err error
		if id, _, err = l.b.Grant(context.Background(), d); err != nil {
			l.t.Errorf("grant: %v", err)
			return 0, false
		}
		l.by[d] = id
	}
	return id, true
}

func (l *plainLeases) Keeps(id store.LeaseID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(l.by)), id)
}

func (l *plainLeases) Valid(store.LeaseID) bool     { return true }
func (l *plainLeases) Trouble() error               { return nil }
func (l *plainLeases) Release(store.LeaseID, int)   {}
func (l *plainLeases) Suspect(ids ...store.LeaseID) {}

// bench is an etcd with engines on it.
type cluster struct {
	t       testing.TB
	client  *store.Client
	keys    store.Keys
	reg     registry.Registry
	revoker pool.Revoker
	// engines are those that see a change before it returns.
	engines []*pool.Engine
	// adopt are leases that the next engine takes over.
	adopt []store.LeaseID
}

func newCluster(t testing.TB) *cluster {
	srv := embedtest.New(t)
	client := embedtest.Client(t, srv)
	keys := store.NewKeys(store.DefaultPrefix)
	return &cluster{t: t, client: client, keys: keys, reg: registry.Registry{Backend: client, Keys: keys}, revoker: pool.Revoker{Backend: client, Keys: keys}}
}

// engine starts an engine that runs until the test ends.
func (c *cluster) engine(host string, change ...func(*pool.Config)) *pool.Engine {
	c.t.Helper()
	e := c.stoppable(host, change...)
	return e.Engine
}

// stoppable is an engine that can be stopped before the test ends.
type stoppable struct {
	*pool.Engine
	leases pool.Leases
	stop   func()
}

func (c *cluster) stoppable(host string, change ...func(*pool.Config)) stoppable {
	c.t.Helper()
	cfg := pool.Config{
		Backend: c.client, Keys: c.keys, Host: host, Instance: "test",
		Leases:       &plainLeases{t: c.t, b: c.client, by: map[time.Duration]store.LeaseID{}},
		WaiterLeases: forWaiters(c.t, c.client),
	}
	for _, f := range change {
		f(&cfg)
	}
	e := pool.New(cfg)
	e.Adopt(c.adopt...)
	c.adopt = nil
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	stop := func() { cancel(); <-done }
	c.t.Cleanup(stop)
	if err := e.Ready(c.ctx()); err != nil {
		c.t.Fatal(err)
	}
	c.engines = append(c.engines, e)
	return stoppable{e, cfg.Leases, stop}
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

// pool creates or changes a pool.
func (c *cluster) pool(name string, limit int) {
	c.t.Helper()
	c.change(name, pool.Change{Limit: &limit})
}
