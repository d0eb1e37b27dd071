package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/own"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

const (
	// clientConns is how many connections to a server are kept for later: one for
	// each that claims at the same time.
	clientConns = 1024
	// clientIdle is shorter than the server's, so that the client closes first.
	clientIdle = 90 * time.Second
	// dialTimeout bounds one try to connect.
	dialTimeout = 5 * time.Second
	// longCall is how long a request must take for its answer to state too short a
	// validity, because the server counts the wait for less than it was.
	longCall = time.Second
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 64 << 20
)

// Client calls the HTTP API of one sidecar. Its methods may be called by many goroutines.
// Their errors are problems: those of the server, and unavailable if it can't be reached. A
// call whose context has ended returns the context's cause.
type Client struct {
	base  string // scheme and host
	addr  string // as it was given
	token string
	http  *http.Client
	// clientToken shows that claims are the client's own; empty for none.
	clientToken string
	// parent is the trace context of this process, for requests whose contexts have none.
	parent trace.Parent
}

// WithClientToken returns a client on the same connections that claims with a client token, and
// shows it with each request: so a server that has no identity of it knows its claims.
func (c *Client) WithClientToken(clientToken string) *Client {
	other := *c
	other.clientToken = clientToken
	return &other
}

// DialOption changes how a client connects.
type DialOption func(*http.Transport)

// WithTLS sets the certificates that are trusted, and the client's own, over https. The
// function is called for each connection; nil means the authorities of the system.
func WithTLS(conf func() *tls.Config) DialOption {
	return func(t *http.Transport) {
		if conf == nil {
			return
		}
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			// Its timeout is that of the handshake, too.
			d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: conf()}
			return d.DialContext(ctx, network, addr)
		}
	}
}

// DialInsecure is [Dial], and sends the token over plain HTTP to other hosts, too.
func DialInsecure(addr, token string, opts ...DialOption) (*Client, error) {
	return dial(addr, token, opts)
}

// Dial returns a client for a server at http://host:port, https://host:port or
// unix:///path. It does not connect yet. The token is empty if the server needs none; it is a
// problem if it would be sent over plain HTTP to another host. No redirect is followed. Requests have the trace context of the span of their contexts, or else that of TRACEPARENT in the
// environment.
func Dial(addr, token string, opts ...DialOption) (*Client, error) {
	if err := access.CheckPlain(addr); err != nil && token != "" {
		return nil, problem.Field("sidecar", "%w", err)
	}
	return dial(addr, token, opts)
}

func dial(addr, token string, opts []DialOption) (*Client, error) {
	u, err := url.Parse(addr)
	if err != nil {
		return nil, problem.Field("sidecar", "%q is no address: %w", addr, err)
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	t := &http.Transport{
		DialContext:         dialer.DialContext,
		MaxIdleConns:        clientConns,
		MaxIdleConnsPerHost: clientConns,
		IdleConnTimeout:     clientIdle,
		TLSHandshakeTimeout: dialTimeout,
		DisableCompression:  true,
	}
	c := &Client{addr: addr, token: token, base: u.Scheme + "://" + u.Host, http: &http.Client{Transport: t, CheckRedirect: noRedirect}, parent: trace.FromEnvironment()}
	switch path := strings.TrimSuffix(u.Path, "/"); {
	case u.Scheme == "unix" && u.Host == "" && path != "":
		c.base = "http://localhost"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			if err := own.Socket(path); err != nil {
				return nil, err
			}
			return dialer.DialContext(ctx, "unix", path)
		}
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && path == "":
	default:
		return nil, problem.Field("sidecar", "%q is no address: write http://host:port, https://host:port or unix:///path", addr)
	}
	for _, o := range opts {
		o(t)
	}
	return c, nil
}

// noRedirect has a redirect be an answer: a server does not redirect requests of its API, and what
// shows who the client is must get to no other host.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call sends a request, and reads the answer into out unless that is nil. sent is when it was
// sent, by [lease.BootClock].
func (c *Client) call(ctx context.Context, method, path string, in, out any) (sent time.Duration, err error) {
	sent = lease.BootClock().Now()
	_, err = c.tagged(ctx, method, path, in, out, nil)
	return sent, err
}

// Condition is what a request that changes a state requires of it. If it is not met, the error
// has the code precondition_failed.
type Condition struct{ header, value string }

