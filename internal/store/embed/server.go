package embed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	etcd "go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// failedTimeout is the longest time of [Server.Close] after etcd has failed: parts of etcd may wait
// for ever for the part that failed.
const failedTimeout = time.Second

// Server is a running member.
type Server struct {
	cfg  Config
	lock *fileutil.LockedFile
	etcd *etcd.Etcd
	// grpc serve the clients, one for each address. etcd's own Close would wait for their streams;
	// stopping these first ends the streams.
	grpc []*grpc.Server

	closing atomic.Bool // etcd's log messages no longer matter
	failed  atomic.Bool // etcd has failed
	errs    chan error  // holds the reason of a failure
	served  chan *grpc.Server
	once    sync.Once
	closed  error // what the first Close returned
}

// Start starts a member and returns once it answers clients. A single member takes a second or two;
// a member of a larger cluster answers when a majority runs. Start returns the errors of this
// package, or an error that says what is wrong with cfg.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if len(cfg.Members) > 0 {
		withoutProxy()
	}
	ec, err := cfg.etcd()
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if err := cfg.checkSockets(); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if cfg.Dir == nil {
		if cfg.Dir, err = OpenDataDir(cfg.DataDir); err != nil {
			return nil, fmt.Errorf("start etcd: %w", err)
		}
	}
	lock := cfg.Dir.lock
	if err := errors.Join(probeSockets(&cfg), cfg.protectSockets()); err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd: %w", err), lock.Close())
	}
	s := &Server{
		cfg:    cfg,
		lock:   lock,
		errs:   make(chan error, 1),
		served: make(chan *grpc.Server, len(ec.ListenClientUrls)),
	}
	log := &bridge{log: cfg.Logger.Named("etcd"), quiet: &s.closing}
	ec.ZapLoggerBuilder = etcd.NewZapLoggerBuilder(log.zapLogger(s.stopped))
	ec.ServiceRegister = func(g *grpc.Server) { s.served <- g }

	if err := s.boot(ctx, ec); err != nil {
		return nil, fmt.Errorf("start etcd: %w", explain(&cfg, err))
	}
	if err := cfg.openSockets(); err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd: %w: %w", ErrDataDir, err), s.Close())
	}
	return s, nil
}

// boot runs etcd until it serves. After an error, nothing is left running, unless etcd gave up
// during its start: then its listeners stay open until the process ends.
func (s *Server) boot(ctx context.Context, ec *etcd.Config) error {
	type booted struct {
		etcd *etcd.Etcd
		err  error
	}
	done := make(chan booted, 1)
	go func() { // a separate goroutine, because etcd ends it when it gives up
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
	go func() { // ends with etcd
		<-s.etcd.Server.StopNotify()
		if s.closing.Load() {
			return
		}
		err := errors.New("etcd has ended")
		if s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID()) == nil {
			err = ErrRemoved
		}
		s.stopped(err)
	}()

	for range ec.ListenClientUrls {
		select {
		case g := <-s.served:
			s.grpc = append(s.grpc, g)
		case err := <-s.errs:
			return errors.Join(err, s.Close())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not ready: %w", context.Cause(ctx)), s.Close())
		}
	}
	return nil
}

// Endpoint returns the address for clients on this machine, with its scheme and the chosen port.
func (s *Server) Endpoint() string { return s.cfg.endpoint(s.Addr()) }

// Addr returns the address of the listener for clients of [Config.ClientListen].
func (s *Server) Addr() net.Addr {
	path, unix := socketPath(s.cfg.ClientListen)
	for _, l := range s.etcd.Clients { // in any order, with the other sockets
		if at := l.Addr(); at.Network() != "unix" || unix && at.String() == path {
			return at
		}
	}
	return nil // etcd has a listener for each address
}

// ID returns the id of this member in its cluster.
func (s *Server) ID() uint64 { return uint64(s.etcd.Server.MemberID()) }

