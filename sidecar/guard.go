package sidecar

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/ui"
)

// guard decides who may come in.
type guard struct {
	token *[sha256.Size]byte // nil: none is asked for
	names map[string]bool    // of hosts, lower case
	wild  *x509.Certificate  // matches names as certificates do: *.example.com
	tls   bool
	pages *ui.Pages // nil: there are none
}

func newGuard(cfg *Config) *guard {
	g := &guard{names: map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}, tls: cfg.TLS != nil}
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
func (g *guard) check(r *http.Request) *Problem {
	_, local := peerOf(r.Context())
	if !local && !g.knows(r) {
		return newProblem(problem.Forbidden, "this server is not called %s: use localhost, its address, its host's name, or a name that its certificate has", quote(r.Host))
	}
	if p := g.checkOrigin(r, local); p != nil {
		return p
	}
	if local || g.token == nil || r.URL.Path == healthPath || r.URL.Path == readyPath || g.authorized(r) || g.looks(r) {
		return nil
	}
	return newProblem(problem.Unauthorized, "a token is needed: send it as Authorization: Bearer …")
}

// knows tells whether the Host header names this server. Another name is that of
// a site which had a browser look it up as our address.
func (g *guard) knows(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if g.names[host] {
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
func (g *guard) checkOrigin(r *http.Request, local bool) *Problem {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return errCrossSite()
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
		return errCrossSite()
	}
	return nil
}

func errCrossSite() *Problem {
	p := newProblem(problem.Forbidden, "requests from pages of other sites are refused")
	p.crossSite = true
	return p
}

// looks tells whether a request is for a page, of somebody who has signed in or wants to. It opens
// nothing else: what signs in a browser is no token.
func (g *guard) looks(r *http.Request) bool {
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
