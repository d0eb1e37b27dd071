package sidecar

import (
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
	"github.com/berthhq/berth/sidecar/ui"
)

// newPages returns the web pages.
func (a *apiServer) newPages() *ui.Pages {
	return ui.New(ui.Config{
		Ready: func() (*ui.Session, error) {
			s, err := a.ready()
			if err != nil {
				return nil, err
			}
			return s.shown, nil
		},
		API: func(r *http.Request) bool {
			_, pattern := a.mux.Handler(r)
			return pattern != "" || strings.HasPrefix(r.URL.Path, "/v1/")
		},
		Tokens: a.cfg.Tokens, Attempts: &a.attempts, Open: a.cfg.Policy.Open, Secure: a.cfg.TLS != nil,
		Logger: a.log, Reads: a.reads, HTTP: a.metrics.http,
	})
}

// handler is what a server does with requests to the API and the pages.
func (a *apiServer) handler() *server.Handler {
	cfg := a.cfg.http()
	cfg.Attempts = &a.attempts
	return server.NewHandler(server.Handler{
		Config: cfg, Pages: a.pages, Routes: a.mux.ServeMux, Metrics: a.metrics.http, Log: a.log.Named("sidecar"),
		Bodies: map[string]server.Limit{
			api.LimitsPath: {Bytes: maxLimitsBody, Values: maxLimitsValues}, api.RunsPath: {Bytes: maxRunBody, Values: maxRunValues},
		},
		Unreadable: api.UnreadableBody,
		Permit: func(r *http.Request) error {
			if err := a.mux.permit(r); err != nil {
				return err
			}
			return ui.Permit(r)
		},
		Refuse: a.refuse,
		Tracer: a.cfg.Tracer, Untraced: untraced,
	})
}

// untraced are the paths that probes read every few seconds.
var untraced = map[string]bool{api.HealthPath: true, api.ReadyPath: true, api.MetricsPath: true}

const (
	// maxLimitsBody bounds the limits: 1,000 limits of tags of the greatest length take
	// 330 KB.
	maxLimitsBody = 512 << 10
	// maxRunBody bounds a run: 100,000 items of 160 bytes take it.
	maxRunBody = 16 << 20
	// maxLimitsValues bounds the names and values of the limits: of each of 1,000 tags there
	// are 10.
	maxLimitsValues = 12_000
	// maxRunValues bounds the names and values of a run, except for those in its items: 200,000
	// items and as much as half of that for what else there is.
	maxRunValues = 300_000
)

// refuse answers a request with a problem.
func refuse(w http.ResponseWriter, r *http.Request, err error) (status int) {
	p := api.ProblemOf(err)
	p.RequestID = server.RequestIDOf(r.Context())
	p.Write(w)
	return p.Status
}

// refuse answers a request with a problem; a browser gets it as a page, unless it calls the
// API.
func (a *apiServer) refuse(w http.ResponseWriter, r *http.Request, err error) (status int) {
	if strings.HasPrefix(r.URL.Path, "/v1/") || !a.pages.Wanted(r) {
		return refuse(w, r, err)
	}
	p := api.ProblemOf(err)
	maps.Copy(w.Header(), p.GetHeaders())
	read := r.Method == http.MethodGet
	if p.Status == http.StatusUnauthorized && read && a.pages.Owns(r) {
		a.pages.AskToSignIn(w, r)
		return http.StatusSeeOther
	}
	if no := (*access.Refusal)(nil); errors.As(err, &no) {
		a.pages.RefuseRole(w, r, no)
		return p.Status
	}
	crossSite := errors.Is(err, server.ErrCrossSite)
	why := ui.Refusal{Status: p.Status, Code: p.Code, Title: p.Title, Detail: p.Detail}
	switch {
	case p.Status == http.StatusUnauthorized && a.pages.Owns(r):
		why.Todo = "Sign in first."
		why.Link, why.LinkText = "/signin", "Sign in"
	case crossSite && read && a.pages.Owns(r):
		why.Todo = "You followed a link of another site, or of another port. To open berth, go on from here."
		why.Link, why.LinkText = ui.OwnPath(r.URL.RequestURI()), "Open the page"
	case p.Status == http.StatusForbidden:
		why.Plain = !crossSite
	case p.Code == string(problem.NotFound):
		why.Link, why.LinkText = "/pools", "Go to the pools"
	}
	a.pages.Refuse(w, r, why)
	return p.Status
}
