package sidecar_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/api"
)

// The other cluster is full at first, so that the host cannot be announced there.
func TestASidecarWhoseEtcdClusterIsReplacedIsNotReadyAndSaysWhy(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "other")
	other := embedtest.New(t, func(c *embed.Config) { c.DataDir, c.Token = dir, "other" })
	embedtest.SetFull(t, other, true)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	first := embedtest.New(t)
	r := start(t, config(t, first.Endpoint()))
	r.pool("db", 1)
	claim := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	address := strings.TrimPrefix(first.Endpoint(), "http://")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	other = embedtest.New(t, func(c *embed.Config) { c.DataDir, c.ClientListen = dir, address })

	eventually(t, "/readyz says that the cluster was replaced", func() bool {
		got := r.raw(request{method: "GET", path: "/readyz"})
		return got.status == http.StatusServiceUnavailable && strings.Contains(got.problem(t).Detail, "has replaced")
	})
	eventually(t, "the claim is lost", func() bool {
		got := r.raw(request{method: "GET", path: "/v1/claims/" + claim.ID})
		return got.status == http.StatusConflict && strings.Contains(got.problem(t).Detail, "another etcd cluster answers")
	})
	embedtest.SetFull(t, other, false)
	eventually(t, "it is ready", func() bool { return r.client.Ready(t.Context()) == nil })
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	if n := strings.Count(r.log.String(), "[ERROR]"); n != 1 {
		t.Errorf("%d error lines, want 1", n)
	}
	if got := r.raw(request{method: "GET", path: "/metrics"}); !strings.Contains(string(got.body), "\nberth_etcd_cluster_changed_total 1\n") {
		t.Errorf("the metrics do not have one change:\n%s", got.body)
	}
}
