package sidecar_test

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

func TestBeforeEtcdAnswersTheServerSaysSo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // which answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := launch(t, config(t, l.Addr().String()))
	r.readDocument()
	if got := r.raw(request{method: "GET", path: "/healthz"}); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
	p := r.raw(request{method: "GET", path: "/readyz"}).problem(t)
	if p.Status != http.StatusServiceUnavailable || len(p.NotReady) != 1 || !strings.HasPrefix(p.NotReady[0], "etcd: ") {
		t.Errorf("%+v", p)
	}
	for _, q := range []request{
		{method: "GET", path: "/v1/pools"}, {method: "GET", path: "/v1/pools/db"}, {method: "PUT", path: "/v1/pools/db", body: `{"limit":1}`},
		{method: "DELETE", path: "/v1/pools/db"}, {method: "POST", path: "/v1/pools/db/pause"},
		{method: "GET", path: "/v1/claims"}, {method: "GET", path: "/v1/claims/a"}, {method: "GET", path: "/v1/claims/a/why"},
		{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1}}`}, {method: "POST", path: "/v1/claims/a/renew"},
		{method: "POST", path: "/v1/claims/a/revoke"}, {method: "DELETE", path: "/v1/claims/a"},
		{method: "GET", path: "/v1/hosts"}, {method: "GET", path: "/v1/events"},
	} {
		got := r.raw(q)
		if p := got.problem(t); p.Code != "etcd_unavailable" || p.Status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "2" {
			t.Errorf("%s %s: Retry-After %q, %+v", q.method, q.path, got.header.Get("Retry-After"), p)
		}
	}
	if got := r.raw(request{method: "GET", path: "/metrics"}); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
	r.server.Stop(sidecar.Drain)
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestEtcdThatComesLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	etcd := embedtest.Cluster(t, 1)
	etcd.Stop(0)
	r := launch(t, config(t, etcd.Endpoints()[0]))
	wantCode(t, r.client.Ready(t.Context()), problem.EtcdUnavailable)
	eventually(t, "it was tried", func() bool { return strings.Contains(r.log.String(), "trying again") })
	etcd.Restart(0)
	eventually(t, "it is ready", func() bool { return r.client.Ready(t.Context()) == nil })
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
}

func TestAReadySidecarSaysWhoDispatches(t *testing.T) {
	t.Parallel()
	r := single(t)
	r.readDocument()
	ready := func() (h api.Health) {
		decode(t, r.raw(request{method: "GET", path: "/readyz"}), &h)
		return h
	}
	if h := ready(); h.Dispatcher != nil {
		t.Errorf("no claim waits: %+v", h.Dispatcher)
	}
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.Claim(ctx, api.ClaimRequest{Pools: api.Slots{"db": 1}})
	}()
	eventually(t, "it dispatches", func() bool {
		d := ready().Dispatcher
		return d != nil && d.Host == "one" && d.Instance == "sidecar" && d.Kind == "service" && time.Since(d.Since) < time.Minute
	})
	cancel()
	<-done
}

func TestASecondServerOfAHostIsRefused(t *testing.T) {
	r := single(t)
	second := config(t, r.cfg.Options.Endpoints[0])
	second.Options.StateDir = r.cfg.Options.StateDir
	wantCode(t, sidecar.New(second).Run(t.Context()), problem.HostInUse)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
}

func TestASecondServerOfAHostSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	first := single(t)
	cfg := config(t, first.cfg.Options.Endpoints[0])
	second := launch(t, cfg)
	second.readDocument()
	const taken = `the name "one/sidecar" is in use by process `
	eventually(t, "it says that its name is in use", func() bool {
		p := second.raw(request{method: "GET", path: "/readyz"}).problem(t)
		return p.Status == http.StatusServiceUnavailable && p.Code == "unavailable" && len(p.NotReady) == 1 && strings.HasPrefix(p.NotReady[0], "name: "+taken)
	})
	p := second.raw(request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1}}`}).problem(t)
	if p.Code != "unavailable" || p.Status != http.StatusServiceUnavailable || !strings.HasPrefix(p.Detail, taken) {
		t.Errorf("a claim meanwhile: %+v", p)
	}

	// The name is free when the first has ended.
	first.server.Stop(sidecar.Drain)
	if err := first.wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return second.client.Ready(t.Context()) == nil })
}

