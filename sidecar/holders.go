package sidecar

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/executor"
)

// idInput is the input of an endpoint of one claim.
type idInput struct {
	ID          string `path:"id"`
	ClientToken string `header:"Berth-Client-Token" doc:"The client_token of the request for the claim: it shows that the claim is the caller's own, if the caller has no identity."`
}

// claimBody is the input of an endpoint of one claim, with a body.
type claimBody struct {
	ID          string `path:"id"`
	ClientToken string `header:"Berth-Client-Token" doc:"The client_token of the request for the claim: it shows that the claim is the caller's own, if the caller has no identity."`
	RawBody     []byte `contentType:"application/json"`
}

// getClaim answers GET /v1/claims/{id}.
func (a *apiServer) getClaim(ctx context.Context, s *session, in *idInput) (*output[api.Claim], error) {
	begun := time.Now()
	caller := callerOf(ctx, access.View, in.ClientToken)
	if err := a.check(s, caller, in.ID); err != nil {
		return nil, err
	}
	one := a.waits.asyncOf(in.ID)
	h, err := s.holders.Find(in.ID)
	switch {
	case err == nil && h != nil:
		return outputOf(heldClaim(s.holders.View(h), begun), nil)
	case one != nil:
		return outputOf(s.waitingClaim(ctx, one.request, pool.Reason{}), nil)
	case err != nil:
		return nil, err
	}
	why, err := s.why(ctx, caller, in.ID)
	return outputOf(why.Claim, err)
}

// check returns why a caller may not ask for something about what this server knows of claims
// with an id.
func (a *apiServer) check(s *session, c claims.Caller, id string) error {
	if err := s.holders.Check(c, id); err != nil {
		return err
	}
	return a.waits.check(c, id)
}

// whyClaim answers GET /v1/claims/{id}/why.
func (a *apiServer) whyClaim(ctx context.Context, s *session, in *idInput) (*output[api.Why], error) {
	begun := time.Now()
	why, err := s.why(ctx, callerOf(ctx, access.View, in.ClientToken), in.ID)
	why.Claim = s.known(why.Claim, begun)
	return outputOf(why, err)
}

// known returns the best that is known of a claim from the pools: of one that is
// held through this server, what its holder is answered.
func (s *session) known(c api.Claim, begun time.Time) api.Claim {
	if c.Status != api.ClaimHeld || !s.owns(c) {
		return c
	}
	if h, err := s.holders.Find(c.ID); err == nil && h != nil && h.Is(store.Fence(c.Fence)) {
		return heldClaim(s.holders.View(h), begun)
	}
	return c
}

// owns reports whether a claim belongs to this server.
func (s *session) owns(c api.Claim) bool {
	return c.Host == s.client.Host() && c.Instance == s.client.Instance()
}

// why returns what is known of a claim of any host, from the pools. The caller must
// be allowed to ask that of all claims with the id.
func (s *session) why(ctx context.Context, c claims.Caller, id string) (api.Why, error) {
	if err := pool.ValidateID(id); err != nil {
		return api.Why{}, err
	}
	w, err := s.client.Why(ctx, id)
	if err != nil {
		return api.Why{}, err
	}
	if err := w.Each(c.Check); err != nil {
		return api.Why{}, err
	}
	return inspect.WhyOf(w), nil
}

// renewedLife returns how the holder of a claim reports from now on that it lives.
func renewedLife(ctx context.Context, r *api.RenewRequest) claims.Life {
	return claims.Life{TTL: (*time.Duration)(r.TTL), PID: r.PID, UID: uidOf(ctx), OnlyKill: r.OnlyKill}
}

// renewClaim answers POST /v1/claims/{id}/renew.
func (a *apiServer) renewClaim(ctx context.Context, s *session, in *claimBody, r api.RenewRequest) (*output[api.Claim], error) {
	begun := time.Now()
	if err := checkFence(r.Fence); err != nil {
		return nil, err
	}
	proc, err := s.openProcess(ctx, r.PID)
	if err != nil {
		return nil, err
	}
	caller := callerOf(ctx, access.Operate, in.ClientToken)
	h, err := s.holders.Renew(caller, in.ID, store.Fence(r.Fence), renewedLife(ctx, &r), proc)
	if problem.CodeOf(err) == problem.ClaimNotFound {
		_, err = s.elsewhere(ctx, caller, in.ID, r.Fence, err)
	}
	if err != nil {
		return nil, err
	}
	return outputOf(heldClaim(s.holders.View(h), begun), nil)
}

// elsewhere searches for a claim that no client holds here: it is not_holder if another
// has it, or waits, or a run, and err otherwise. Own is the fence of a claim that etcd
// shows as held through this server, and 0 if there is none. Unless fence is 0, only a
// claim that has it counts. The caller must be allowed to ask for it.
func (s *session) elsewhere(ctx context.Context, caller claims.Caller, id string, fence int64, err error) (own int64, _ error) {
	why, lookErr := s.why(ctx, caller, id)
	switch {
	case problem.CodeOf(lookErr) == problem.ClaimNotFound:
		return 0, err
	case lookErr != nil:
		return 0, lookErr
	}
	c := why.Claim
	if fence != 0 && c.Fence != fence {
		return 0, err
	}
	if executor.Binds(c.Bind) {
		return 0, problem.New(problem.NotHolder, "claim %q holds the slots of run %q, and is released when that ends: finish the run, cancel it, or revoke the claim", id, c.RunID)
	}
	if !s.owns(c) {
		return 0, problem.New(problem.NotHolder, "claim %q belongs to %s/%s: ask there, or revoke it", id, c.Host, c.Instance)
	}
	if c.Status != api.ClaimHeld {
		return 0, err
	}
	return c.Fence, err
}

