package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

const (
	// maxViewAge is from when on nothing is granted.
	maxViewAge = 2 * time.Second
	// readyTimeout bounds the check of the view.
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
	} else if why := s.unready(ctx); why != nil {
		missing = append(missing, fmt.Sprintf("etcd: %s", why))
	} else if old := s.viewAge(ctx); old > maxViewAge {
		missing = append(missing, fmt.Sprintf("view: etcd has not answered for %s", old.Truncate(100*time.Millisecond)))
		if why := a.cfg.etcdWaits(); why != nil {
			missing = append(missing, fmt.Sprintf("etcd: %s", why))
		}
	}
	if len(missing) == 0 {
		h, s := api.Health{Status: "ready"}, a.session.Load()
		warning := ""
		if h.Dispatcher, warning = s.dispatch.read(ctx); warning != "" {
			h.Warnings = append(h.Warnings, "dispatcher: "+warning)
		}
		if err := s.holders.Writable(); err != nil {
			h.Warnings = append(h.Warnings, fmt.Sprintf("state: %s", err))
		}
		if open := a.cfg.exposure(); open != "" {
			h.Warnings = append(h.Warnings, open)
		}
		return outputOf(h, nil)
	}
	p := api.NewProblem(code, "not ready: %s", strings.Join(missing, "; "))
	p.NotReady = missing
	return nil, p
}

// unready is why the instance cannot make claims now, nil if it can.
func (s *session) unready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return s.client.Unready(ctx)
}

// viewAge is how old the view of the pools is.
func (s *session) viewAge(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return s.client.Age(ctx)
}

// registerHealth registers what is asked about the process itself.
func (a *apiServer) registerHealth(h huma.API) {
	const tag = "process"
	health := operation(h, "health", http.MethodGet, api.HealthPath, tag, "Report that the process is alive")
	health.Security = []map[string][]string{} // probes have no token
	huma.Register(h, health, a.health)
	ready := operation(h, "ready", http.MethodGet, api.ReadyPath, tag, "Report whether claims can be granted")
	ready.Security = health.Security
	huma.Register(h, ready, a.readiness)
	a.mux.Handle("GET "+api.MetricsPath, metricsHandler(a.cfg, a.refuse))
}

// metricsHandler answers GET /metrics. Metrics that fail do not hide the others.
func metricsHandler(cfg *Config, refuse func(http.ResponseWriter, *http.Request, error) int) http.Handler {
	show := promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := access.NeedOf("metrics").Check(r.Context()); err != nil {
			refuse(w, r, err)
			return
		}
		show.ServeHTTP(w, r)
	})
}

// HealthServer serves /healthz, /readyz and /metrics of a process that is no sidecar,
// guarded in the same way. It uses Listen, TLS, Tokens, Policy, Names, Logger, Registerer and
// Gatherer of its configuration.
type HealthServer struct {
	on     *server.Listeners
	server *server.Server
	task   sync.WaitGroup
	failed error // of a listener that ended by itself; known after task
}

// ServeHealth begins to serve. Function missing returns why the process is not ready, nil
// if it is. Its errors are problems of the field listen.
func ServeHealth(ctx context.Context, cfg Config, missing func() error) (*HealthServer, error) {
	cfg.fill()
	cfg.Socket = ""
	web := cfg.http()
	if err := web.Validate(); err != nil {
		return nil, err
	}
	on, err := server.Listen(ctx, &web)
	if err != nil {
		return nil, err
	}
	server.RegisterCertificate(cfg.Registerer, &web)
	log := cfg.Logger.Named("health")
	h := &HealthServer{on: on, server: server.Serve(on, server.NewHandler(server.Handler{
		Config: web, Routes: healthMux(&cfg, missing), Refuse: refuse, Metrics: server.NewMetrics(nil), Log: log,
	}))}
	log.Info("listening", keyAddress, h.Addr().String())
	h.task.Go(func() {
		for h.failed = range h.server.Failed() {
			log.Error("the health is no longer served", keyError, h.failed)
		}
	})
	return h, nil
}

// Addr is the address that the server listens on.
func (h *HealthServer) Addr() net.Addr { return h.on.Addr() }

// Close ends the server, and returns why it had ended before, if it had. What is being
// answered gets a moment.
func (h *HealthServer) Close() error {
	err := h.server.Close()
	h.task.Wait()
	return errors.Join(err, h.failed, h.on.Close())
}

// healthMux answers what is asked about a process.
func healthMux(cfg *Config, missing func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.HealthPath, func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, "ok") })
	mux.HandleFunc("GET "+api.ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		why := missing()
		if why == nil {
			writeHealth(w, "ready")
			return
		}
		code := problem.CodeOf(why)
		if code.Status() != http.StatusServiceUnavailable {
			code = problem.Unavailable
		}
		p := api.NewProblem(code, "not ready: %s", why)
		p.NotReady = []string{why.Error()}
		p.Write(w)
	})
	mux.Handle("GET "+api.MetricsPath, metricsHandler(cfg, refuse))
	return mux
}

func writeHealth(w http.ResponseWriter, status string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(server.Encode(api.Health{Status: status}), '\n')) // the client may be gone
}
