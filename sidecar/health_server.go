package sidecar

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// HealthServer serves /healthz, /readyz and /metrics of a process that is no sidecar,
// behind the same door: of its configuration count Listen, TLS, Token, Names, Logger
// and Gatherer.
type HealthServer struct {
	on     *server.Listeners
	server *server.Server
	task   sync.WaitGroup
	failed error // of a listener that ended by itself; known after task
}

// ServeHealth begins to serve. Function missing says why the process is not ready, nil
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
	log := cfg.Logger.Named("health")
	h := &HealthServer{on: on, server: server.Serve(on, server.NewHandler(server.Handler{
		Config: web, Open: probes, Routes: healthMux(&cfg, missing), Refuse: refuse, Metrics: server.NewMetrics(nil), Log: log,
	}))}
	log.Info("listening", keyAddress, h.Addr().String())
	h.task.Go(func() {
		for h.failed = range h.server.Failed() {
			log.Error("nobody can ask for the health any more", keyError, h.failed)
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
	mux.Handle("GET "+api.MetricsPath, metricsHandler(cfg))
	return mux
}

func writeHealth(w http.ResponseWriter, status string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(server.Encode(api.Health{Status: status}), '\n')) // the client may be gone
}
