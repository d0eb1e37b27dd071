package ui

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// viewTimeout bounds the reading of what a page shows.
const viewTimeout = 10 * time.Second

// secure sets the headers of every answer: nothing runs, and nothing is loaded, that is not
// ours; nobody frames a page, and nobody keeps one.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with none at all, a form would not say whose it is
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

const (
	htmlType   = "text/html"
	streamType = "text/event-stream"
)

// serve answers with a page, or with a stream of what it shows.
func (p *Pages) serve(w http.ResponseWriter, r *http.Request, pg *page) {
	w.Header().Set("Vary", "Accept, Cookie")
	if pg.act && !p.may(r) {
		p.refuse(w, r, p.mayNot())
		return
	}
	if pg.every > 0 && r.Method == http.MethodGet && accepts(r, streamType) {
		p.live(w, r, pg)
		return
	}
	_, body, status := p.render(r, pg, false)
	p.write(w, status, body)
}

// write answers with HTML.
func (p *Pages) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", htmlType+"; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// render renders a page as it is now, or why that is not known, and returns the status that goes
// with it.
func (p *Pages) render(r *http.Request, pg *page, live bool) (f *frame, body []byte, status int) {
	f = p.frameOf(r, pg.name, live)
	if pg.every > 0 {
		f.LiveURL = f.Refresh
	}
	v, err := p.look(r, pg)
	if err == nil {
		p.trouble.over()
		f.Title, f.Data = v.Title, v.Data
		if body, err = p.sets.render(pg.name, f); err == nil {
			return f, body, http.StatusOK
		}
	}
	body, status = p.renderProblem(f, p.problemOf(r, err))
	return f, body, status
}

// look reads what a page shows.
func (p *Pages) look(r *http.Request, pg *page) (*view, error) {
	s, err := p.cfg.Ready()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(p.withLooker(r), viewTimeout)
	defer cancel()
	if err := p.old(ctx, s); err != nil {
		return nil, err
	}
	v, err := pg.view(ctx, s, r)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && r.Context().Err() == nil {
		err = problem.New(problem.EtcdUnavailable, "what the page shows could not be read within %s", viewTimeout)
	}
	return v, err
}

// maxAge is from what age on the watched copy of the pools is not shown as what they are. A claim
// is granted by one of 2 s at most.
const maxAge = 3 * time.Second

// oldError tells that etcd is not heard of any more, and since when.
type oldError struct {
	why   *problem.Error
	since time.Time
}

// Error says what is not known.
func (e *oldError) Error() string { return e.why.Error() }

// Unwrap returns the problem.
func (e *oldError) Unwrap() error { return e.why }

// tooOld tells whether etcd has not been heard of for so long that nothing can be shown.
func tooOld(ctx context.Context, s *Session) error {
	age, err := s.Client.Age(ctx)
	if err != nil || age <= maxAge {
		return err
	}
	return &oldError{
		why:   problem.New(problem.EtcdUnavailable, "etcd does not answer: what pools, runs and hosts are like now is not known"),
		since: time.Now().Add(-age),
	}
}

// take does what a form asks for, and shows the page that comes then.
func (p *Pages) take(w http.ResponseWriter, r *http.Request, f form) {
	if !p.ours(r) {
		p.refuse(w, r, crossSite())
		return
	}
	if !p.may(r) {
		p.refuse(w, r, p.mayNot())
		return
	}
	s, err := p.cfg.Ready()
	var to string
	if err == nil {
		err = r.ParseForm()
		if err != nil {
			err = problem.New(problem.Malformed, "the form can't be read: %w", err)
		}
	}
	if err == nil {
		to, err = f.do(p.withLooker(r), s, r)
	}
	if err != nil {
		body, status := p.renderProblem(p.frameOf(r, "error", false), p.problemOf(r, err))
		p.write(w, status, body)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// accepts tells whether a type is named among those that a client takes.
func accepts(r *http.Request, kind string) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		got, params, err := mime.ParseMediaType(part)
		q, weighed := params["q"]
		if err == nil && got == kind && (!weighed || strings.Trim(q, "0.") != "") { // q=0 is not at all
			return true
		}
	}
	return false
}
