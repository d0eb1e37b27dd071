package sidecar

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/ui"
)

const (
	// maxHeaders bounds the header of a request to 16 KB: the server adds 4 KB to
	// what it is told.
	maxHeaders = 12 << 10
	// headerTimeout bounds the wait for a header, idleTimeout for the next request
	// on a connection.
	headerTimeout, idleTimeout = 10 * time.Second, 2 * time.Minute
)

// door is what every request goes through.
type door struct {
	guard   *guard
	pages   *ui.Pages // nil: there are none
	mux     *http.ServeMux
	metrics *metrics
	log     hclog.Logger
}

// ServeHTTP lets a request in, answers what nobody behind the door answers, and
// keeps count.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	a := answers.Get().(*answer)
	*a = answer{ResponseWriter: w, r: r, pages: d.pages}
	defer func() {
		d.settle(a, recover(), begun)
		*a = answer{}
		answers.Put(a)
	}()
	p := d.guard.check(r)
	if p == nil {
		p = takeBody(w, r, d.pages)
	}
	if p != nil {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // what was not read is not waited for
		}
		if p.Status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="berth"`)
		}
		a.refuse(p)
		return
	}
	d.mux.ServeHTTP(a, r)
}

// settle ends a request, be it with a panic.
func (d *door) settle(a *answer, panicked any, begun time.Time) {
	if panicked != nil {
		if err, ok := panicked.(error); ok && errors.Is(err, http.ErrAbortHandler) || a.r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the client is gone
		}
		d.log.Error("a request failed", keyMethod, a.r.Method, keyPath, problem.Clip(a.r.URL.Path),
			keyError, fmt.Sprint(panicked), keyStack, string(debug.Stack()))
		if a.status != 0 {
			panic(http.ErrAbortHandler) // half an answer must not look like one
		}
		a.refuse(newProblem(problem.Internal, "a fault of berth: its log says more"))
	}
	took := time.Since(begun)
	method, route, ok := strings.Cut(a.r.Pattern, " ")
	if !ok {
		method, route = noMethod, noRoute
	}
	d.metrics.answered(route, method, a.status, a.Header().Get("Content-Type") == streamType, took)
	d.tell(a, took)
}

// tell logs a request: what the door refused for who asked it, and how, is worth
// an operator's look.
func (d *door) tell(a *answer, took time.Duration) {
	level := hclog.Debug
	switch a.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge:
		level = hclog.Info
	}
	if level < d.log.GetLevel() {
		return
	}
	d.log.Log(level, "request", keyMethod, a.r.Method, keyPath, problem.Clip(a.r.URL.Path), keyStatus, a.status,
		keyTook, took.Round(time.Microsecond), keyFrom, from(a.r))
}

// from is where a request came from.
func from(r *http.Request) string {
	if p, ok := peerOf(r.Context()); ok && p.known {
		return fmt.Sprintf("uid %d", p.uid)
	}
	return r.RemoteAddr
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// answer is the writer that handlers see. It makes problems of what
// http.ServeMux says by itself, which is text.
type answer struct {
	http.ResponseWriter
	r       *http.Request
	pages   *ui.Pages
	status  int  // 0 before the header is written
	replace bool // what is written now is not ours
}

// Unwrap serves http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// SetReadDeadline does nothing: the body is in memory, and what is read from the
// connection from now on is how we learn that the client has hung up.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// WriteHeader writes the header, unless http.ServeMux answers an error.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	if a.r.Pattern == "" && status >= http.StatusBadRequest {
		a.replace = true
		a.refuse(unrouted(a.r, status))
		return
	}
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// unrouted is the problem of a request that no endpoint takes.
func unrouted(r *http.Request, status int) *Problem {
	switch status {
	case http.StatusNotFound:
		return newProblem(problem.NotFound, "there is nothing at %s: /openapi.yaml tells what there is", quote(r.URL.Path))
	case http.StatusMethodNotAllowed:
		return newProblem(problem.NotAllowed, "%s is not possible at %s", problem.Clip(r.Method), quote(r.URL.Path))
	}
	p := newProblem(problem.Malformed, "the request can't be read")
	p.Status = status
	return p
}

// longAnswer is from what size on an answer may not fit into the buffers on the
// way, so that a reader that takes nothing is waited for.
const longAnswer = 16 << 10

// Write writes a part of the body.
func (a *answer) Write(p []byte) (int, error) {
	if a.replace {
		return len(p), nil
	}
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if len(p) < longAnswer {
		return a.ResponseWriter.Write(p)
	}
	ctl := http.NewResponseController(a.ResponseWriter)
	if err := ctl.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	n, err := a.ResponseWriter.Write(p)
	if err == nil {
		err = ctl.Flush()
	}
	return n, errors.Join(err, ctl.SetWriteDeadline(time.Time{}))
}

// answerTimeout bounds the wait for a reader of a long answer.
const answerTimeout = 30 * time.Second

// refuse answers with a problem.
func (a *answer) refuse(p *Problem) {
	switch {
	case a.status != 0:
	case a.forPeople():
		a.status = p.Status
		a.show(p)
	default:
		a.status = p.Status
		p.write(a.ResponseWriter)
	}
}