// IfMatch requires that a pool, or the limits, have a revision.
func IfMatch(revision int64) Condition { return Condition{"If-Match", api.ETag(revision)} }

// IfAbsent requires that a pool does not exist, or that limits were not set.
func IfAbsent() Condition { return Condition{"If-None-Match", "*"} }

// tagged sends a request under conditions, and reads the answer into out unless that is nil.
// It returns the revision in the ETag of the answer, 0 if there is none.
func (c *Client) tagged(ctx context.Context, method, path string, in, out any, when []Condition) (revision int64, err error) {
	var headers []string
	for _, w := range when {
		headers = append(headers, w.header, w.value)
	}
	resp, err := c.send(ctx, method, path, in, headers...)
	if err != nil {
		return 0, err
	}
	defer drop(resp.Body)
	revision, _ = strconv.ParseInt(strings.Trim(resp.Header.Get("ETag"), `"`), 10, 64) // most answers have none
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return revision, nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return 0, c.failed(ctx, err)
	}
	return revision, nil
}

// isLong reports whether a request that was sent then, and is answered now, took long.
func isLong(sent time.Duration) bool { return lease.BootClock().Now()-sent >= longCall }

// send sends a request, and returns an answer that is no error. Headers are
// pairs of names and values; an empty value is none.
func (c *Client) send(ctx context.Context, method, path string, in any, headers ...string) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, problem.New(problem.Internal, "encode a request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, problem.New(problem.Internal, "%w", err)
	}
	// Every request can be sent again if an idle connection turns out to be closed. This
	// header tells the transport, and is not sent.
	req.Header["Idempotency-Key"] = nil
	if in != nil {
		req.Header["Content-Type"] = jsonType
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.clientToken != "" {
		req.Header.Set(api.ClientTokenHeader, c.clientToken)
	}
	if parent := cmp.Or(trace.Of(ctx), c.parent); parent.Traceparent != "" {
		req.Header[trace.Header] = []string{parent.Traceparent}
		if parent.Tracestate != "" {
			req.Header[trace.StateHeader] = []string{parent.Tracestate}
		}
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] != "" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		defer drop(resp.Body)
		return nil, c.refusal(resp)
	}
	return resp, nil
}

var jsonType = []string{"application/json"}

// failed returns the problem of a connection that failed.
func (c *Client) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	todo := ""
	if strings.HasPrefix(c.addr, "unix:") && errors.Is(err, syscall.EACCES) {
		todo = "; join the group of the socket (usermod -aG), and log in again"
	}
	return problem.New(problem.Unavailable, "the sidecar at %s can't be reached: %w%s", c.addr, err, todo)
}

// refusal returns the problem in an answer.
func (c *Client) refusal(resp *http.Response) error {
	if to := resp.Header.Get("Location"); resp.StatusCode < http.StatusBadRequest && to != "" {
		return problem.New(problem.Unavailable, "what answers at %s redirects to %s, which is not followed: if that is the sidecar, give its address", c.addr, problem.Quote(to))
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	var p api.Problem
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil || p.Code == "" {
		return problem.New(problem.Unavailable, "what answers at %s is no sidecar: status %d, %s", c.addr, resp.StatusCode, problem.Quote(string(data)))
	}
	return p.Err()
}

// drop reads the rest of a body, so that its connection can be used again.
func drop(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, io.LimitReader(body, server.MaxBody)) // it is closed anyway
	_ = body.Close()
}

// escape writes a name as a part of a path.
func escape(name string) string { return url.PathEscape(name) }

// Ready returns nil if the server can make claims, and what is missing otherwise.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodGet, api.ReadyPath, nil, nil)
	return err
}

// Whoami returns who the server takes this client for, and its roles.
func (c *Client) Whoami(ctx context.Context) (*api.Identity, error) {
	var id api.Identity
	if _, err := c.call(ctx, http.MethodGet, api.WhoamiPath, nil, &id); err != nil {
		return nil, err
	}
	return &id, nil
}

// Hosts returns all instances of berth that are live now.
func (c *Client) Hosts(ctx context.Context) ([]api.Host, error) {
	var list api.List[api.Host]
	if _, err := c.call(ctx, http.MethodGet, api.HostsPath, nil, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}
