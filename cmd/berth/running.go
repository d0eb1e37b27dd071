package main

import (
	"context"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/sidecar"
)

// againEvery is the pause before a part of a server that has ended starts again.
const againEvery = 2 * time.Second

// runningSidecar is the sidecar of this process.
type runningSidecar struct {
	cfg sidecar.Config

	mu       sync.Mutex // guards what follows
	server   *sidecar.Server
	stopping chan struct{} // closed by stop
	stopped  bool
}

func newRunning(cfg sidecar.Config) *runningSidecar {
	return &runningSidecar{cfg: cfg, server: sidecar.New(cfg), stopping: make(chan struct{})}
}

// stop ends the sidecar. It does not wait for that, and may be called more than once.
func (r *runningSidecar) stop(mode sidecar.StopMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.stopped = true
		close(r.stopping)
	}
	r.server.Stop(mode)
}

// current returns the sidecar, and whether it was stopped.
func (r *runningSidecar) current() (server *sidecar.Server, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server, r.stopped
}

// listen opens the listeners and calls listening.
func (r *runningSidecar) listen(ctx context.Context, listening func(*sidecar.Server) error) error {
	server, _ := r.current()
	if err := server.Listen(ctx); err != nil {
		return err
	}
	return listening(server)
}

// run runs the sidecar, which ends when it was stopped or has failed.
func (r *runningSidecar) run(ctx context.Context) error {
	server, _ := r.current()
	return server.Run(ctx)
}

// keep runs the sidecar until it is stopped. If it fails, it starts again, at the same address. Keep calls
// listening when the sidecar listens for the first time; its error is that of listening, or one with which the
// sidecar has ended after it was stopped.
func (r *runningSidecar) keep(ctx context.Context, listening func(*sidecar.Server) error) error {
	listened := false
	for tries := new(lograte.Tries); ; {
		server, _ := r.current()
		err := server.Listen(ctx)
		if err == nil && !listened {
			listened = true
			if addr := server.Addr(); addr != nil {
				r.cfg.Listen = addr.String()
			}
			if err := listening(server); err != nil {
				r.stop(sidecar.Leave)
				return err
			}
		}
		if err == nil {
			err = server.Run(ctx)
		}
		if _, stopped := r.current(); stopped || err == nil {
			return err
		}
		if tries.Allow(err) {
			r.cfg.Logger.Error("the sidecar can't serve, and tries again; etcd continues", "error", err, "retry", againEvery)
		}
		select {
		case <-time.After(againEvery):
		case <-r.stopping:
			return nil
		}
		r.mu.Lock()
		if !r.stopped {
			r.server = sidecar.New(r.cfg)
		}
		r.mu.Unlock()
	}
}
