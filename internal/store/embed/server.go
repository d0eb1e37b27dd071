package embed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	etcd "go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// failedTimeout bounds [Server.Close] after etcd has stopped by itself: parts of
// it may wait for ever for the part that failed.
const failedTimeout = time.Second

// Server is a running member.
type Server struct {
	cfg  Config
	lock *fileutil.LockedFile
	etcd *etcd.Etcd
	// grpc serves the clients. etcd's own Close waits for their streams; stopping
	// this first cuts them off.
	grpc *grpc.Server

	closing atomic.Bool // etcd's complaints no longer matter
	failed  atomic.Bool // etcd has stopped by itself
	errs    chan error  // holds why, if it did
	served  chan *grpc.Server
	once    sync.Once
	closed  error // what the first Close returned
}

// Start starts a member and returns once it answers clients: within a second
// or two if it is alone. A member of a cluster answers when most of them run.
// Its errors are those of this package, or say what is wrong with cfg.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	ec, err := cfg.etcd()
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if err := probeSocket(&cfg); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	lock, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", explain(&cfg, err))
	}
	s := &Server{
		cfg:    cfg,
		lock:   lock,
		errs:   make(chan error, 1),
		served: make(chan *grpc.Server, 1),
	}
	log := &bridge{log: cfg.Logger.Named("etcd"), quiet: &s.closing}
	ec.ZapLoggerBuilder = etcd.NewZapLoggerBuilder(log.zapLogger(s.stopped))
	ec.ServiceRegister = func(g *grpc.Server) { s.served <- g }

	if err := s.boot(ctx, ec); err != nil {
		return nil, fmt.Errorf("start etcd: %w", explain(&cfg, err))
	}
	return s, nil
}

// boot runs etcd until it serves. On an error nothing stays behind, unless etcd
// gave up in the midst of starting: then its listeners do, until the process
// ends.
func (s *Server) boot(ctx context.Context, ec *etcd.Config) error {
	type booted struct {
		etcd *etcd.Etcd
		err  error
	}
	done := make(chan booted, 1)
	go func() { // of its own, because etcd ends the goroutine when it gives up
		e, err := etcd.StartEtcd(ec)
		done <- booted{e, err}
	}()

	abandon := func(err error) error {
		s.closing.Store(true)
		return errors.Join(err, s.lock.Close())
	}
	select {
	case b := <-done:
		if b.err != nil {
			return abandon(b.err)
		}
		s.etcd = b.etcd
	case err := <-s.errs:
		return abandon(err)
	case <-ctx.Done():
		go func() {
			if b := <-done; b.err == nil {
				b.etcd.Close()
			}
		}()
		return abandon(fmt.Errorf("not ready: %w", context.Cause(ctx)))
	}
	go s.relay()

	select {
	case s.grpc = <-s.served:
		return nil
	case err := <-s.errs:
		return errors.Join(err, s.Close())
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("not ready: %w", context.Cause(ctx)), s.Close())
	}
}

// Endpoint is the address for clients on this machine: with a scheme, and with
// the port that was chosen.
func (s *Server) Endpoint() string { return s.cfg.endpoint(s.etcd.Clients[0].Addr()) }

// Addr is the address that clients are listened for at.
func (s *Server) Addr() net.Addr { return s.etcd.Clients[0].Addr() }

// IsLeader reports whether this member leads its cluster.
func (s *Server) IsLeader() bool { return s.etcd.Server.Leader() == s.etcd.Server.MemberID() }

// Err delivers why etcd stopped by itself, once, if it ever does. It is never
// closed. Close the server all the same.
func (s *Server) Err() <-chan error { return s.errs }

// stopped keeps the first reason why etcd stopped by itself.
func (s *Server) stopped(err error) {
	s.failed.Store(true)
	select {
	case s.errs <- explain(&s.cfg, err):
	default:
	}
}

// relay passes on what etcd's listeners report. It ends with them.
func (s *Server) relay() {
	for err := range s.etcd.Err() {
		if err != nil && !s.closing.Load() {
			s.stopped(err)
		}
	}
}

// Close stops the member: it transfers leadership, cuts off clients that are still
// connected, completes its writes, and unlocks the data directory.
// It takes at most [CloseTimeout]; the error is then [ErrStillStopping], and
// the data directory stays locked until the process ends. After the first time
// it does nothing more, and returns the same.
func (s *Server) Close() error { return s.stop(true) }

// Kill is Close without a transfer of leadership, as if the member had been
// killed: the other members notice after their election time.
func (s *Server) Kill() error { return s.stop(false) }

func (s *Server) stop(transferLeadership bool) error {
	s.once.Do(func() {
		s.closing.Store(true)
		timeout := CloseTimeout
		if s.failed.Load() {
			timeout = failedTimeout
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.shutDown(transferLeadership)
		}()
		select {
		case <-done:
			s.closed = s.lock.Close()
		case <-time.After(timeout):
			s.closed = fmt.Errorf("%w after %s: data directory %s", ErrStillStopping, timeout, s.cfg.DataDir)
		}
	})
	return s.closed
}

// shutDown takes etcd apart in an order in which nothing waits for another: its
// own Close alone waits for the streams of clients, for a peer to take over
// that may be gone, and for a member that never came up.
func (s *Server) shutDown(transferLeadership bool) {
	if transferLeadership {
		s.transferLeadership()
	}
	if s.grpc != nil {
		s.grpc.Stop()
	}
	s.etcd.Server.HardStop()
	s.etcd.Close()
}

// transferLeadership lets another member lead, if there is one that can and this one
// does. Within two election times such a member has taken over.
func (s *Server) transferLeadership() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Without success the others elect a leader by themselves.
		_ = s.etcd.Server.TryTransferLeadershipOnShutdown()
	}()
	select {
	case <-done:
	case <-time.After(2 * s.cfg.Election): // it ends when the member stops
	}
}

// probeTimeout is ample for a connection inside one machine.
const probeTimeout = time.Second

// probeSocket fails if another process listens on the unix socket: etcd would take it
// away from that. A socket without a listener is orphaned.
func probeSocket(cfg *Config) error {
	path, ok := socketPath(cfg.ClientListen)
	if !ok {
		return nil
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%w: unix socket %s", ErrAddressInUse, path), conn.Close())
}
