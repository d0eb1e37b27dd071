package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/berthhq/berth/internal/own"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// socketMode is the default; the folder of the socket can still keep its group out.
	socketMode, socketDirMode = 0o660, 0o700
	// MaxSocketPath is the longest path to listen at, in bytes: what the address of
	// a socket can have, 107, less the end that the path has at first.
	MaxSocketPath = 99
	// dialStale bounds the check whether a process listens on a socket.
	dialStale = time.Second
)

// socket is a unix socket that listens. It gets its name only when it is ready,
// so no process finds it with other rights, and a socket that is in use is never
// replaced.
type socket struct {
	*net.UnixListener
	path  string
	self  os.FileInfo
	conns *conns
}

// listenSocket listens on a path. A socket that no process listens on any more is
// replaced.
func listenSocket(ctx context.Context, cfg *Config) (*socket, error) {
	path := cfg.Socket
	if len(path) > MaxSocketPath {
		return nil, problem.Field("socket", "the path is %d bytes long: use at most %d", len(path), MaxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), socketDirMode); err != nil {
		return nil, problem.Field("socket", "its folder can't be made: %w", err)
	}
	if err := own.SocketFolder(filepath.Dir(path)); err != nil {
		return nil, problem.Field("socket", "%w", err)
	}
	if err := checkFree(ctx, path); err != nil {
		return nil, err
	}
	early := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(early); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, problem.Field("socket", "%w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"})
	if err != nil {
		return nil, problem.Field("socket", "%w", err)
	}
	l.SetUnlinkOnClose(false) // it has another name by then
	s := &socket{UnixListener: l, path: path}
	if err = setSocketGroup(early, cfg.SocketGroup); err != nil {
		return nil, errors.Join(problem.Field("socket_group", "%w", err), l.Close(), os.Remove(early))
	}
	err = os.Chmod(early, cmp.Or(cfg.SocketMode, socketMode))
	if err == nil {
		s.self, err = os.Lstat(early)
	}
	if err == nil {
		err = os.Rename(early, path)
	}
	if err != nil {
		return nil, errors.Join(problem.Field("socket", "%w", err), l.Close(), os.Remove(early))
	}
	return s, nil
}

// setSocketGroup gives a socket to a group, a name or a number; empty changes nothing. Only
// root can give it to a group that the process is not in.
func setSocketGroup(path, group string) error {
	if group == "" {
		return nil
	}
	gid, err := GroupID(group)
	if err != nil {
		return err
	}
	if err := os.Chown(path, -1, gid); err != nil {
		return fmt.Errorf("the socket can't be given to group %s: %w", group, err)
	}
	return nil
}

// GroupID returns the id of a group of this host, which is given by name or number.
func GroupID(group string) (int, error) {
	number := group
	if _, err := strconv.ParseUint(group, 10, 32); err != nil {
		found, err := user.LookupGroup(group)
		if err != nil {
			return 0, fmt.Errorf("there is no group %q on this host", group)
		}
		number = found.Gid
	}
	gid, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("the id of group %q is not a number: %w", group, err)
	}
	return int(gid), nil
}

// checkFree refuses a path that is no socket, or that a process listens on.
func checkFree(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return problem.Field("socket", "%w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return problem.Field("socket", "%s is there, and is no socket", path)
	}
	dialer := net.Dialer{Timeout: dialStale}
	c, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close() // it was only to see
		return problem.Field("socket", "another process listens on %s: stop it, or use another socket", path)
	}
	return nil
}

// Accept returns the next connection.
func (s *socket) Accept() (net.Conn, error) { return s.conns.accept(s.UnixListener, true) }

// Addr is the socket under the name that it is found by.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close ends listening, and removes the socket unless another took its place.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.self) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// Listeners are what a server listens on.
type Listeners struct {
	tcp  net.Listener // nil for none
	unix *socket      // nil for none
	// conns bounds the connections of both.
	conns *conns
}

// Listen opens what a configuration asks for. Its errors are problems of the fields
// listen and socket.
func Listen(ctx context.Context, cfg *Config) (_ *Listeners, err error) {
	l := &Listeners{conns: newConns(cfg.MaxConns)}
	if cfg.Listen != "" {
		var lc net.ListenConfig
		tcp, err := lc.Listen(ctx, "tcp", cfg.Listen)
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w; choose another with --listen; 127.0.0.1:0 chooses a free port", err)
			}
			return nil, problem.Field("listen", "%w", err)
		}
		if l.tcp = (&clientListener{tcp, l.conns, cfg.TLS == nil}); cfg.TLS != nil {
			l.tcp = tls.NewListener(l.tcp, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				conf := cfg.TLS().Clone()
				conf.NextProtos = []string{"h2", "http/1.1"}
				return conf, nil
			}})
		}
	}
	if cfg.Socket != "" {
		if l.unix, err = listenSocket(ctx, cfg); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.unix.conns = l.conns
	}
	return l, nil
}

// Addr returns the TCP address, nil if there is none.
func (l *Listeners) Addr() net.Addr {
	if l.tcp == nil {
		return nil
	}
	return l.tcp.Addr()
}

// Each calls f with each listener.
func (l *Listeners) Each(f func(net.Listener)) {
	if l.tcp != nil {
		f(l.tcp)
	}
	if l.unix != nil {
		f(l.unix)
	}
}

// Close ends listening.
func (l *Listeners) Close() error {
	var errs []error
	l.Each(func(one net.Listener) {
		if err := one.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	})
	return errors.Join(errs...)
}