// Identity returns which member of which cluster this is.
func (s *Server) Identity() Identity {
	c := s.etcd.Server.Cluster()
	id := Identity{ClusterID: uint64(c.ID()), MemberID: s.ID(), Revision: s.etcd.Server.KV().Rev()}
	for _, m := range c.Members() {
		id.Members = append(id.Members, Peer{ID: uint64(m.ID), Name: m.Name, PeerURLs: m.PeerURLs})
	}
	return id
}

// IsLearner reports whether this member has no vote yet, so that it serves no clients of its cluster.
func (s *Server) IsLearner() bool {
	m := s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID())
	return m != nil && m.IsLearner
}

// IsLeader reports whether this member leads its cluster.
func (s *Server) IsLeader() bool { return s.etcd.Server.Leader() == s.etcd.Server.MemberID() }

// HasLeader reports whether this member knows a leader of its cluster, which there is only with a majority.
func (s *Server) HasLeader() bool { return s.etcd.Server.Leader() != 0 }

// Err returns a channel that delivers the reason once if etcd fails. The channel is never closed.
// Call [Server.Close] after a failure, too.
func (s *Server) Err() <-chan error { return s.errs }

// stopped keeps the first reason why etcd failed.
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

// Close stops the member: it transfers leadership, disconnects clients, completes its writes, and
// unlocks the data directory. If this takes longer than [CloseTimeout], Close returns
// [ErrStillStopping], and the data directory stays locked until the process ends. Further calls
// return the same error and do nothing.
func (s *Server) Close() error { return s.stop(true) }

// Kill is like Close, but without a transfer of leadership, as if the process had been killed: the
// other members notice after their election time.
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
	for _, g := range s.grpc {
		g.Stop()
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

// probeSockets fails if another process listens on a unix socket of the member: etcd would take it
// away from that. A socket without a listener is orphaned.
func probeSockets(cfg *Config) error {
	for _, path := range cfg.sockets() {
		conn, err := net.DialTimeout("unix", path, probeTimeout)
		if err == nil {
			return errors.Join(fmt.Errorf("%w: unix socket %s", ErrAddressInUse, path), conn.Close())
		}
	}
	return nil
}

// protectSockets lets only the user of this process, and the group of the sockets, enter the data
// directory if sockets are in it: any user that reaches a socket for clients can read and change everything.
func (c *Config) protectSockets() error {
	dir, own, err := c.ownSockets()
	if err != nil || len(own) == 0 {
		return err
	}
	if c.SocketGroup > 0 {
		return c.openToGroup(dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("%w: other users could reach the socket in it: %w", ErrDataDir, err)
	}
	return nil
}

// openToGroup lets the group of the sockets enter the data directory, and the folder that contains it if
// other users can't do so already.
func (c *Config) openToGroup(dir string) error {
	folders := []string{dir}
	parent := filepath.Dir(dir)
	if info, err := os.Stat(parent); err == nil && info.Mode()&0o001 == 0 {
		folders = append(folders, parent)
	}
	for _, one := range folders {
		if err := errors.Join(os.Chown(one, -1, c.SocketGroup), os.Chmod(one, 0o750)); err != nil {
			return fmt.Errorf("%w: it can't be opened to group %d: %w", ErrDataDir, c.SocketGroup, err)
		}
	}
	return nil
}

// openSockets sets the modes of the sockets in the data directory.
func (c *Config) openSockets() error {
	_, own, err := c.ownSockets()
	for _, path := range own {
		if c.SocketGroup > 0 {
			err = errors.Join(err, os.Chown(path, -1, c.SocketGroup), os.Chmod(path, 0o660))
		} else {
			err = errors.Join(err, os.Chmod(path, 0o600))
		}
	}
	return err
}

// ownSockets returns the absolute path of the data directory, and those of the sockets in it.
func (c *Config) ownSockets() (dir string, own []string, err error) {
	dir, err = filepath.Abs(c.DataDir)
	for _, path := range c.sockets() {
		if filepath.Dir(path) == dir {
			own = append(own, path)
		}
	}
	return dir, own, err
}
