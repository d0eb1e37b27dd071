package sidecar_test

import (
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// clientsAtOnce is how many claim at the same time.
const clientsAtOnce = 64

// BenchmarkClaimAndRelease measures one claim and its release, by 64 clients at
// once, over the unix socket.
func BenchmarkClaimAndRelease(b *testing.B) {
	r := single(b, func(c *sidecar.Config) { c.Logger = hclog.NewNullLogger() })
	r.pool("db", 100_000)
	untimed := api.DurationOf(0)
	concurrently(b, func() error {
		c, err := r.client.Claim(b.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, TTL: untimed})
		if err != nil {
			return err
		}
		return r.client.Release(b.Context(), c.ID)
	})
}

// BenchmarkClaimAndReleaseInProcess is the same without HTTP: what the server and
// its client cost is the difference.
func BenchmarkClaimAndReleaseInProcess(b *testing.B) {
	c, err := instance.Open(b.Context(), instance.Options{Endpoints: []string{embedtest.New(b).Endpoint()}, Host: "one"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Leave()
	setLimit(b, c, "db", 100_000)
	concurrently(b, func() error {
		claim, err := c.Claim(b.Context(), instance.Slots{"db": 1})
		if err != nil {
			return err
		}
		return claim.Release(b.Context())
	})
}

func concurrently(b *testing.B, do func() error) {
	b.Helper()
	b.SetParallelism(clientsAtOnce / 2) // times GOMAXPROCS
	b.ReportAllocs()
	var failed atomic.Bool
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() && !failed.Load() {
			if err := do(); err != nil {
				failed.Store(true)
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
}
