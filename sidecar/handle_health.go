package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// probes are the paths that need no token.
var probes = []string{api.HealthPath, api.ReadyPath}

const (
	// maxViewAge is from when on nothing is granted.
	maxViewAge = 2 * time.Second
	// readyTimeout bounds the look at the view.
	readyTimeout = time.Second
)

// health answers GET /healthz: the process lives.
func (a *apiServer) health(context.Context, *struct{}) (*output[api.Health], error) {
	return outputOf(api.Health{Status: "ok"}, nil)
}

// readiness answers GET /readyz: claims can be made.
func (a *apiServer) readiness(ctx context.Context, _ *struct{}) (*output[api.Health], error) {
	code, missing := problem.EtcdUnavailable, []string{}
	if a.stopping.Load() != nil {
		code, missing = problem.Stopping, append(missing, "stopping")
	}
	if s, err := a.ready(); problem.CodeOf(err) == problem.Unavailable {
		code, missing = problem.Unavailable, append(missing, fmt.Sprintf("name: %s", err))
	} else if err != nil {
		missing = append(missing, fmt.Sprintf("etcd: %s", err))
	} else if old := s.viewAge(ctx); old > maxViewAge {
		missing = append(missing, fmt.Sprintf("view: nothing was heard from etcd for %s", old.Truncate(100*time.Millisecond)))
	}
	if len(missing) == 0 {
		h := api.Health{Status: "ready"}
		if err := a.session.Load().holders.Writable(); err != nil {
			h.Warnings = append(h.Warnings, fmt.Sprintf("state: %s", err))
		}
		return outputOf(h, nil)
	}
	p := api.NewProblem(code, "not ready: %s", strings.Join(missing, "; "))
	p.NotReady = missing
	return nil, p
}

// viewAge is how old the view of the pools is; readyTimeout and more if that
// can't be told.
func (s *session) viewAge(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	age, err := s.client.Age(ctx)
	if err != nil {
		return maxViewAge + readyTimeout
	}
	return age
}

// registerHealth registers what is asked about the process itself.
func (a *apiServer) registerHealth(h huma.API) {
	const tag = "process"
	health := operation(h, "health", http.MethodGet, api.HealthPath, tag, "Report that the process is alive")
	health.Security = []map[string][]string{} // probes have no token
	handle(a, h, health, a.health)
	ready := operation(h, "ready", http.MethodGet, api.ReadyPath, tag, "Report whether claims can be granted")
	ready.Security = health.Security
	huma.Register(h, ready, a.readiness)
	a.mux.Handle("GET "+api.MetricsPath, metricsHandler(a.cfg))
}

// metricsHandler answers GET /metrics. What can't be gathered does not hide the rest.
func metricsHandler(cfg *Config) http.Handler {
	return promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
