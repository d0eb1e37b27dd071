package sidecar

import (
	"cmp"
	"context"
	"slices"
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
	switch k := a.knownOf(s, caller, in.ID); {
	case k.holder != nil && k.ended == nil:
		return outputOf(heldClaim(s.holders.View(k.holder), begun), nil)
	case k.background != nil:
		return outputOf(s.waitingClaim(ctx, k.background.wanted, pool.Reason{}), nil)
	case k.ended != nil:
		return nil, k.ended
	case k.refused != nil:
		return nil, k.refused
	}
	why, err := a.why(ctx, s, caller, in.ID)
	return outputOf(why.Claim, err)
}

// known is what this server knows of an id, as far as a caller may ask for it.
type known struct {
	holder     *claims.Holder
	ended      error // why its claim has ended
	waits      bool  // a request waits for it
	background *wait // nil unless one waits without a connection
	refused    error // why the caller may not ask, if there are claims of others only
}

func (k known) any() bool { return k.holder != nil || k.ended != nil || k.waits }

// knownOf returns what this server knows of an id. Claims of others with the same id hide nothing of
// the caller's own.
func (a *apiServer) knownOf(s *session, c claims.Caller, id string) (k known) {
	waits, refused := a.waits.askedBy(c, id)
	if one := a.waits.asyncOf(c, id); one != nil && one.ownedBy(c) {
		if held, _ := s.holders.Owned(c, id); !held {
			return known{waits: true, background: one}
		}
	}
	h, hidden, err := s.holders.Find(c, id)
	if hidden {
		k.refused = err
	} else {
		k.holder, k.ended = h, err
	}
	k.waits, k.background = len(waits) > 0, a.waits.asyncOf(c, id)
	switch {
	case k.any():
		k.refused = nil
	case k.refused == nil:
		k.refused = refused
	}
	return k
}

// whyClaim answers GET /v1/claims/{id}/why.
func (a *apiServer) whyClaim(ctx context.Context, s *session, in *idInput) (*output[api.Why], error) {
	begun := time.Now()
	why, err := a.why(ctx, s, callerOf(ctx, access.View, in.ClientToken), in.ID)
	why.Claim = s.known(why.Claim, begun)
	return outputOf(why, err)
}

// known returns the best that is known of a claim from the pools: of one that is
// held through this server, what its holder is answered.
func (s *session) known(c api.Claim, begun time.Time) api.Claim {
	if c.Status != api.ClaimHeld || !s.owns(c) {
		return c
	}
	if h := s.holders.Fenced(c.ID, store.Fence(c.Fence)); h != nil {
		return heldClaim(s.holders.View(h), begun)
	}
	return c
}

// owns reports whether a claim belongs to this server.
func (s *session) owns(c api.Claim) bool {
	return c.Host == s.client.Host() && c.Instance == s.client.Instance()
}

// why returns what is known of a claim of any host, from the pools, as far as the caller may ask for
// it. Claims of others with the same id, on any host, hide nothing of the caller's own.
func (a *apiServer) why(ctx context.Context, s *session, c claims.Caller, id string) (api.Why, error) {
	if err := pool.ValidateID(id); err != nil {
		return api.Why{}, err
	}
	if a.waits.owned(c, id) {
		if w, err := s.client.Why(ctx, s.client.Host()+"/"+s.client.Instance()+"/"+id); err == nil && narrow(&w, c) == nil {
			return inspect.WhyOf(w), nil
		}
	}
	w, err := s.client.Why(ctx, id)
	if err != nil {
		return api.Why{}, err
	}
	refused := narrow(&w, c)
	if refused == nil {
		return inspect.WhyOf(w), nil
	}
	own, err := s.ownedBy(ctx, c, id)
	if err != nil {
		return api.Why{}, err
	}
	if own == "" {
		return api.Why{}, refused
	}
	if w, err = s.client.Why(ctx, own); err != nil {
		return api.Why{}, err
	}
	if err := narrow(&w, c); err != nil {
		return api.Why{}, err
	}
	return inspect.WhyOf(w), nil
}

// narrow removes the claims from what is known of an id for which the caller may not ask. If none is
// left, it returns why.
func narrow(w *pool.Why, c claims.Caller) (refused error) {
	w.All = slices.DeleteFunc(slices.Clone(w.All), func(h pool.HolderStatus) bool {
		err := c.Check(h.Holder, h.Pools)
		if err != nil {
			refused = err
		}
		return err != nil
	})
	if w.Waiter != nil {
		refused = c.Check(w.Waiter.Holder, w.Waiter.Pools)
	}
	if len(w.All) == 0 {
		w.Held = nil
		return refused
	}
	if !c.Owns(w.Held.Holder) {
		shown := slices.IndexFunc(w.All, func(h pool.HolderStatus) bool { return c.Owns(h.Holder) })
		if shown < 0 && c.Check(w.Held.Holder, w.Held.Pools) != nil {
			shown = 0
		}
		if shown >= 0 {
			w.Held = &w.All[shown]
		}
	}
	return nil
}