func TestAStateDirectoryThatIsInUseIsRefusedBeforeTheSidecarIsReady(t *testing.T) {
	r := single(t)
	cfg := config(t, r.cfg.Options.Endpoints[0])
	cfg.Options.StateDir = r.cfg.Options.StateDir
	second := sidecar.New(cfg)
	wantCode(t, second.Listen(t.Context()), problem.HostInUse)
	if second.Addr() != nil {
		t.Errorf("it listens at %s", second.Addr())
	}
	r.pool("db", 1) // which changes nothing
	r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
}

func TestEveryEndpointIsInTheDocument(t *testing.T) {
	r := single(t)
	r.readDocument()
	var doc struct {
		OpenAPI string                               `json:"openapi"`
		Paths   map[string]map[string]map[string]any `json:"paths"`
	}
	decode(t, r.raw(request{method: "GET", path: "/openapi.json"}), &doc)
	var got []string
	for path, item := range doc.Paths {
		for method, op := range item {
			got = append(got, strings.ToUpper(method)+" "+path)
			responses, _ := op["responses"].(map[string]any)
			if responses["default"] == nil || len(responses) < 2 {
				t.Errorf("%s %s documents %v", method, path, responses)
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"DELETE /v1/claims/{id}", "DELETE /v1/pools/{pool}",
		"GET /healthz", "GET /readyz", "GET /v1/actions", "GET /v1/claims", "GET /v1/claims/{id}", "GET /v1/claims/{id}/why",
		"GET /v1/coordinator",
		"GET /v1/events", "GET /v1/hosts", "GET /v1/limits", "GET /v1/pools", "GET /v1/pools/{pool}",
		"GET /v1/queues/{queue}/ready",
		"GET /v1/runs", "GET /v1/runs/{id}", "GET /v1/runs/{id}/events",
		"GET /v1/runs/{id}/steps", "GET /v1/runs/{id}/steps/{step}", "GET /v1/runs/{id}/steps/{step}/{index}",
		"GET /v1/runs/{id}/steps/{step}/{index}/log", "GET /v1/runs/{id}/why",
		"GET /v1/sources", "GET /v1/sources/{name}", "GET /v1/whoami", "GET /v1/workers",
		"PATCH /v1/limits", "PATCH /v1/pools/{pool}",
		"POST /v1/claims", "POST /v1/claims/{id}/renew", "POST /v1/claims/{id}/revoke",
		"POST /v1/pools/{pool}/pause", "POST /v1/pools/{pool}/resume",
		"POST /v1/runs", "POST /v1/runs/{id}/cancel", "POST /v1/runs/{id}/finish", "POST /v1/runs/{id}/heartbeat",
		"POST /v1/runs/{id}/retry", "POST /v1/runs/{id}/start",
		"POST /v1/runs/{id}/steps/{step}/{index}/cancel",
		"POST /v1/runs/{id}/steps/{step}/{index}/finish", "POST /v1/runs/{id}/steps/{step}/{index}/renew",
		"POST /v1/runs/{id}/steps/{step}/{index}/retry", "POST /v1/runs/{id}/steps/{step}/{index}/take",
		"POST /v1/sources/{name}/wake",
		"POST /v1/workers/{host}/{instance}/drain", "POST /v1/workers/{host}/{instance}/resume", "POST /v1/workers/{host}/{instance}/stop",
		"PUT /v1/limits", "PUT /v1/pools/{pool}",
	}
	if !slices.Equal(got, want) || doc.OpenAPI != "3.1.0" {
		t.Errorf("version %s:\n%s", doc.OpenAPI, strings.Join(got, "\n"))
	}
}

func TestAnAddressThatIsNoneIsRefused(t *testing.T) {
	for _, addr := range []string{"", "localhost:7420", "ftp://x", "http://", "http://x/path", "unix://", "unix://host/path", "http://\x00"} {
		if c, err := client.Dial(addr, ""); problem.CodeOf(err) != problem.Invalid || c != nil {
			t.Errorf("%q: %v", addr, err)
		}
	}
	c, err := client.Dial("unix:///nowhere/at/all", "")
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.Ready(t.Context()), problem.Unavailable)
}
