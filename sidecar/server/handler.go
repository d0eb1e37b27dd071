package server

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
)

// Pages are what a server shows to browsers, besides its endpoints.
type Pages interface {
	// Owns reports whether a request is for a page, or for what belongs to the pages.
	Owns(r *http.Request) bool
	// SignedIn returns the token that the sender of a request has signed in with.
	SignedIn(r *http.Request) (access.Token, bool)
}

// Handler finds out who sends a request before the endpoints get it: see [access.Of]. What they
// do not answer it refuses, and it logs and counts all answers. Its fields are set before it is
// used.
type Handler struct {
	// Config says who may use the server.
	Config Config
	// Bodies are the limits of bodies by path; [MaxBody] bytes for other paths.
	Bodies map[string]Limit
	// Unreadable returns the problem of a body that is not JSON.
	Unreadable func(err error) error
	// Permit returns why the sender of a request may not send it, as far as its method and path
	// tell. It is called before the body is read. Nil permits all.
	Permit func(r *http.Request) error
	// Pages are nil if there are none.
	Pages Pages
	// Routes are the endpoints.
	Routes *http.ServeMux
	// Refuse answers a request with an error, and returns the status.
	Refuse  func(w http.ResponseWriter, r *http.Request, err error) (status int)
	Metrics *Metrics
	Log     hclog.Logger
	// Tracer makes a span of each request, except for those with a path of Untraced.
	Tracer   *trace.Tracer
	Untraced map[string]bool

	guard        *guard
	small, large memory
	underWay     *quota
	refusals     *lograte.Limit
}

// NewHandler completes a handler.
func NewHandler(h Handler) *Handler {
	h.guard = newGuard(&h.Config, h.Pages)
	h.small, h.large = newMemory(smallArriving, smallDecoded), newMemory(largeArriving, largeDecoded)
	h.underWay = newQuota(math.MaxInt64, bodiesEach)
	h.refusals = new(lograte.Limit)
	return &h
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	r = h.identify(w, r)
	a := answers.Get().(*answer)
	*a = answer{ResponseWriter: w, r: r, refuse: h.Refuse}
	defer func() {
		h.finish(a, recover(), begun)
		*a = answer{}
		answers.Put(a)
	}()
	if strings.HasPrefix(r.URL.Path, apiPrefix) {
		header := w.Header() // the keys are canonical
		header["X-Content-Type-Options"], header["Cache-Control"] = noSniff, noStore
	}
	r, err := h.guard.check(r)
	a.r = r
	if err == nil && h.Permit != nil {
		err = h.Permit(r)
	}
	if err == nil {
		var body *Body
		if body, err = h.takeBody(w, r); body != nil {
			defer body.end()
		}
	}
	if err != nil {
		leaveUnread(w, r)
		a.fail(err)
		return
	}
	h.Routes.ServeHTTP(a, r)
}

// apiPrefix begins the paths of the API. Its answers are neither guessed to be of another type
// nor kept by anything on the way: they state what is true now.
const apiPrefix = "/v1/"

var noSniff, noStore = []string{"nosniff"}, []string{"no-store"}

// finish ends a request, also after a panic.
func (h *Handler) finish(a *answer, panicked any, begun time.Time) {
	defer func() { endSpan(a.r, a.status) }() // a panic may go on
	if panicked != nil {
		if hungUp(a.r, panicked) {
			panic(http.ErrAbortHandler)
		}
		h.Metrics.panics.Inc()
		h.refusals.Log(h.Log, hclog.Error, "panic", "a request failed", LogArgs(a.r.Context(), keyMethod, a.r.Method, keyPath, problem.Clip(a.r.URL.Path),
			keyError, fmt.Sprint(panicked), keyStack, string(debug.Stack()))...)
		if a.status != 0 {
			panic(http.ErrAbortHandler) // half an answer must not look like one
		}
		a.fail(problem.New(problem.Internal, "a fault of berth: its log says more"))
	}
	took := time.Since(begun)
	method, route, ok := strings.Cut(a.r.Pattern, " ")
	if !ok {
		method, route = noMethod, noRoute
	}
	h.Metrics.answered(route, method, a.status, a.Header().Get("Content-Type") == StreamType, took)
	h.report(a, took)
}

// hungUp reports whether a panic says no more than that the client is gone, to which an answer could not
// be written.
func hungUp(r *http.Request, panicked any) bool {
	err, ok := panicked.(error)
	if !ok || errors.Is(err, http.ErrAbortHandler) {
		return ok
	}
	_, fault := err.(runtime.Error)
	return !fault && r.Context().Err() != nil
}

// report logs a request: one that was refused for who has sent it, and how, is worth
// an operator's attention, at a bounded rate.
func (h *Handler) report(a *answer, took time.Duration) {
	level := hclog.Debug
	switch a.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		level = hclog.Info
	}
	if level < h.Log.GetLevel() {
		return
	}
	args := LogArgs(a.r.Context(), keyMethod, a.r.Method, keyPath, problem.Clip(a.r.URL.Path), keyStatus, a.status,
		keyTook, took.Round(time.Microsecond), keyWho, access.Of(a.r.Context()), keyFrom, AddressOf(a.r.Context()))
	if level == hclog.Info {
		h.refusals.Log(h.Log, level, strconv.Itoa(a.status), "request", args...)
		return
	}
	h.Log.Log(level, "request", args...)
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// answer is the writer that handlers see. It makes problems of what
// http.ServeMux says by itself, which is text.
type answer struct {
	http.ResponseWriter
	r       *http.Request
	refuse  func(http.ResponseWriter, *http.Request, error) int
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
		a.fail(unrouted(a.r, status))
		return
	}
	a.status = status
	if status == http.StatusUnauthorized {
		a.Header().Set("WWW-Authenticate", challenge)
	}
	a.ResponseWriter.WriteHeader(status)
}

// challenge says how a caller can show who it is.
const challenge = `Bearer realm="berth"`

// unrouted is the problem of a request that no endpoint takes.
func unrouted(r *http.Request, status int) error {
	switch status {
	case http.StatusNotFound:
		return problem.New(problem.NotFound, "there is nothing at %s: /openapi.yaml tells what there is", problem.Quote(r.URL.Path))
	case http.StatusMethodNotAllowed:
		return problem.New(problem.NotAllowed, "%s is not possible at %s", problem.Clip(r.Method), problem.Quote(r.URL.Path))
	}
	return problem.New(problem.Malformed, "the request can't be read")
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

// fail answers with an error, unless there is an answer already.
func (a *answer) fail(err error) {
	if a.status != 0 {
		return
	}
	if problem.CodeOf(err) == problem.Unauthorized {
		a.Header().Set("WWW-Authenticate", challenge)
	}
	a.status = a.refuse(a.ResponseWriter, a.r, err)
}