// revokeClaim answers POST /v1/claims/{id}/revoke.
func (a *apiServer) revokeClaim(ctx context.Context, s *session, in *claimBody, r api.RevokeRequest) (*output[api.Revocation], error) {
	if err := pool.ValidateID(in.ID); err != nil {
		return nil, err
	}
	claim := in.ID
	if r.Host != "" || r.Instance != "" {
		claim = r.Host + "/" + r.Instance + "/" + in.ID
		if err := pool.ValidateClaim(claim); err != nil {
			return nil, err
		}
	}
	operator := s.operator(ctx)
	operator.May = callerOf(ctx, access.Operate, in.ClientToken).Check
	done, err := operator.RevokeClaim(ctx, claim, r.Force)
	if err != nil {
		return nil, err
	}
	answer := api.Revocation{ID: done.Claim, Host: done.Host, Instance: done.Instance, Fence: int64(done.Fence), Forced: done.Forced}
	if answer.Detail = "its host has its holder stop, and frees the slots when it has: a process that berth watches must have ended, and any other holder has " + pool.RevokeGrace.String(); r.Force {
		answer.Detail = "the slots are free; the old holder may still run: its fence is lower than that of any later claim"
	}
	if done.Unnotified {
		answer.Detail += "; etcd is full, so its host was not notified"
	}
	return outputOf(answer, nil)
}

// releaseInput is the input of DELETE /v1/claims/{id}.
type releaseInput struct {
	ID          string `path:"id"`
	ClientToken string `header:"Berth-Client-Token" doc:"The client_token of the request for the claim: it shows that the claim is the caller's own, if the caller has no identity."`
	Fence       int64  `query:"fence" minimum:"1" doc:"Releases only the claim with this fence, so that a release which comes late leaves a later claim of the id alone."`
}

// releaseCheck is how often a release checks whether a claim that was granted just now has its
// holder.
const releaseCheck = 10 * time.Millisecond

// reconcileTimeout bounds the wait until a claim is freed that no client holds.
const reconcileTimeout = 5 * time.Second

// releaseOrphaned frees a claim that the pools show as held through this server and that
// no client of it holds, as after a restore of etcd. If it stays held, that is an error.
func (s *session) releaseOrphaned(ctx context.Context, in *releaseInput) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	if err := s.client.Reconcile(ctx); err != nil {
		return err
	}
	own, err := s.elsewhere(ctx, callerOf(ctx, access.Operate, in.ClientToken), in.ID, in.Fence, nil)
	if err == nil && own != 0 {
		err = problem.New(problem.NotHolder, "claim %q is held by this instance, and by no client of this server: revoke it", in.ID)
	}
	return err
}

// releaseClaim answers DELETE /v1/claims/{id}. A claim that waits has no fence.
func (a *apiServer) releaseClaim(ctx context.Context, s *session, in *releaseInput) (_ *struct{}, err error) {
	caller := callerOf(ctx, access.Operate, in.ClientToken)
	waited := false
	if in.Fence == 0 {
		released := problem.New(problem.ClaimCanceled, "claim %q was released while it waited", problem.Clip(in.ID))
		if waited, err = a.waits.endID(ctx, caller, in.ID, released); err != nil {
			return nil, err
		}
	}
	for {
		if found, err := s.holders.Release(ctx, caller, in.ID, store.Fence(in.Fence)); found || waited {
			return nil, err
		}
		own, err := s.elsewhere(ctx, caller, in.ID, in.Fence, nil)
		if err != nil || own == 0 || s.hasEnded(in.ID, store.Fence(own)) { // its slots are freed with its lease
			return nil, err
		}
		if len(a.waits.of(in.ID)) == 0 { // what was granted meanwhile has its holder
			if found, err := s.holders.Release(ctx, caller, in.ID, store.Fence(in.Fence)); found {
				return nil, err
			}
			return nil, s.releaseOrphaned(ctx, in)
		}
		if in.Fence == 0 {
			return nil, nil // its request was ended just now
		}
		// The claim with that fence is released already, and what was read does not show
		// it yet; or it was granted just now, and has no holder yet.
		select {
		case <-time.After(releaseCheck):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// listClaims answers GET /v1/claims.
func (a *apiServer) listClaims(ctx context.Context, s *session, in *api.ClaimListInput) (*output[api.List[api.Claim]], error) {
	begun := time.Now()
	holders, waiters, err := s.client.Claims(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]api.Claim, 0, len(holders)+len(waiters))
	for _, h := range holders {
		all = append(all, inspect.HeldClaimOf(h))
	}
	for _, w := range waiters {
		all = append(all, inspect.WaitingClaimOf(w))
	}
	list, err := in.Page(all)
	for i, c := range list.Items {
		list.Items[i] = s.known(c, begun)
	}
	return outputOf(list, err)
}
