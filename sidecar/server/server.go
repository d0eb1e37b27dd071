package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// maxHeaders bounds the header of a request to 16 KB: net/http adds 4 KB to
	// the limit.
	maxHeaders = 12 << 10
	// maxUnread bounds what the bodies of a connection of HTTP/2 take before they are read: by
	// default it is 1 MiB for each.
	maxUnread = 256 << 10
	// headerTimeout bounds the wait for a header, idleTimeout for the next request
	// on a connection.
	headerTimeout, idleTimeout = 10 * time.Second, 2 * time.Minute
	// shutdownTimeout bounds the wait for answers that are under way at the end. A
	// connection on which nothing was asked yet can take all of it.
	shutdownTimeout = time.Second
)

// Config says where a server listens and who may use it.
type Config struct {
	// Listen is the TCP address, host:port, empty for none; port 0 is any free one.
	// Addresses other than loopback need TLS, and Tokens or client certificates.
	Listen string
	// Socket is the path of the unix socket, empty for none. Its folder is made, for the
	// user alone, if there is none.
	Socket string
	// SocketMode is the mode of the socket; 0660 if 0. SocketGroup is its group, a name or a
	// number; the group of the process if empty.
	SocketMode  fs.FileMode
	SocketGroup string
	// TLS is called for each connection over TCP, and returns how it speaks TLS; nil is plain
	// text. Client certificates that it verifies are identities.
	TLS func() *tls.Config
	// Tokens returns the tokens that requests over TCP can show; nil if there are none.
	Tokens func() access.Tokens
	// Attempts slow down the guessing of tokens; nil are those of this server alone.
	Attempts *access.Attempts
	// Policy says what identities may do. Its field Local is set by the server.
	Policy access.Policy
	// MaxConns bounds the connections; 0 is 10,000, or half of the files that the process may open
	// if that is less.
	MaxConns int
	// Names are the names, beyond localhost, the addresses and those in the certificate, under
	// which the server is reached: the allowed values of Host headers. One that begins with "*." matches any
	// first label, as in certificates.
	Names []string
}

// certificate returns the one that is shown to new connections, or nil.
func (c *Config) certificate() *x509.Certificate {
	if c.TLS == nil {
		return nil
	}
	if certs := c.TLS().Certificates; len(certs) > 0 {
		return certs[0].Leaf
	}
	return nil
}

// Validate refuses a server that anybody could use. It resolves the address.
func (c *Config) Validate() error {
	if c.Listen == "" && c.Socket == "" {
		return problem.Field("listen", "there is neither an address nor a socket to listen on")
	}
	if c.Listen == "" || c.TLS != nil && c.Identifies() {
		return nil
	}
	addr, err := net.ResolveTCPAddr("tcp", c.Listen)
	if err != nil {
		return problem.Field("listen", "%q is no address to listen on: %w", c.Listen, err)
	}
	if !addr.IP.IsLoopback() {
		return problem.Field("listen", "%s can be reached from other hosts, and needs TLS, and tokens or client certificates for that; 127.0.0.1 and the unix socket do not", c.Listen)
	}
	return nil
}

// Identifies reports whether callers over TCP can show who they are.
func (c *Config) Identifies() bool {
	return c.Tokens != nil || c.TLS != nil && c.TLS().ClientAuth != tls.NoClientCert
}

// policy returns the policy. Where callers can show who they are, and where they may be on
// other hosts, those that do not get nothing by default.
func (c *Config) policy() *access.Policy {
	p := c.Policy
	addr, err := net.ResolveTCPAddr("tcp", c.Listen)
	p.Local = !c.Identifies() && err == nil && addr.IP.IsLoopback()
	return &p
}

// Server is an HTTP server on some listeners.
type Server struct {
	server  *http.Server
	handler *Handler
	failed  chan error // of listeners that ended by themselves
	tasks   sync.WaitGroup
	ended   sync.Once
}

// Serve begins to answer on listeners.
func Serve(on *Listeners, h *Handler) *Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	s := &Server{
		handler: h,
		failed:  make(chan error, 2),
		server: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders,
			ConnContext: h.guard.connContext, Protocols: protocols,
			HTTP2:    &http.HTTP2Config{MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnread},
			ErrorLog: log.New(faults{h}, "", 0),
		},
	}
	on.conns.refused = func(why string) {
		h.Metrics.Refused(boundConns)
		h.refusals.Log(h.Log, hclog.Warn, boundConns, "a connection was refused: "+why)
	}
	if files := openFiles(); on.conns.most == connsFor(files) && tooFew(files) {
		h.Log.Warn(fmt.Sprintf("this process may open few files, so it accepts few connections: set its hard limit of open files to %d or more, with ulimit -n, LimitNOFILE of a systemd unit, or --ulimit nofile of a container",
			enoughConns*filesPerConn), keyFiles, files, keyConns, on.conns.most)
	}
	on.Each(func(l net.Listener) {
		s.tasks.Go(func() {
			if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("listening on %s ended: %w", l.Addr(), err)
			}
		})
	})
	return s
}

// faults logs what net/http reports of connections, at a bounded rate. Only that no connection can be
// accepted is worth an operator's attention.
type faults struct{ h *Handler }

// Write logs a line.
func (f faults) Write(line []byte) (int, error) {
	text, level, kind := strings.TrimSpace(string(line)), hclog.Debug, "http"
	switch {
	case strings.HasPrefix(text, "http: TLS handshake error"):
		kind = "tls"
	case strings.HasPrefix(text, "http: Accept error"):
		level, kind = hclog.Warn, "accept"
	}
	f.h.refusals.Log(f.h.Log, level, kind, text)
	return len(line), nil
}

// Failed returns the errors of listeners that ended by themselves. [Server.Close] closes
// the channel.
func (s *Server) Failed() <-chan error { return s.failed }

// Close ends the server: requests that are being answered get a moment to end. It may be
// called more than once. The listeners are still to be closed.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = s.server.Close()
	}
	s.tasks.Wait()
	s.handler.refusals.Flush()
	s.ended.Do(func() { close(s.failed) })
	return err
}
