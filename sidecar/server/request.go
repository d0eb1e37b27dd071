package server

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/trace"
)

// RequestIDHeader is the header with the id of a request, in the request and in its answer.
const RequestIDHeader = "X-Request-Id"

// MaxRequestID bounds the id of a request that a client sends, in bytes.
const MaxRequestID = 128

// request is the context of a request, with its id and its span.
type request struct {
	context.Context
	id   [1]string // as the value of a header
	span trace.Span
}

type requestKey struct{}

// Value returns the request itself for its key.
func (r *request) Value(key any) any {
	if key == (requestKey{}) {
		return r
	}
	return r.Context.Value(key)
}

func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// RequestIDOf returns the id of the request of a context, empty if there is none.
func RequestIDOf(ctx context.Context) string {
	if r := requestOf(ctx); r != nil {
		return r.id[0]
	}
	return ""
}

// LogArgs returns what identifies the request of a context in the log, to follow what else a line
// has: its id, and the id of its trace if it is recorded.
func LogArgs(ctx context.Context, args ...any) []any {
	r := requestOf(ctx)
	if r == nil {
		return args
	}
	args = append(args, keyRequest, r.id[0])
	if id := trace.IDOf(ctx); id != "" {
		args = append(args, keyTrace, id)
	}
	return args
}

// identify returns a request with its id, which the answer has too, and with its span.
func (h *Handler) identify(w http.ResponseWriter, r *http.Request) *http.Request {
	ctx := r.Context()
	one := &request{Context: ctx}
	if given := r.Header[RequestIDHeader]; len(given) == 1 && isRequestID(given[0]) {
		one.id[0] = given[0]
	} else {
		one.id[0] = newRequestID()
	}
	w.Header()[RequestIDHeader] = one.id[:]
	if parent := r.Header[trace.Header]; len(parent) == 1 {
		one.Context = trace.Parent{Traceparent: parent[0], Tracestate: strings.Join(r.Header[trace.StateHeader], ",")}.With(ctx)
	}
	if h.Tracer != nil && !h.Untraced[r.URL.Path] {
		one.Context, one.span = h.Tracer.Start(one.Context, "HTTP", trace.Server)
	}
	return r.WithContext(one)
}

// isRequestID reports whether a text can be the id of a request: printable ASCII without spaces.
func isRequestID(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= MaxRequestID
}

// processID begins the ids of requests that this process generates.
var (
	processID = strings.ToLower(rand.Text()[:10])
	requests  atomic.Uint64
)

// newRequestID returns an id that no other request has.
func newRequestID() string {
	var buf [32]byte
	return string(strconv.AppendUint(append(append(buf[:0], processID...), '-'), requests.Add(1), 36))
}

// methods are those that spans name: clients can send any.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// endSpan ends the span of a request that was answered with a status, by a route.
func endSpan(r *http.Request, status int) {
	one := requestOf(r.Context())
	if one == nil || !one.span.Recorded() {
		return
	}
	span, method, name := one.span, r.Method, r.Method
	if !slices.Contains(methods, method) {
		method, name = "_OTHER", "HTTP" // as OpenTelemetry has it
	}
	if _, route, ok := strings.Cut(r.Pattern, " "); ok {
		name += " " + route
		span.Set(trace.String("http.route", route))
	}
	span.Rename(name)
	span.Set(
		trace.String("http.request.method", method), trace.String("url.path", r.URL.Path), trace.Int("http.response.status_code", status),
		trace.String("berth.request_id", one.id[0]), trace.String("berth.caller", access.Of(r.Context()).String()),
	)
	if from := AddressOf(r.Context()); from != "" {
		span.Set(trace.String("client.address", from))
	}
	if status >= http.StatusInternalServerError || status == 0 {
		span.Fail(http.StatusText(status))
	}
	span.End(nil)
}
