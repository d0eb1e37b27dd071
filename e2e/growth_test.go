package e2e

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// What was claimed and given back before makes nothing slower and nothing
// larger: names of slots are used again, and etcd forgets its history.
func TestHistoryMakesNothingSlowerOrLarger(t *testing.T) {
	if testing.Short() {
		t.Skip("it is about sizes")
	}
	claims, compactEvery, most := 30_000, time.Second, int64(64<<20)
	if os.Getenv("BERTH_LONG") != "" {
		claims, compactEvery, most = 500_000, time.Minute, 1<<30
	}
	srv := embedtest.New(t, func(c *embed.Config) { c.CompactEvery = compactEvery })
	c := open(t, []string{srv.Endpoint()}, "host0")
	spec(t, []*instance.Client{c}, "db", 1000)

	const parts = 10
	speeds := make([]float64, parts)
	for part := range parts {
		begin := time.Now()
		claimMany(t, c, claims/parts)
		speeds[part] = float64(claims/parts) / time.Since(begin).Seconds()
	}
	size := databaseSize(t, srv)
	t.Logf("claims/s: %.0f; database: %d MB", speeds, size>>20)
	if size > most {
		t.Errorf("the database has grown to %d MB, allowed are %d", size>>20, most>>20)
	}
	// The best of three each: what else the machine does only makes them slower.
	first, last := slices.Max(speeds[:3]), slices.Max(speeds[parts-3:])
	if last < 0.85*first && os.Getenv("BERTH_LONG") != "" {
		t.Errorf("%.0f claims/s at the beginning, %.0f at the end", first, last)
	}
}

// claimMany claims and releases that often, by many users at a time.
func claimMany(t testing.TB, c *instance.Client, n int) {
	t.Helper()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				cl, err := c.Claim(t.Context(), instance.Slots{"db": 1})
				if err == nil {
					err = cl.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// databaseSize is what the database takes on disk.
func databaseSize(t testing.TB, srv *embed.Server) int64 {
	t.Helper()
	etcd := etcdctl(t, clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	s, err := etcd.Status(t.Context(), srv.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	return s.DbSize
}
