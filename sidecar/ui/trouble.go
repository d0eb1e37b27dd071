package ui

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

// Refusal is why there is no page.
type Refusal struct {
	Status int
	Code   string
	Title  string // what the code means
	Detail string // what happened
	Todo   string // what to do
	// Since is when the trouble began, zero if it is not one that lasts.
	Since time.Time
	// Link leads on, if there is a way.
	Link, LinkText string
	// Plain reports that the client is refused everything else too.
	Plain bool
}

// refusalOf is the refusal of a code.
func refusalOf(code problem.Code, detail string) Refusal {
	return Refusal{Status: code.Status(), Code: string(code), Title: code.Title(), Detail: detail, Todo: todos[code]}
}

// todos say what to do about problems.
var todos = map[problem.Code]string{
	problem.EtcdUnavailable: "Check that etcd runs and can be reached from this host. Claims stay held while their leases last. This page tries again by itself.",
	problem.EtcdFull:        "Give etcd space: raise its quota, or compact and defragment it, then disarm the alarm. This page tries again by itself.",
	problem.EtcdDenied:      "Check berth's user of etcd, its password, its rights on the prefix, and the certificates. This page tries again by itself.",
	problem.Unavailable:     "This page tries again by itself.",
	problem.Stopping:        "This page tries again by itself, until the server is started again.",
}

func notFound(r *http.Request) Refusal {
	f := refusalOf(problem.NotFound, "There is no page at "+problem.Clip(r.URL.Path)+".")
	f.Link, f.LinkText = home, "Go to the pools"
	return f
}

func crossSite() Refusal {
	return refusalOf(problem.Forbidden, "Forms that pages of other sites send are refused.")
}

// mayNotView answers a visitor who may see no pages. One who could sign in is asked to.
func (p *Pages) mayNotView(w http.ResponseWriter, r *http.Request, err error) {
	if p.canSignIn(r) && p.Wanted(r) {
		p.AskToSignIn(w, r)
		return
	}
	p.refuse(w, r, p.problemOf(r, err))
}

// roleMissing is the refusal of a visitor who lacks a role.
func (p *Pages) roleMissing(r *http.Request, no *access.Refusal) Refusal {
	f := refusalOf(problem.CodeOf(no), "")
	if f.Title = "You may not do this"; no.Need.Role == access.View {
		f.Title = "You may not see this"
	}
	signIn := p.canSignIn(r)
	if f.Detail, f.Todo = no.InWords(signIn); signIn {
		f.Link, f.LinkText = signInLink(r), "Sign in"
	}
	return f
}

// refuse answers with why there is no page.
func (p *Pages) refuse(w http.ResponseWriter, r *http.Request, why Refusal) {
	if accepts(r, streamType) {
		writeProblem(w, why)
		return
	}
	body, status := p.renderProblem(p.frameOf(r, "error", false), why)
	p.write(w, status, body)
}

// Refuse answers a browser with a problem. The navigation is on the page, unless the
// request was refused for who sent it, or from where.
func (p *Pages) Refuse(w http.ResponseWriter, r *http.Request, why Refusal) {
	secure(w.Header())
	if why.Status != http.StatusUnauthorized && why.Status != http.StatusForbidden {
		p.refuse(w, r, why)
		return
	}
	f := &frame{Now: time.Now(), Sheets: assets().sheets("error"), Script: assets().url("berth.js"), Icon: assets().url("icon.svg"), Plain: why.Plain, path: pathOf(r.URL)}
	body, status := p.renderProblem(f, why)
	p.write(w, status, body)
}

// RefuseRole answers a browser that lacks a role for what it has sent.
func (p *Pages) RefuseRole(w http.ResponseWriter, r *http.Request, no *access.Refusal) {
	secure(w.Header())
	p.refuse(w, r, p.roleMissing(r, no))
}

// renderProblem renders why there is no page.
func (p *Pages) renderProblem(f *frame, why Refusal) ([]byte, int) {
	f.Title, f.Data = why.Title, why
	body, err := p.sets.render("error", f)
	if err != nil {
		p.log.Error("the page of an error can't be rendered", "error", err)
		return []byte(http.StatusText(why.Status)), why.Status
	}
	return body, why.Status
}

// problemOf makes a refusal of an error, and logs faults.
func (p *Pages) problemOf(r *http.Request, err error) Refusal {
	if no := (*access.Refusal)(nil); errors.As(err, &no) {
		return p.roleMissing(r, no)
	}
	code := problem.CodeOf(err)
	if code == problem.PoolNotFound {
		if s, waits := p.cfg.Ready(); waits == nil {
			err = s.Client.Suggest(r.Context(), err, func(name string) bool { return access.Of(r.Context()).Allow(access.View, name) == nil })
		}
	}
	why := refusalOf(code, err.Error())
	switch {
	case r.Context().Err() != nil: // the browser is gone, and that is why
	case code == problem.Internal:
		if p.trouble.loud() {
			p.log.Error("a page can't be shown", server.LogArgs(r.Context(), "path", problem.Clip(r.URL.Path), "error", err)...)
		}
		why.Detail = "A fault of berth: its log says more."
	case why.Status >= http.StatusInternalServerError:
		since := time.Now()
		if old := (*oldError)(nil); errors.As(err, &old) {
			since = old.since
		}
		why.Since = p.trouble.since(code, since)
	}
	return why
}

// trouble is what keeps pages from being shown, whichever they are.
type trouble struct {
	mu    sync.Mutex // guards what follows
	code  problem.Code
	begun time.Time
	// born is when the server began; zero once a page could be shown.
	born   time.Time
	logged time.Time // when a fault was last logged
}

// since returns since when there is this trouble: now, if it is new.
func (t *trouble) since(code problem.Code, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.code != code {
		t.code, t.begun = code, now
		if !t.born.IsZero() {
			t.begun = t.born // nothing was ever there
		}
	}
	return t.begun
}

// over records that there is none.
func (t *trouble) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.code, t.born = "", time.Time{}
}

// loudEvery is how often faults are logged: a live page with one is read every second.
const loudEvery = 10 * time.Second

func (t *trouble) loud() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.logged) < loudEvery {
		return false
	}
	t.logged = time.Now()
	return true
}

// writeProblem answers a program.
func writeProblem(w http.ResponseWriter, why Refusal) {
	body, err := json.Marshal(map[string]any{"title": why.Title, "status": why.Status, "code": why.Code, "detail": why.Detail})
	if err != nil {
		body = nil // texts and a number can be written
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(why.Status)
	_, _ = w.Write(append(body, '\n'))
}
