package sidecar

import (
	"net/http"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/ui"
)

// newPages returns the pages for people who look, at what the API serves.
func (a *api) newPages() *ui.Pages {
	return ui.New(ui.Config{
		Ready: func() (*ui.Session, error) {
			s, err := a.ready()
			if err != nil {
				return nil, err
			}
			return s.shown, nil
		},
		Token: a.cfg.Token, Dev: a.cfg.Dev, Secure: a.cfg.TLS != nil,
		Logger: a.log, Streams: a.metrics.streams,
	})
}

// forPeople tells whether a browser asks that shows somebody the answer: then a refusal is a page. What
// is asked of the API is answered as the API answers.
func (a *answer) forPeople() bool {
	return a.pages != nil && !strings.HasPrefix(a.r.URL.Path, "/v1/") && a.pages.Wanted(a.r)
}

// show answers a browser with a problem, as a page. Who has to sign in is asked to.
func (a *answer) show(p *Problem) {
	read := a.r.Method == http.MethodGet
	if p.Status == http.StatusUnauthorized && read && a.pages.Owns(a.r) {
		a.status = http.StatusSeeOther
		a.pages.AskToSignIn(a.ResponseWriter, a.r)
		return
	}
	why := ui.Refusal{Status: p.Status, Code: p.Code, Title: p.Title, Detail: p.Detail}
	switch {
	case p.Status == http.StatusUnauthorized:
		why.Todo = "Sign in first."
		why.Link, why.LinkText = "/signin", "Sign in"
	case p.crossSite && read && a.pages.Owns(a.r):
		why.Todo = "You have come by a link of another site, or of another port. If you want to look at berth, go on from here."
		why.Link, why.LinkText = a.r.URL.RequestURI(), "Open the page"
	case p.Status == http.StatusForbidden:
		why.Plain = !p.crossSite
	case p.Code == string(problem.NotFound):
		why.Link, why.LinkText = "/pools", "Go to the pools"
	}
	a.pages.Refuse(a.ResponseWriter, a.r, why)
}
