package sidecar

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// owners decides, before the body of a request is read, whether its sender, which does not have the
// role for it, may own what the path names. The operation checks the owner again, with what the body
// says.
type owners struct {
	a    *apiServer
	s    *session
	need access.Need
}

// reports are the operations of executors about their attempts.
var reports = map[string]bool{"heartbeat": true, "finish": true, "renew": true}

// mayOwn returns why the sender of a request is refused, nil if it may own what the path names.
func (o owners) mayOwn(r *http.Request, pattern string) error {
	ctx, path := r.Context(), pattern[strings.IndexByte(pattern, '/'):]
	id := inPath(r, pattern, "{id}")
	switch verb := path[strings.LastIndexByte(path, '/')+1:]; {
	case path == api.EventsPath:
		return o.ofClaim(r, r.URL.Query().Get("claim"))
	case strings.HasPrefix(path, api.ClaimsPath):
		return o.ofClaim(r, id)
	case reports[verb]:
		return o.ofAttempt(ctx, stepIn(r, pattern))
	case o.need.Role == access.View:
		return o.inTurn(ctx, func() error { return o.s.mayReadInstance(ctx, stepIn(r, pattern)) })
	}
	return o.inTurn(ctx, func() error { return o.s.reader.AllowRun(ctx, access.Of(ctx), o.need.Role, id) })
}

// inTurn reads etcd in the turn of a large read, so that reading is bounded for each identity.
func (o owners) inTurn(ctx context.Context, read func() error) error {
	leave, err := o.a.reads.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return read()
}

// stepIn returns the run or the step instance that a path names.
func stepIn(r *http.Request, pattern string) store.StepID {
	index, err := strconv.Atoi(inPath(r, pattern, "{index}"))
	if err != nil {
		index = -1 // there is none
	}
	return store.StepID{Run: inPath(r, pattern, "{id}"), Step: inPath(r, pattern, "{step}"), Index: index}
}

// ofClaim is mayOwn for a claim. One that this server knows is not read from etcd.
func (o owners) ofClaim(r *http.Request, id string) error {
	ctx := r.Context()
	caller := callerOf(ctx, o.need.Role, r.Header.Get(api.ClientTokenHeader))
	if o.a.knownOf(o.s, caller, id).any() {
		return nil
	}
	err := o.inTurn(ctx, func() error {
		_, err := o.a.why(ctx, o.s, caller, id)
		return err
	})
	code, grants := problem.CodeOf(err), access.Of(ctx).Grants
	switch known := grants.Has(access.View) || grants.Has(access.Claim); {
	case code != problem.ClaimNotFound && code != problem.Invalid:
		return err
	case !known:
		return caller.May(nil)
	case r.Method == http.MethodDelete:
		return nil // it is released already
	}
	return err
}

// ofAttempt is mayOwn for the executor of a run or a step instance. One that may execute, or read the
// run as its submitter, may have had an earlier attempt: the fence in the body says so.
func (o owners) ofAttempt(ctx context.Context, id store.StepID) error {
	who := access.Of(ctx)
	if who.Grants.Has(access.Execute) || o.s.executors.IsOf(id, who) {
		return nil
	}
	who.Grants = nil
	bare := access.With(ctx, func() access.Identity { return who })
	err := o.inTurn(ctx, func() error { return o.s.mayReadInstance(bare, id) })
	if isRefusal(err) {
		return access.Allow(ctx, o.need.Role, access.Everything)
	}
	return err
}
