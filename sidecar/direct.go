package sidecar

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// endpoints is what huma registers its handlers with. The requests of some endpoints are nearly
// always of one simple form. Those are answered directly: huma takes longer than all else to
// take such a request apart and to put its answer together.
type endpoints struct {
	*http.ServeMux
	direct map[string]direct // by pattern
	// needs is what endpoints need of their callers, by pattern.
	needs map[string]access.Need
	// mayOwn is [owners.mayOwn].
	mayOwn func(r *http.Request, pattern string, need access.Need) error
}

// direct answers a request, or reports false if huma is to do that. The answer is the same.
type direct func(w http.ResponseWriter, r *http.Request) bool

func newEndpoints() *endpoints {
	return &endpoints{ServeMux: http.NewServeMux(), direct: map[string]direct{}, needs: map[string]access.Need{}}
}

// HandleFunc registers a handler.
func (m *endpoints) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	m.ServeMux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if answer := m.direct[pattern]; answer == nil || !answer(w, r) {
			handler(w, r)
		}
	})
}

// permit refuses a request whose caller does not have what the endpoint needs: the role, for the pool
// or the queue in the path if there is one, or the object in the path as its own. What else the role must
// be for, the endpoint checks; also whose the object is, if the request has no body.
func (m *endpoints) permit(r *http.Request) error {
	_, pattern := m.Handler(r)
	need, ok := m.needs[pattern]
	if !ok {
		return nil
	}
	if err := need.Check(r.Context()); err != nil {
		return err
	}
	if need.Own {
		switch id := access.Of(r.Context()); {
		case !id.Authenticated() && r.Header.Get(api.ClientTokenHeader) == "":
			return access.Allow(r.Context(), need.Role) // it can show nothing to be its own
		case r.ContentLength == 0 || id.Grants.Allow(need.Role, access.Everything):
			return nil
		}
		return m.mayOwn(r, pattern, need)
	}
	part := map[access.On]string{access.OnPools: "{pool}", access.OnQueues: "{queue}"}[need.On]
	if name := inPath(r, pattern, part); part != "" && name != "" {
		return access.Allow(r.Context(), need.Role, name)
	}
	return nil
}

// inPath returns the part of a request's path that a pattern names, empty if it names none.
func inPath(r *http.Request, pattern, part string) string {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, name := range strings.Split(pattern[strings.IndexByte(pattern, '/'):], "/") {
		if name == part && i < len(parts) {
			if text, err := url.PathUnescape(parts[i]); err == nil {
				return text
			}
		}
	}
	return ""
}

// patternOf returns the pattern of an operation.
func patternOf(op huma.Operation) string { return op.Method + " " + op.Path }

// directly answers requests of a simple form, for which input returns the input of an endpoint.
func directly[I, O any](input func(*http.Request) *I, answer func(context.Context, *I) (*O, error), write func(http.ResponseWriter, *O)) direct {
	return func(w http.ResponseWriter, r *http.Request) bool {
		in := input(r)
		if in == nil {
			return false
		}
		out, err := answer(r.Context(), in)
		if err != nil {
			api.ProblemOf(err).Write(w)
		} else {
			write(w, out)
		}
		return true
	}
}

// shortBody is the length up to which a body takes no share of the memory for bodies, which the
// request would keep while its claim waits.
const shortBody = 4 << 10

// simpleClaim returns the input of a request for a claim that waits for its answer; nil if it is
// another one.
func simpleClaim(r *http.Request) *claimInput {
	body := server.BodyOf(r)
	if body == nil || len(body.Bytes()) > shortBody || r.URL.RawQuery != "" || r.Header["Prefer"] != nil {
		return nil
	}
	return &claimInput{RawBody: body.Bytes(), body: body}
}

// simpleRelease returns the input of a request to release a claim, at most with its fence; nil if it
// is another one.
func simpleRelease(r *http.Request) *releaseInput {
	in := &releaseInput{ID: r.PathValue("id"), ClientToken: r.Header.Get(api.ClientTokenHeader)}
	if r.URL.RawQuery != "" {
		digits, ok := strings.CutPrefix(r.URL.RawQuery, "fence=")
		fence, err := strconv.ParseUint(digits, 10, 64)
		if !ok || err != nil || fence == 0 || fence > math.MaxInt64 {
			return nil
		}
		in.Fence = int64(fence)
	}
	return in
}
