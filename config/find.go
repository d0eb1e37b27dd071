package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/berthhq/berth/internal/own"
)

const (
	// defaultEndpoint is the default of endpoints.
	defaultEndpoint = "127.0.0.1:2379"
	// devDataDir and serverDataDir are the defaults of data_dir.
	devDataDir, serverDataDir = ".berth", "/var/lib/berth"
	// EtcdFolder is the folder of etcd in the data directory of dev and of a server.
	EtcdFolder = "etcd"
	// maxSocketPath is the longest path of a unix socket, in bytes. With a longer one, dev has no socket.
	maxSocketPath = 107
)

// EtcdSocket returns the path of the socket of etcd in the data directory of dev, and of a server that is
// alone. Only the user of that process, and root, can connect to it.
func EtcdSocket(dataDir string) string { return filepath.Join(dataDir, EtcdFolder, "etcd.sock") }

// onSockets reports whether all endpoints are unix sockets, which need no TLS.
func (s *Settings) onSockets() bool {
	return len(s.Endpoints) > 0 && !slices.ContainsFunc(s.Endpoints, func(e string) bool { return !isSocketURL(e) })
}

// isSocketURL reports whether an endpoint is a unix socket.
func isSocketURL(endpoint string) bool { return strings.HasPrefix(endpoint, unixScheme) }

// dialEndpoint connects to an endpoint, but to no socket that another user may have made in the place of
// etcd's.
func dialEndpoint(ctx context.Context, address string) (net.Conn, error) {
	path, ok := strings.CutPrefix(address, unixScheme)
	if !ok {
		return connect(ctx, "tcp", address)
	}
	if err := own.Socket(path); err != nil {
		return nil, err
	}
	conn, err := connect(ctx, "unix", path)
	return conn, denied(err)
}

// howToUse says how a user may connect to the socket of the etcd of a server.
const howToUse = "run this as the user of that server, or join the group of its setting socket_group"

// denied adds to an error of a connection to a socket what helps if this user may not connect to it.
func denied(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w; %s", err, howToUse)
}

// findEtcd says where etcd is if no endpoints were given. A server knows its own etcd.
func (l *loader) findEtcd() {
	s := &l.settings
	switch {
	case len(s.Cluster) > 0:
		s.Endpoints = s.clusterEndpoints()
	case l.isServer() || !l.need(Etcd):
	case s.CACert != "" || s.Cert != "":
		l.etcdOfServer()
	default:
		sockets := []localSocket{{EtcdSocket(devDataDir), true}, {EtcdSocket(serverDataDir), false}}
		if at := l.origins["data_dir"]; at.strength != byDefault && l.sound("data_dir") {
			sockets = slices.Insert(sockets, 0, localSocket{EtcdSocket(s.DataDir), !filepath.IsAbs(s.DataDir)})
		}
		s.finder = &finder{address: defaultEndpoint, sockets: sockets}
	}
}

// etcdOfServer takes the address of a server that is alone with TLS from its settings, which commands share.
func (l *loader) etcdOfServer() {
	s := &l.settings
	if l.origins["etcd_listen"].strength == byDefault || !l.sound("etcd_listen") {
		return
	}
	host, port, err := net.SplitHostPort(s.EtcdListen)
	if err == nil && port != "0" && !isEverywhere(host) {
		s.Endpoints = []string{"https://" + s.EtcdListen}
	}
}

// localSocket is a socket at which a process of berth on this machine may serve etcd.
type localSocket struct {
	path string
	// own is set if only a socket of the user of this process counts: the path depends on the current
	// folder, which can be that of another user.
	own bool
}

// finder finds the etcd of this machine. After the first connection it stays with that etcd: another one
// has other claims.
type finder struct {
	// address is the one in place of which the sockets count, too.
	address string
	sockets []localSocket

	mu sync.Mutex
	// found connects to that etcd again. It is nil until there was a connection.
	found func(context.Context) (net.Conn, error)
	// name is the address of that etcd.
	name string
}

// at returns the address of the etcd that was found, or where it is looked for.
func (f *finder) at() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.name, f.address)
}

// dial connects to an address. In place of that of the finder, it connects to the first of the sockets at
// which a process listens. Every user of the machine can listen at the address if no other one does, so
// it does not count if a socket is there whose server has ended, or the data of a 'berth dev' that has.
func (f *finder) dial(ctx context.Context, address string) (net.Conn, error) {
	if address != f.address {
		return connect(ctx, "tcp", address)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		return f.found(ctx)
	}
	var closed []string // sockets that this user may not connect to
	var ended error
	for _, s := range f.sockets {
		conn, err := s.dial(ctx)
		switch {
		case err == nil:
			f.found, f.name = s.dial, unixScheme+s.path
			return conn, nil
		case errors.Is(err, syscall.ECONNREFUSED):
			return nil, hasEnded(s.path, err)
		case errors.Is(err, fs.ErrPermission):
			closed = append(closed, s.path)
		case s.ended():
			ended = hasEnded(s.path, err)
		}
	}
	if ended != nil {
		return nil, ended
	}
	at := func(ctx context.Context) (net.Conn, error) { return connect(ctx, "tcp", address) }
	conn, err := at(ctx)
	if err != nil {
		return nil, f.notFound(err, closed)
	}
	f.found, f.name = at, address
	return conn, nil
}

func hasEnded(socket string, err error) error {
	return fmt.Errorf("no process serves %s: its server has ended, start it again, or give endpoints: %w", socket, err)
}

// ended reports whether a 'berth dev' of this user has served the socket, and removed it when it stopped.
func (s localSocket) ended() bool {
	path, err := filepath.Abs(s.path)
	if !s.own || err != nil || len(path) > maxSocketPath || checkOwner(filepath.Dir(path)) != nil {
		return false
	}
	_, err = os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// notFound adds to an error what is known of the sockets that this process may not connect to, and of servers on
// this machine that serve none.
func (f *finder) notFound(err error, closed []string) error {
	for _, path := range closed {
		info, failed := os.Lstat(path)
		if failed != nil {
			err = fmt.Errorf("%w; whether a server of this machine has a socket is unknown (%w); %s, or give endpoints", err, failed, howToUse)
			continue
		}
		err = fmt.Errorf("%w; %s belongs to %s; %s, or give other endpoints", err, path, own.OwnerOf(info), howToUse)
	}
	for _, s := range f.sockets {
		if s.servesElsewhere() {
			err = fmt.Errorf("%w; %s has the data of a server that serves etcd at no socket: set %s to its settings file, such as /etc/berth/berth.yaml, or give endpoints", err, filepath.Dir(s.path), FileEnv)
		}
	}
	return err
}

// servesElsewhere reports whether the folder of a server is there without a socket, which a member of a cluster
// and a server with TLS do not serve.
func (s localSocket) servesElsewhere() bool {
	if _, err := os.Lstat(s.path); s.own || !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, err := os.Stat(filepath.Dir(s.path))
	return err == nil
}

func (s localSocket) dial(ctx context.Context) (net.Conn, error) {
	if s.own {
		if err := checkOwner(filepath.Dir(s.path)); err != nil {
			return nil, err
		}
	}
	return connect(ctx, "unix", s.path)
}

func connect(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}
