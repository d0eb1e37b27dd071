package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"
)

// devName is how actions are recorded of whoever looks at berth dev.
const devName = "dev"

// who is how the actions of whoever sends a request are recorded; empty if they have not said.
func (p *Pages) who(r *http.Request) string {
	if name, ok := p.SignedIn(r); ok {
		return name
	}
	if p.cfg.Token == "" && p.cfg.Dev {
		return devName
	}
	return ""
}

// may tells whether whoever sends a request may act.
func (p *Pages) may(r *http.Request) bool { return p.who(r) != "" }

// ours tells whether a page of ours has sent a request: a browser says so of every POST.
func (p *Pages) ours(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	scheme := "http"
	if p.cfg.Secure {
		scheme = "https"
	}
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Scheme == scheme && strings.EqualFold(u.Host, r.Host)
}

// looker is who looks, for views and forms.
type looker struct {
	who  string
	from string
}

type lookerKey struct{}

func (p *Pages) withLooker(r *http.Request) context.Context {
	return context.WithValue(r.Context(), lookerKey{}, looker{who: p.who(r), from: r.RemoteAddr})
}

func lookerOf(ctx context.Context) looker {
	l, _ := ctx.Value(lookerKey{}).(looker)
	return l
}

// whoOf is how an action is recorded that is taken now; empty if none may be.
func whoOf(ctx context.Context) string { return lookerOf(ctx).who }

// fromOf is where who acts now comes from.
func fromOf(ctx context.Context) string { return lookerOf(ctx).from }

// mayOf tells whether whoever looks may act.
func mayOf(ctx context.Context) bool { return lookerOf(ctx).who != "" }
