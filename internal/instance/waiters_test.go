package instance_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool/wire"
)

// waiterKeys returns how many keys of waiters hang on each lease, and how many claims wait.
func waiterKeys(t *testing.T, srv *embed.Server) (byLease map[int64]int, all int) {
	t.Helper()
	keys := wire.Keys{Keys: store.NewKeys(store.DefaultPrefix)}
	s, err := store.ReadAll(t.Context(), embedtest.Client(t, srv), keys.Pools())
	if err != nil {
		t.Fatal(err)
	}
	byLease = map[int64]int{}
	for _, kv := range s.KVs {
		if _, d, err := keys.DecodeDemands(string(kv.Key), kv.Value); err == nil {
			byLease[kv.Lease]++
			all += len(d.List)
		}
	}
	return byLease, all
}

// waitIn has claims of both pools wait until it is canceled.
func waitIn(t *testing.T, c *instance.Client, n int) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			claim, err := c.Claim(ctx, instance.Slots{"db": 1, "api": 1}, instance.WithID(fmt.Sprint("w", i)), instance.WithWait(instance.MaxWait))
			if err == nil { // granted as the wait ends
				_ = claim.Release(context.WithoutCancel(ctx))
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	late := time.After(time.Minute)
	for !is() {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("in vain waited until %s", what)
		}
	}
}

func TestNoLeaseCarriesMoreThan300KeysOfWaiters(t *testing.T) {
	srv := embedtest.New(t)
	c := open(t, srv)
	setPool(t, c, "db", 0, time.Minute)
	setPool(t, c, "api", 0, time.Minute)
	const waiters = 400
	cancel := waitIn(t, c, waiters)
	var byLease map[int64]int
	until(t, "all waiters are written", func() bool {
		var all int
		byLease, all = waiterKeys(t, srv)
		return all == waiters
	})
	for id, n := range byLease {
		if n > lease.KeysPerLease {
			t.Errorf("lease %x carries %d keys of waiters, allowed are %d", id, n, lease.KeysPerLease)
		}
	}
	cancel()
	ofPools := func(key string) bool { return strings.HasPrefix(key, store.NewKeys(store.DefaultPrefix).Pools()) }
	// A dispatcher whose instance is closed leaves the mark of its queue to the next one.
	until(t, "the wait queues are empty and have no dispatcher", func() bool { return !slices.ContainsFunc(left(t, srv), ofPools) })
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if keys := left(t, srv); len(keys) != 0 {
		t.Errorf("left are %q", keys)
	}
}
