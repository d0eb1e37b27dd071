package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/server"
)

// StopMode is what becomes of the claims when a server stops, and of the runs that
// were started through it: with executors it is as with holders. A later one that
// is more urgent replaces one that is under way: they are listed by urgency.
type StopMode int

const (
	// Drain takes no new claims, waits for those there are to be released, for
	// [Config.DrainTimeout] at most, and has the holders that are left stop. It is
	// what the end of Run's context means.
	Drain StopMode = iota + 1
	// Revoke is Drain without the wait.
	Revoke
	// Leave stops at once and leaves the claims to the next server, which takes
	// them over if it comes within their leases. It needs a state directory. A
	// drain under way becomes one, a Revoke does not.
	Leave
)

// String names the mode.
func (m StopMode) String() string {
	switch m {
	case Drain:
		return "drain"
	case Revoke:
		return "revoke"
	case Leave:
		return "leave"
	}
	return fmt.Sprintf("StopMode(%d)", int(m))
}

// Server is one sidecar. It runs once.
type Server struct {
	cfg Config
	log hclog.Logger
	// stops holds what Stop was called with.
	stops chan StopMode

	// mu guards what follows.
	mu  sync.Mutex
	on  *server.Listeners // nil before Listen
	ran bool
}

// New returns a server. It does nothing until [Server.Listen] or [Server.Run].
func New(cfg Config) *Server {
	cfg.fill()
	return &Server{cfg: cfg, log: cfg.Logger.Named("sidecar"), stops: make(chan StopMode, 8)}
}

// Listen opens the listeners, so that [Server.Addr] is known. Run does it unless
// it was done. Its errors are problems of the fields listen and socket, and
// host_in_use if another process has the state directory.
func (s *Server) Listen(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != nil {
		return nil
	}
	web := s.cfg.http()
	if err := web.Validate(); err != nil {
		return err
	}
	if err := s.lookAtState(); err != nil {
		return err
	}
	on, err := server.Listen(ctx, &web)
	if err != nil {
		return err
	}
	s.on = on
	s.on.Each(func(l net.Listener) { s.log.Info("listening", keyAddress, l.Addr().String()) })
	if open := s.cfg.exposure(); open != "" && !s.cfg.Policy.Open { // who opens it says so
		s.log.Warn(open)
	}
	return nil
}

// lookAtState refuses a state directory that can't be used, or that another process
// uses: before the server is announced. It is taken when etcd has
// answered.
func (s *Server) lookAtState() error {
	o := s.cfg.Options
	if o.StateDir == "" {
		return nil
	}
	state, err := lease.OpenState(filepath.Join(o.StateDir, o.Instance))
	if err != nil {
		return err
	}
	return state.Close()
}

// Addr is the TCP address that the server listens on, nil if there is none.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on == nil {
		return nil
	}
	return s.on.Addr()
}

// Stop ends Run. It does not wait for that, and may be called more than once.
func (s *Server) Stop(mode StopMode) {
	select {
	case s.stops <- mode:
	default: // eight are waiting already
	}
}

var errRan = errors.New("sidecar: Run was called before")

// Run serves until ctx ends, [Server.Stop] is called, or the instance can't go
// on, and returns when all that it has started has ended. It answers before etcd
// does: see /readyz. Its error is nil after a stop that was asked for.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	ran, on := s.ran, s.on
	s.ran = true
	s.mu.Unlock()
	if ran {
		return errRan
	}
	reg := newScope(s.cfg.Registerer)
	defer reg.close()
	m := newMetrics(reg.registerer())
	web := s.cfg.http()
	server.RegisterCertificate(reg.registerer(), &web)
	a, err := newAPI(&s.cfg, m)
	if err != nil {
		return errors.Join(fmt.Errorf("sidecar: the OpenAPI document: %w", err), on.Close())
	}
	served := server.Serve(on, a.handler())
	return errors.Join(s.live(ctx, a, served), a.close(served), on.Close())
}

// close ends the HTTP server: what is being answered gets a moment for it.
func (a *apiServer) close(web *server.Server) error {
	a.waits.stop(errStopping)
	a.pages.Close()
	if s := a.session.Load(); s != nil {
		s.hub.Close()
	}
	err := web.Close()
	a.faults.Flush()
	return err
}

var errStopping = problem.New(problem.Stopping, "the sidecar is stopping")

const (
	// firstPause and lastPause are those between tries to reach etcd.
	firstPause, lastPause = 200 * time.Millisecond, 5 * time.Second
)

// missingOf makes of what is waited for at the start the problem of requests that
// come meanwhile: one that may be over soon. Another process that has the name may
// be one that has ended; if it has not, the server does.
func missingOf(why error) *problem.Error {
	switch code := problem.CodeOf(why); code {
	case problem.EtcdUnavailable, problem.EtcdFull, problem.EtcdDenied:
		return problem.New(code, "%w", why)
	}
	return problem.New(problem.Unavailable, "%w", why)
}

// open reaches etcd, trying until ctx ends while it does not answer. That etcd
// refuses the user, or that another process is this host's sidecar, is not for waiting
// unless the configuration says so.
func (s *Server) open(ctx context.Context, a *apiServer) (*instance.Client, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, lastPause
	options := s.cfg.Options
	explain := s.cfg.Explain
	if explain == nil {
		explain = func(err error) error { return err }
	}
	options.OnWait = func(why error) { a.missing.Store(missingOf(explain(why))) }
	for tries := new(lograte.Tries); ; {
		var err error
		if s.cfg.Await != nil {
			options.Host, err = s.cfg.Await(ctx)
		}
		var client *instance.Client
		if err == nil {
			client, err = instance.Open(ctx, options)
		}
		if err == nil {
			return client, nil
		}
		err = explain(err)
		text := "etcd can't be reached, trying again"
		if code := problem.CodeOf(err); code != problem.EtcdUnavailable && code != problem.EtcdFull {
			text = "claims can't be made yet, trying again"
			if !s.cfg.Persist && !errors.Is(err, store.ErrInsecure) { // certificates are read again when they change
				return nil, err
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		a.missing.Store(missingOf(err))
		wait := pause.NextBackOff()
		if tries.Allow(err) {
			s.log.Warn(text, keyError, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
