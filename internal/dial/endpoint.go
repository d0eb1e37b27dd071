package dial

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthhq/berth/internal/text"
)

// fault is why connections to an endpoint fail.
type fault struct {
	// text is a sentence that begins with the address of the endpoint.
	text string
	// lasting is set if waiting does not help: a certificate is not accepted, here or by etcd.
	lasting bool
}

// Endpoint is an address at which an etcd is expected.
type Endpoint struct {
	address string // without the scheme
	dial    func(ctx context.Context, address string) (net.Conn, error)
	tls     func() *tls.Config // nil for plain text
	// fault is that of the last connection; nil if it was made, or could not be dialed.
	fault atomic.Pointer[fault]
}

// New returns an endpoint. The function dial connects to it; nil is gRPC's own way. The function conf is
// called for each connection, and returns how it speaks TLS; nil is [Secures] of no configuration.
func New(address string, dial func(context.Context, string) (net.Conn, error), conf func() *tls.Config) *Endpoint {
	e := &Endpoint{address: address, dial: dial, tls: Secures(address, conf)}
	if scheme, rest, ok := strings.Cut(address, "://"); ok && !strings.HasPrefix(scheme, "unix") {
		e.address = rest
	}
	if dial == nil {
		e.dial = dialAddress
	}
	return e
}

// Secures returns how connections to an address speak TLS, nil for plain text. It depends on the scheme
// as in etcd's client.
func Secures(address string, conf func() *tls.Config) func() *tls.Config {
	scheme, _, _ := strings.Cut(address, ":")
	switch {
	case conf != nil && scheme != "http" && scheme != "unix":
		return conf
	case conf == nil && (scheme == "https" || scheme == "unixs"):
		return func() *tls.Config { return &tls.Config{} }
	}
	return nil
}

// Credentials returns the credentials of gRPC for connections to the endpoint. The configuration is read for
// each connection: the authorities of a [tls.Config] in use cannot be replaced, and its callbacks do not
// know the address that a certificate must be valid for.
func (e *Endpoint) Credentials() credentials.TransportCredentials {
	if e.tls == nil {
		return watched{insecure.NewCredentials(), e}
	}
	return watched{reloaded{credentials.NewTLS(e.tls()), e.tls}, e}
}

// reloaded are credentials for TLS that are made for each connection.
type reloaded struct {
	credentials.TransportCredentials
	conf func() *tls.Config
}

// ClientHandshake makes a connection secure.
func (r reloaded) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(r.conf()).ClientHandshake(ctx, authority, conn)
}

// Clone returns the credentials, which have no state.
func (r reloaded) Clone() credentials.TransportCredentials { return r }

// Certificate returns the one that is shown to etcd, nil for none.
func (e *Endpoint) Certificate() (*tls.Certificate, error) {
	if e.tls == nil {
		return nil, nil
	}
	switch conf := e.tls(); {
	case len(conf.Certificates) > 0:
		return &conf.Certificates[0], nil
	case conf.GetClientCertificate != nil:
		return conf.GetClientCertificate(&tls.CertificateRequestInfo{})
	}
	return nil, nil
}

// dialAddress connects to an address as gRPC does.
func dialAddress(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", "/"+strings.TrimLeft(path, "/")
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// Why returns what is wrong with an endpoint whose request has just failed with an error of gRPC without an
// answer, as a sentence that begins with the address. It is empty if that is not known.
func (e *Endpoint) Why(err error) string {
	if _, refused, ok := strings.Cut(err.Error(), "rror while dialing: "); ok {
		e.fault.Store(nil) // that of an earlier connection may be over
		refused = strings.TrimSuffix(strings.ReplaceAll(refused, `\"`, `"`), `"`)
		refused = strings.TrimPrefix(refused, "dial tcp: ")
		refused = strings.TrimPrefix(refused, "dial tcp "+e.address+": ")
		refused = strings.TrimPrefix(refused, "dial unix "+strings.TrimPrefix(e.address, "unix://")+": ")
		return e.address + ": " + strings.TrimPrefix(refused, "connect: ")
	}
	if f := e.fault.Load(); f != nil {
		return f.text
	}
	for _, other := range []string{"unexpected content-type", "unexpected HTTP status code"} {
		if strings.Contains(err.Error(), other) {
			return e.address + " speaks HTTP/2, but not as an etcd does: that is not an etcd"
		}
	}
	return ""
}

// Lasting reports whether it does not help to wait for the endpoint.
func (e *Endpoint) Lasting() bool {
	f := e.fault.Load()
	return f != nil && f.lasting
}

// secured examines the handshake of a connection, and returns the connection with its first answer
// examined.
func (e *Endpoint) secured(ctx context.Context, conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		e.fault.Store(e.examine(ctx, err))
		return nil, err
	}
	return &firstAnswer{Conn: conn, at: e}, nil
}

