package pool_test

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// BenchmarkClaimAndRelease is what the engine itself costs: its etcd is a map in
// this process, and answers at once.
func BenchmarkClaimAndRelease(b *testing.B) {
	b.Run("written", func(b *testing.B) {
		e, ctx := benchEngine(b, 0), b.Context()
		for b.Loop() {
			claimAndRelease(ctx, b, e)
		}
	})
	b.Run("retained", func(b *testing.B) {
		e, ctx := benchEngine(b, pool.MaxRetain), b.Context()
		for b.Loop() {
			claimAndRelease(ctx, b, e)
		}
	})
	b.Run("retained-by-64", func(b *testing.B) {
		e, ctx := benchEngine(b, pool.MaxRetain), b.Context()
		b.SetParallelism(64 / runtime.GOMAXPROCS(0))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				claimAndRelease(ctx, b, e)
			}
		})
	})
}

// lastID is the number of the last claim: each has another id.
var lastID atomic.Int64

func claimAndRelease(ctx context.Context, b *testing.B, e *pool.Engine) {
	id := strconv.FormatInt(lastID.Add(1), 10)
	cl, err := e.Claim(ctx, &pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Hour})
	if err == nil {
		err = e.Release(ctx, cl)
	}
	if err != nil {
		b.Error(err)
	}
}

// benchEngine returns an engine that may retain slots of the pool db for some time.
func benchEngine(b *testing.B, retain time.Duration) *pool.Engine {
	backend := storetest.NewBackend(storetest.New(storetest.Options{}))
	keys := store.NewKeys(store.DefaultPrefix)
	limit, lease := 1000, 3*max(retain, 10*time.Second)
	if _, err := (registry.Registry{Backend: backend, Keys: keys}).Set(b.Context(), "db", pool.Change{Limit: &limit, Retain: &retain, LeaseDuration: &lease}); err != nil {
		b.Fatal(err)
	}
	e := pool.New(pool.Config{
		Backend: backend, Keys: keys, Host: "one", Instance: "bench",
		Leases: &plainLeases{t: b, b: backend, by: map[time.Duration]store.LeaseID{}},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done; backend.Close() })
	b.ReportAllocs()
	return e
}
