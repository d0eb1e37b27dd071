package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
)

// HealthServer serves /healthz, /readyz and /metrics of a process that is no sidecar,
// behind the same door: of its configuration count Listen, TLS, Token, Names, Logger
// and Gatherer.
type HealthServer struct {
	on     listeners
	server *http.Server
	log    hclog.Logger
	task   sync.WaitGroup
	failed error // that of a listener which ended by itself; known after task
}

// ServeHealth begins to serve. Function missing says why the process is not ready, nil
// if it is. Its errors are problems of the field listen.
func ServeHealth(ctx context.Context, cfg Config, missing func() error) (*HealthServer, error) {
	cfg.fill()
	cfg.Socket = ""
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	on, err := listen(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	log := cfg.Logger.Named("health")
	h := &HealthServer{on: on, log: log, server: newHTTPServer(&door{
		guard: newGuard(&cfg), mux: healthMux(&cfg, missing), metrics: newMetrics(nil), log: log,
	}, log)}
	log.Info("listening", keyAddress, h.Addr().String())
	h.task.Go(func() {
		if err := h.server.Serve(on.tcp); !errors.Is(err, http.ErrServerClosed) {
			h.failed = fmt.Errorf("listening on %s ended: %w", on.tcp.Addr(), err)
			log.Error("nobody can ask for the health any more", keyError, h.failed)
		}
	})
	return h, nil
}

// Addr is the address that the server listens on.
func (h *HealthServer) Addr() net.Addr { return h.on.tcp.Addr() }

// Close ends the server, and returns why it had ended before, if it had. What is being
// answered gets a moment.
func (h *HealthServer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := h.server.Shutdown(ctx)
	if err != nil {
		err = h.server.Close()
	}
	h.task.Wait()
	return errors.Join(err, h.failed, h.on.close())
}

// healthMux answers what is asked about a process.
func healthMux(cfg *Config, missing func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, "ok") })
	mux.HandleFunc("GET "+readyPath, func(w http.ResponseWriter, _ *http.Request) {
		why := missing()
		if why == nil {
			writeHealth(w, "ready")
			return
		}
		code := problem.CodeOf(why)
		if code.Status() != http.StatusServiceUnavailable {
			code = problem.Unavailable
		}
		p := newProblem(code, "not ready: %s", why)
		p.NotReady = []string{why.Error()}
		p.write(w)
	})
	mux.Handle("GET "+metricsPath, metricsHandler(cfg))
	return mux
}

func writeHealth(w http.ResponseWriter, status string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(encodeEvent(Health{Status: status}), '\n')) // the client may be gone
}

// newHTTPServer returns a server that bounds what can be sent to it.
func newHTTPServer(handler http.Handler, log hclog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders,
		ConnContext: connContext, Protocols: protocols,
		ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}
