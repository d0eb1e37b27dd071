package pool_test

import (
	"context"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// BenchmarkClaimAndRelease is what the engine itself costs: its etcd is a map in
// this process, and answers at once.
func BenchmarkClaimAndRelease(b *testing.B) {
	backend := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer backend.Close()
	keys := store.NewKeys(store.DefaultPrefix)
	limit := 1000
	if _, err := (pool.Registry{Backend: backend, Keys: keys}).Set(b.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		b.Fatal(err)
	}
	e := pool.New(pool.Config{
		Backend: backend, Keys: keys, Host: "one", Instance: "bench",
		Leases: &plainLeases{t: b, b: backend, by: map[time.Duration]store.LeaseID{}},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	defer func() { cancel(); <-done }()
	req := pool.Request{ID: "c", Slots: map[string]int{"db": 1}}
	b.ReportAllocs()
	for b.Loop() {
		cl, err := e.Claim(ctx, req)
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Release(ctx, cl); err != nil {
			b.Fatal(err)
		}
	}
}