// firstAnswer is a connection until the peer has answered.
type firstAnswer struct {
	net.Conn
	at       *Endpoint
	answered atomic.Bool
}

// Read reads, and examines the first answer.
func (c *firstAnswer) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.answered.Load() && (n > 0 || err != nil) {
		c.first(b[:n], err)
	}
	return n, err
}

// Write writes. A peer may close the connection before it is read from.
func (c *firstAnswer) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !c.answered.Load() {
		c.first(nil, err)
	}
	return n, err
}

// first examines the first answer, or the error in its place.
func (c *firstAnswer) first(answer []byte, err error) {
	if c.answered.Swap(true) {
		return
	}
	switch {
	case len(answer) > 0:
		c.at.fault.Store(c.at.protocol(answer))
	case !errors.Is(err, net.ErrClosed):
		c.at.fault.Store(c.at.examine(context.Background(), err))
	}
}

// protocol returns the fault of a peer whose first answer is not of HTTP/2, nil if it is.
func (e *Endpoint) protocol(answer []byte) *fault {
	name := "another protocol"
	switch {
	case isSettings(answer):
		return nil
	case bytes.HasPrefix(answer, []byte("HTTP/1.")):
		name = "HTTP/1.1"
		if bytes.HasPrefix(answer, []byte("HTTP/1.0")) {
			name = "HTTP/1.0"
		}
	case bytes.HasPrefix(answer, []byte("<")): // an error page of an old server
		name = "HTTP/1"
	}
	return &fault{text: fmt.Sprintf("%s speaks %s: that is not an etcd", e.address, name)}
}

// isSettings reports whether an answer begins with a frame of the settings of HTTP/2, or is too short to tell.
func isSettings(answer []byte) bool {
	const header, settings, stream = 9, 4, 1<<31 - 1 // the first bit is reserved
	if len(answer) < header {
		return !bytes.HasPrefix(answer, []byte("HTTP/1"))
	}
	return answer[3] == settings && binary.BigEndian.Uint32(answer[5:header])&stream == 0
}

// examineTimeout bounds the connections that find out why another one has failed.
const examineTimeout = 500 * time.Millisecond

// examine returns the fault that an error of a connection means. An error that does not say why the
// peer has closed the connection is examined with further connections.
func (e *Endpoint) examine(ctx context.Context, err error) *fault {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	if e.tls == nil {
		if isCut(err) && e.speaksTLS(ctx) {
			return &fault{text: e.address + ": this etcd wants TLS: begin its endpoint with https://, and name the file of its authority in cacert"}
		}
		return nil
	}
	if f := e.ofCertificate(err); f != nil {
		return f
	}
	if broken := (tls.RecordHeaderError{}); errors.As(err, &broken) || isCut(err) {
		if answer, err := e.plainAnswer(ctx); err == nil {
			if f := e.protocol(answer); f != nil {
				return f
			}
			return &fault{text: e.address + ": this etcd speaks no TLS: begin its endpoint with http://"}
		}
		return e.ofCertificate(e.handshake(ctx))
	}
	if leaf := e.ownLeaf(); leaf != nil && time.Now().After(leaf.NotAfter) && ctx.Err() == nil {
		return e.lasting("%v", err) // the handshake shows no certificate that has expired
	}
	if strings.Contains(err.Error(), "ALPN") || strings.Contains(err.Error(), "no application protocol") {
		return &fault{text: e.address + " speaks TLS, but not HTTP/2: that is not an etcd"}
	}
	return nil
}

