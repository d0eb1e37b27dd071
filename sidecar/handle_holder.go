package sidecar

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// idInput is the input of an endpoint of one claim.
type idInput struct {
	ID string `path:"id"`
}

// getClaim answers GET /v1/claims/{id}.
func (a *api) getClaim(ctx context.Context, in *idInput) (*output[Claim], error) {
	begun := time.Now()
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	h, err := s.holders.find(in.ID)
	if err != nil {
		return nil, err
	}
	if h != nil {
		return outputOf(s.holders.answer(h, begun), nil)
	}
	why, err := s.why(ctx, in.ID)
	return outputOf(why.Claim, err)
}

// find returns a holder, nil if there is none; an error says why its claim has
// ended.
func (hs *holders) find(id string) (*holder, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byID[id]
	if h != nil && h.releasing {
		return h, nil
	}
	_, err := hs.held(id)
	if h == nil && problem.CodeOf(err) == problem.ClaimNotFound {
		return nil, nil
	}
	return h, err
}

// whyClaim answers GET /v1/claims/{id}/why.
func (a *api) whyClaim(ctx context.Context, in *idInput) (*output[Why], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	return outputOf(s.why(ctx, in.ID))
}

// why tells about a claim of any host, from the view of the pools.
func (s *session) why(ctx context.Context, id string) (Why, error) {
	if err := pool.ValidateID(id); err != nil {
		return Why{}, err
	}
	w, err := s.client.Why(ctx, id)
	switch {
	case err != nil:
		return Why{}, err
	case w.Held != nil:
		return Why{Claim: claimOfHolder(*w.Held)}, nil
	}
	reason := reasonOf(w.Reason)
	why := Why{Claim: claimOfWaiter(*w.Waiter), Reason: &reason}
	why.Claim.Reason = reason.Text
	return why, nil
}

// renewClaim answers POST /v1/claims/{id}/renew.
func (a *api) renewClaim(ctx context.Context, in *withID, r RenewRequest) (*output[Claim], error) {
	begun := time.Now()
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	if err := checkFence(r.Fence); err != nil {
		return nil, err
	}
	proc, err := s.openProcess(ctx, r.PID)
	if err != nil {
		return nil, err
	}
	h, err := s.holders.renew(in.ID, r, proc)
	if problem.CodeOf(err) == problem.ClaimNotFound {
		err = s.elsewhere(ctx, in.ID, r.Fence, err)
	}
	if err != nil {
		return nil, err
	}
	return outputOf(s.holders.answer(h, begun), nil)
}

// elsewhere tells whether a claim that is not held here is held by another, or
// waits; otherwise it returns err. Unless fence is 0, only a claim that has it
// counts.
func (s *session) elsewhere(ctx context.Context, id string, fence int64, err error) error {
	why, lookErr := s.why(ctx, id)
	switch {
	case problem.CodeOf(lookErr) == problem.ClaimNotFound:
		return err
	case lookErr != nil:
		return lookErr
	}
	c := why.Claim
	if fence != 0 && c.Fence != fence {
		return err
	}
	if c.Host != s.client.Host() || c.Instance != s.client.Instance() {
		return problem.New(problem.NotHolder, "claim %q belongs to %s/%s: ask there, or revoke it", id, c.Host, c.Instance)
	}
	return err
}

// revokeClaim answers POST /v1/claims/{id}/revoke.
func (a *api) revokeClaim(ctx context.Context, in *withID, r RevokeRequest) (*output[Revocation], error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	if err := pool.ValidateID(in.ID); err != nil {
		return nil, err
	}
	done, err := s.client.Revoke(ctx, in.ID, r.Force)
	if err != nil {
		return nil, err
	}
	a.log.Info("a claim is taken back", keyClaim, in.ID, keyHost, done.Host, keyForce, r.Force)
	answer := Revocation{ID: done.Claim, Host: done.Host, Fence: done.Fence, Forced: done.Forced}
	if answer.Detail = "its host has its holder stop, and frees the slots within " + pool.RevokeGrace.String(); r.Force {
		answer.Detail = "the slots are free; the old holder may still run, and can be told by its fence"
	}
	return outputOf(answer, nil)
}

// releaseInput is the input of DELETE /v1/claims/{id}.
type releaseInput struct {
	ID    string `path:"id"`
	Fence int64  `query:"fence" minimum:"1" doc:"Releases only the claim with this fence, so that a release which comes late leaves a later claim of the id alone."`
}

// releaseClaim answers DELETE /v1/claims/{id}. A claim that waits has no fence.
func (a *api) releaseClaim(ctx context.Context, in *releaseInput) (*struct{}, error) {
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	released := problem.New(problem.ClaimCanceled, "claim %q was released while it waited", clip(in.ID))
	if in.Fence == 0 && a.waits.endID(in.ID, released) {
		return nil, nil
	}
	if found, err := s.holders.release(ctx, in.ID, in.Fence); found {
		return nil, err
	}
	return nil, s.elsewhere(ctx, in.ID, in.Fence, nil)
}