// ownedBy returns HOST/INSTANCE/ID of the claim with an id that a caller has made, of any host; empty
// if there is none.
func (s *session) ownedBy(ctx context.Context, c claims.Caller, id string) (string, error) {
	held, waiting, err := s.client.Claims(ctx)
	if err != nil {
		return "", err
	}
	for _, h := range held {
		if h.Claim == id && c.Owns(h.Holder) {
			return h.Host + "/" + h.Instance + "/" + id, nil
		}
	}
	for _, w := range waiting {
		if w.Claim == id && c.Owns(w.Holder) {
			return w.Host + "/" + w.Instance + "/" + id, nil
		}
	}
	return "", nil
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
		_, err = a.elsewhere(ctx, s, caller, in.ID, r.Fence, err)
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
func (a *apiServer) elsewhere(ctx context.Context, s *session, caller claims.Caller, id string, fence int64, err error) (own int64, _ error) {
	why, lookErr := a.why(ctx, s, caller, id)
	switch {
	case problem.CodeOf(lookErr) == problem.ClaimNotFound:
		return 0, err
	case isRefusal(lookErr) && fence != 0 && !s.shows(ctx, id, fence):
		return 0, err // the id is another's by now
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

// isRefusal reports whether an error is that a caller has not the role that it needs.
func isRefusal(err error) bool {
	code := problem.CodeOf(err)
	return code == problem.Forbidden || code == problem.Unauthorized
}

// shows reports whether the pools show a claim with an id and a fence.
func (s *session) shows(ctx context.Context, id string, fence int64) bool {
	w, err := s.client.Why(ctx, id)
	return err != nil || w.Fenced(store.Fence(fence)) != nil
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

// releaseOrphaned frees a claim that the pools show as held through this server and that no client of
// it holds: its request was canceled as it was granted, so that it is being given back, or etcd was
// restored. If it stays held, that is an error.
func (a *apiServer) releaseOrphaned(ctx context.Context, s *session, caller claims.Caller, in *releaseInput) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	if err := s.client.Reconcile(ctx); err != nil {
		return err
	}
	for {
		own, err := a.elsewhere(ctx, s, caller, in.ID, in.Fence, nil)
		if err != nil || own == 0 {
			return err
		}
		if found, err := s.holders.Release(ctx, caller, in.ID, store.Fence(own)); found || err != nil {
			return err
		}
		claim, err := s.client.Lookup(ctx, in.ID)
		if err != nil {
			return err
		}
		if claim != nil && claim.Fence() == store.Fence(own) {
			return claim.Release(ctx)
		}
		select { // what is being given back is free in a moment
		case <-time.After(releaseCheck):
		case <-ctx.Done():
			return problem.New(problem.NotHolder, "claim %q is held by this instance, and by no client of this server: revoke it", in.ID)
		}
	}
}

// releaseClaim answers DELETE /v1/claims/{id}. A claim that waits has no fence.
func (a *apiServer) releaseClaim(ctx context.Context, s *session, in *releaseInput) (_ *struct{}, err error) {
	caller := callerOf(ctx, access.Operate, in.ClientToken)
	waited := false
	var refused error // why the caller may not release the claims of others with the id
	if in.Fence == 0 {
		released := problem.New(problem.ClaimCanceled, "claim %q was released while it waited", problem.Clip(in.ID))
		if waited, refused, err = a.waits.endID(ctx, caller, in.ID, released); err != nil {
			return nil, err
		}
	}
	for {
		found, err := s.holders.Release(ctx, caller, in.ID, store.Fence(in.Fence))
		if found {
			return nil, err
		}
		if waited {
			return nil, nil
		}
		refused = cmp.Or(err, refused)
		own, err := a.elsewhere(ctx, s, caller, in.ID, in.Fence, nil)
		if _, ended := s.holders.Owned(caller, in.ID); ended && in.Fence == 0 && (err == nil || isRefusal(err)) {
			return nil, nil // its slots are freed with its lease; the id may be another's by now
		}
		if err != nil {
			return nil, err
		}
		if own == 0 {
			return nil, refused
		}
		if s.hasEnded(in.ID, store.Fence(own)) { // its slots are freed with its lease
			return nil, nil
		}
		waits, _ := a.waits.askedBy(caller, in.ID)
		if len(waits) == 0 { // what was granted meanwhile has its holder
			if found, err := s.holders.Release(ctx, caller, in.ID, store.Fence(in.Fence)); found {
				return nil, err
			}
			return nil, a.releaseOrphaned(ctx, s, caller, in)
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