// isCut reports whether an error only says that the peer has closed a connection.
func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// connect makes a connection that ends with a context.
func (e *Endpoint) connect(ctx context.Context) (net.Conn, error) {
	address := e.address
	conn, err := e.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(end)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// speaksTLS reports whether the peer answers to a handshake of TLS.
func (e *Endpoint) speaksTLS(ctx context.Context) bool {
	conn, err := e.connect(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	// Nothing is sent over this connection.
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	return err == nil || isAlert(err)
}

// isAlert reports whether an error is an alert of TLS that the peer has sent.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// clientPreface begins a connection of HTTP/2: the text, and empty settings.
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// plainAnswer returns the first answer of the peer without TLS.
func (e *Endpoint) plainAnswer(ctx context.Context) ([]byte, error) {
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, clientPreface); err != nil {
		return nil, err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if n > 0 {
		err = nil
	}
	return answer[:n], err
}

// handshake makes a TLS connection and sends nothing, so that no alert of the peer is lost.
func (e *Endpoint) handshake(ctx context.Context) error {
	conn, err := e.connect(ctx)
	if err != nil {
		return nil // it was examined with another error
	}
	defer conn.Close()
	conf := e.tls().Clone()
	conf.NextProtos = []string{"h2"}
	if conf.ServerName == "" {
		conf.ServerName = e.serverName()
	}
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	_, err = secure.Read(make([]byte, 1))
	return err
}

// serverName returns the host of the address.
func (e *Endpoint) serverName() string {
	host, _, err := net.SplitHostPort(e.address)
	if err != nil {
		return e.address
	}
	return host
}

// ofCertificate returns the fault of a certificate that is not accepted, nil if an error says nothing of
// certificates.
func (e *Endpoint) ofCertificate(err error) *fault {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return e.lasting("the authority that signed the certificate of this etcd is unknown: name its file in cacert")
	case errors.As(err, &host):
		return e.lasting("the certificate of this etcd is for %s, not for %s: use one of its names in endpoints, or issue a certificate for %[2]s", namesOf(host.Certificate), host.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().After(invalid.Cert.NotAfter):
		return e.lasting("the certificate %q of this etcd has expired at %s: renew it there", shown(invalid.Cert.Subject.CommonName), stamp(invalid.Cert.NotAfter))
	case isAlert(err):
		return e.ofAlert(err)
	}
	var verify *tls.CertificateVerificationError
	if errors.As(err, &verify) {
		return &fault{text: fmt.Sprintf("%s: the certificate of this etcd is not valid: %s", e.address, shown(verify.Err.Error()))}
	}
	return nil
}

// ownLeaf returns the certificate that is shown to etcd, nil for none.
func (e *Endpoint) ownLeaf() *x509.Certificate {
	own, err := e.Certificate()
	if err != nil || own == nil || len(own.Certificate) == 0 {
		return nil
	}
	if own.Leaf != nil {
		return own.Leaf
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		return nil
	}
	return leaf
}

// ofAlert returns the fault of a client certificate that etcd does not accept, nil for other alerts.
func (e *Endpoint) ofAlert(err error) *fault {
	if !strings.Contains(err.Error(), "certificate") {
		return nil
	}
	leaf := e.ownLeaf()
	if leaf == nil {
		return e.lasting("this etcd wants a client certificate, and none is set: name its files in cert and key")
	}
	name := strconv.Quote(leaf.Subject.CommonName)
	switch {
	case time.Now().After(leaf.NotAfter):
		return e.lasting("the client certificate %s in cert has expired at %s: renew it", name, stamp(leaf.NotAfter))
	case strings.Contains(err.Error(), "authority"):
		return e.lasting("this etcd does not know the authority that signed the client certificate %s: name another one in cert and key", name)
	}
	return e.lasting("this etcd does not accept the client certificate %s (%v): name another one in cert and key", name, cmp.Or(errors.Unwrap(err), err))
}

// lasting returns a fault that waiting does not end.
func (e *Endpoint) lasting(format string, args ...any) *fault {
	return &fault{text: e.address + ": " + fmt.Sprintf(format, args...), lasting: true}
}

// namesOf returns the names that a certificate is for, or the first of many. Nobody has vouched for
// them: they come from any server that answers.
func namesOf(c *x509.Certificate) string {
	const most = 5
	var all []string
	for _, name := range c.DNSNames {
		all = append(all, shown(name))
	}
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no host"
	}
	return strings.Join(text.Few(all, most), ", ")
}

// shown returns a text of the peer, or its beginning, on one line without characters that a terminal
// would act on.
func shown(s string) string {
	const most = 200
	return strings.Join(strings.Fields(text.Visible(text.Cut(s, most))), " ")
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// watched are credentials of connections of which the peer is examined.
type watched struct {
	credentials.TransportCredentials
	at *Endpoint
}

// ClientHandshake makes a connection secure.
func (w watched) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, conn)
	conn, err = w.at.secured(ctx, conn, err)
	return conn, info, err
}

// Clone returns a copy.
func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone(), w.at}
}
