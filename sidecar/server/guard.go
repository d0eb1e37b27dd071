package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

// guard finds out who sends a request, and refuses what no caller may send.
type guard struct {
	policy *access.Policy
	tokens func() access.Tokens // nil if there are none
	// attempts slow down the guessing of tokens.
	attempts *access.Attempts
	names    map[string]bool          // of hosts, lower case
	wild     *x509.Certificate        // matches names as certificates do: *.example.com
	cert     func() *x509.Certificate // that of the server; nil for none
	tls      func() *tls.Config       // nil for plain text
	pages    Pages                    // nil if there are none
	users    users
}

// newGuard returns the guard of a server. Pages is nil if there are none.
func newGuard(cfg *Config, pages Pages) *guard {
	g := &guard{
		policy: cfg.policy(), tokens: cfg.Tokens, attempts: cfg.Attempts, pages: pages, cert: cfg.certificate, tls: cfg.TLS,
		names: map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true},
	}
	if g.attempts == nil {
		g.attempts = new(access.Attempts)
	}
	g.wild = &x509.Certificate{}
	for _, name := range cfg.Names {
		if strings.HasPrefix(name, "*.") {
			g.wild.DNSNames = append(g.wild.DNSNames, name)
			continue
		}
		g.names[strings.ToLower(name)] = true
	}
	if host, _, err := net.SplitHostPort(cfg.Listen); err == nil && host != "" {
		g.names[strings.ToLower(host)] = true
	}
	return g
}

// check refuses a request, or returns it with the identity of who sent it. Over the unix
// socket a Host header says nothing, unless a browser sends it: it gets there by ssh or a proxy,
// whose address a page of another site may know.
func (g *guard) check(r *http.Request) (*http.Request, error) {
	_, local := PeerOf(r.Context())
	if (!local || fromBrowser(r)) && !g.knows(r) {
		return r, problem.New(problem.Forbidden, "this server is not called %s: use localhost, its address, its host's name, or a name that its certificate has", problem.Quote(r.Host))
	}
	if err := g.checkOrigin(r, local); err != nil {
		return r, err
	}
	return g.identify(r)
}

// shownToken returns the token in the header Authorization; its secret is empty if there is no such
// header. A header that can't be verified is never ignored, even by a server without tokens and for
// callers that need none: its sender believes in another identity than it would have.
func (g *guard) shownToken(r *http.Request) (token access.Token, secret string, err error) {
	headers := r.Header.Values("Authorization")
	switch len(headers) {
	case 0:
		return token, "", nil
	case 1:
	default:
		return token, "", problem.New(problem.Unauthorized, "the header Authorization was sent %d times: send one token, as Authorization: Bearer …", len(headers))
	}
	scheme, secret, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return token, "", problem.New(problem.Unauthorized, "the scheme of the header Authorization is %s: send a token, as Authorization: Bearer …", problem.Quote(scheme))
	}
	secret = strings.TrimSpace(secret)
	switch {
	case secret == "":
		return token, "", problem.New(problem.Unauthorized, "the header Authorization has no token: send one, as Authorization: Bearer …, or leave the header out")
	case g.tokens == nil:
		return token, "", problem.New(problem.Unauthorized, "this server has no tokens, so that yours can't be verified: leave the header Authorization out")
	}
	token, err = g.attempts.Find(g.tokens(), secret, guesserOf(r.Context()), time.Now())
	return token, secret, err
}

// guesserOf returns whose guesses of tokens count together: those of an address, or of a user of the
// unix socket.
func guesserOf(ctx context.Context) string {
	if peer, local := PeerOf(ctx); local {
		return "uid " + strconv.FormatUint(uint64(peer.UID), 10)
	}
	return AddressOf(ctx)
}

// identify returns a request with its identity, if it shows another than its connection does. Over
// the unix socket a token is verified, and the user counts. A cookie counts for pages only: it is no
// token.
func (g *guard) identify(r *http.Request) (*http.Request, error) {
	token, secret, err := g.shownToken(r)
	if _, local := PeerOf(r.Context()); err != nil || local {
		return r, err
	}
	// The token that counts by now.
	shown := func() (access.Token, error) { return g.tokens().Find(secret, time.Now()) }
	if secret == "" {
		if g.pages == nil || !g.pages.Owns(r) {
			return r, nil
		}
		shown = func() (access.Token, error) {
			t, in := g.pages.SignedIn(r)
			if !in {
				return t, problem.New(problem.Unauthorized, "you have signed out, or your token has expired or was revoked: sign in again")
			}
			return t, nil
		}
		if token, err = shown(); err != nil {
			return r, nil
		}
	}
	id := token.Identity(g.policy)
	ctx := access.With(r.Context(), func() access.Identity { return id })
	ctx = context.WithValue(ctx, nowKey{}, func() (access.Identity, error) {
		now, err := shown()
		if err != nil {
			return access.Identity{}, err
		}
		return now.Identity(g.policy), nil
	})
	return r.WithContext(ctx), nil
}

// IdentityNow returns the identity that what a request has shown gives it by now. Its error says why that counts no
// longer: a token may have been revoked since, or have expired.
func IdentityNow(ctx context.Context) (access.Identity, error) {
	if now, ok := ctx.Value(nowKey{}).(func() (access.Identity, error)); ok {
		return now()
	}
	return access.Of(ctx), nil
}

// knows reports whether the Host header names this server. Another name is that of
// a site that had a browser resolve it to our address.
func (g *guard) knows(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if cert := g.cert(); g.names[host] || cert != nil && cert.VerifyHostname(host) == nil {
		return true
	}
	// An address says no name at all. It is ours if the request came to it.
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return g.wild.VerifyHostname(host) == nil
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	ours, err := netip.ParseAddrPort(at.String())
	return err == nil && ours.Addr().Unmap() == addr.Unmap()
}

// fromBrowser reports whether a browser has sent a request.
func fromBrowser(r *http.Request) bool {
	h := r.Header
	return h.Get("Sec-Fetch-Site") != "" || h.Get("Origin") != "" || strings.HasPrefix(h.Get("User-Agent"), "Mozilla/")
}

// checkOrigin refuses what the page of another site has a browser ask. A proxy in front of the
// socket may speak TLS.
func (g *guard) checkOrigin(r *http.Request, local bool) error {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return ErrCrossSite
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	scheme := "http"
	if g.tls != nil {
		scheme = "https"
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != scheme && !(local && (u.Scheme == "http" || u.Scheme == "https")) || !strings.EqualFold(u.Host, r.Host) {
		return ErrCrossSite
	}
	return nil
}

// ErrCrossSite refuses a request that the page of another site had a browser send.
var ErrCrossSite = problem.New(problem.Forbidden, "requests from pages of other sites are refused")
