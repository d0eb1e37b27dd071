package sidecar

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

const claimsPath = "/v1/claims"

// wanted is a request for a claim, checked, with what it is to be bound to.
type wanted struct {
	ClaimRequest
	bind binding
	proc *process
}

// claim answers POST /v1/claims.
func (a *api) claim(ctx context.Context, _ *withBody, req ClaimRequest) (*output[Claim], error) {
	begun := time.Now()
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	w, err := s.want(ctx, req)
	if err != nil {
		return nil, err
	}
	asking := ctx
	ctx, wait, err := a.waits.enter(ctx, w.ID)
	if err != nil {
		w.proc.close()
		return nil, err
	}
	// Who releases the claim finds the wait, or its holder.
	defer a.waits.leave(wait)
	claim, err := a.take(ctx, s, w, wait)
	if err != nil {
		w.proc.close()
		return nil, err
	}
	h := s.holders.add(claim, w.bind, w.proc)
	if err := s.holders.record(h); err != nil {
		return nil, err
	}
	if claim.Context().Err() != nil { // lost, revoked or released at once
		if err := claim.Err(); err != nil {
			return nil, err
		}
		return nil, problem.New(problem.ClaimCanceled, "claim %q was released as soon as it was granted", w.ID)
	}
	s.holders.reported(h)
	a.ifUnread(asking, func() { s.holders.unheard(h, req.ID != "") })
	return outputOf(s.holders.answer(h, begun), nil)
}

// want checks a request, and finds the process that it names.
func (s *session) want(ctx context.Context, req ClaimRequest) (*wanted, error) {
	w := &wanted{ClaimRequest: req}
	if w.ID == "" {
		w.ID = ulid.Make().String()
	}
	if req.Wait != nil {
		if err := berth.ValidateWait(time.Duration(*req.Wait)); err != nil {
			return nil, err
		}
	}
	var err error
	if w.bind, err = bindingOf(req); err != nil {
		return nil, err
	}
	if req.ID == "" && req.PID == 0 && !w.bind.lease && w.bind.ttl == 0 {
		return nil, problem.Field("ttl", "0s needs an id: if the answer were lost, nobody could find the claim again to release it. Choose an id, or a ttl of %s to %s", MinTTL, MaxTTL)
	}
	if w.proc, err = s.openProcess(ctx, req.PID); err != nil {
		return nil, err
	}
	if w.proc != nil {
		w.bind.proc = w.proc.id
	}
	return w, nil
}

// openProcess finds the process that a request names, if it names one.
func (s *session) openProcess(ctx context.Context, pid int) (*process, error) {
	if pid == 0 {
		return nil, nil
	}
	if err := checkPID(pid); err != nil {
		return nil, err
	}
	who, local := server.PeerOf(ctx)
	if !local {
		return nil, checkOwner(who, local, pid, 0)
	}
	p, err := s.holders.procs.open(pid)
	if err != nil {
		return nil, noProcess(pid, err)
	}
	if err := checkOwner(who, local, pid, p.owner); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// take waits for the claim: until it is granted or refused, its client hangs up,
// its process ends, it is released, or the server stops.
func (a *api) take(ctx context.Context, s *session, w *wanted, wait *wait) (*berth.Claim, error) {
	a.metrics.waits.Inc()
	defer a.metrics.waits.Dec()
	if w.proc != nil {
		w.proc.notify(func() {
			a.waits.end(wait, problem.Field("pid", "process %d has ended while its claim waited", w.PID))
		})
	}
	claim, err := s.client.Claim(ctx, berth.Slots(w.Pools), w.options()...)
	if ended := a.waits.ended(wait); ended != nil {
		if claim != nil {
			_ = claim.Release(context.WithoutCancel(ctx)) // at its end there is the lease
		}
		return nil, ended
	}
	return claim, err
}

func (w *wanted) options() []berth.ClaimOption {
	opts := []berth.ClaimOption{
		berth.WithID(w.ID), berth.WithPriority(w.Priority), berth.WithRun(w.RunID, w.StepKey),
		berth.WithPID(w.PID), berth.WithLabels(w.Labels), berth.WithBind(w.bind.encode()),
	}
	if w.Wait != nil {
		opts = append(opts, berth.WithWait(time.Duration(*w.Wait)))
	}
	return opts
}

// registerClaims registers the endpoints of claims.
func (a *api) registerClaims(h huma.API) {
	const tag = "claims"
	op := operation(h, "claim", http.MethodPost, claimsPath, tag, "Claim slots")
	op.Description = "Answers when the claim is granted, or refused. Hanging up before the answer is read withdraws it; asking again with its id within 10 s keeps its place in the wait queue, or the claim."
	op.DefaultStatus = http.StatusCreated
	handleBody(a, h, op, false, func(in *withBody) []byte { return in.RawBody }, a.claim)

	handle(a, h, operation(h, "list-claims", http.MethodGet, claimsPath, tag, "List claims of all hosts"), a.listClaims)
	handle(a, h, operation(h, "get-claim", http.MethodGet, claimsPath+"/{id}", tag, "Look at a claim"), a.getClaim)
	handle(a, h, operation(h, "why-claim", http.MethodGet, claimsPath+"/{id}/why", tag, "Ask why a claim waits"), a.whyClaim)

	op = operation(h, "renew-claim", http.MethodPost, claimsPath+"/{id}/renew", tag, "Say that a claim's holder lives")
	handleBody(a, h, op, true, func(in *withID) []byte { return in.RawBody }, a.renewClaim)
	op = operation(h, "revoke-claim", http.MethodPost, claimsPath+"/{id}/revoke", tag, "Take a claim of any host back")
	handleBody(a, h, op, true, func(in *withID) []byte { return in.RawBody }, a.revokeClaim)

	op = operation(h, "release-claim", http.MethodDelete, claimsPath+"/{id}", tag, "Release a claim")
	op.Description = "Answers when the slots are free. A claim that there is not is released already."
	handle(a, h, op, a.releaseClaim)
}
