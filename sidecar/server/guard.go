package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// guard decides who may come in.
type guard struct {
	token *[sha256.Size]byte       // nil: none is asked for
	names map[string]bool          // of hosts, lower case
	wild  *x509.Certificate        // matches names as certificates do: *.example.com
	cert  func() *x509.Certificate // that of the server; nil for none
	tls   bool
	open  []string // paths that need no token
	pages Pages    // nil if there are none
}

// newGuard returns the guard of a server. Requests for the open paths need no token.
// Pages is nil if there are none.
func newGuard(cfg *Config, open []string, pages Pages) *guard {
	g := &guard{open: open, pages: pages, cert: cfg.certificate, names: map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}, tls: cfg.TLS != nil}
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
	if cfg.Token != "" {
		sum := sha256.Sum256([]byte(cfg.Token))
		g.token = &sum
	}
	return g
}

// check refuses a request, or returns nil. Over the unix socket only browsers
// are refused, of which none gets there by itself.
func (g *guard) check(r *http.Request) error {
	_, local := PeerOf(r.Context())
	if !local && !g.knows(r) {
		return problem.New(problem.Forbidden, "this server is not called %s: use localhost, its address, its host's name, or a name that its certificate has", problem.Quote(r.Host))
	}
	if err := g.checkOrigin(r, local); err != nil {
		return err
	}
	if local || g.token == nil || slices.Contains(g.open, r.URL.Path) || g.authorized(r) || g.isPage(r) {
		return nil
	}
	return problem.New(problem.Unauthorized, "a token is needed: send it as Authorization: Bearer …")
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

// checkOrigin refuses what the page of another site has a browser ask.
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
	if g.tls {
		scheme = "https"
	}
	u, err := url.Parse(origin)
	if local || err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
		return ErrCrossSite
	}
	return nil
}

// ErrCrossSite refuses a request that the page of another site had a browser send.
var ErrCrossSite = problem.New(problem.Forbidden, "requests from pages of other sites are refused")

// isPage reports whether a request is for a page, by a browser that has signed in or is signing
// in. It permits nothing else: a cookie is no token.
func (g *guard) isPage(r *http.Request) bool {
	if g.pages == nil || !g.pages.Owns(r) {
		return false
	}
	_, in := g.pages.SignedIn(r)
	return in || g.pages.Open(r)
}

// authorized compares the token in a time that says nothing about it.
func (g *guard) authorized(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
}
