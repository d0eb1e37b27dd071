package sidecar

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/server"
)

// wanted is a request for a claim, checked, with what it is to be bound to.
type wanted struct {
	api.ClaimRequest
	bind claims.Binding
	proc *proc.Process
	// named: the client chose the id, so it can find the claim again.
	named bool
	// by is the identity of the client, and still returns why that may not claim by now.
	by    string
	still func() error
}

// lifeOf returns how the holder of a new claim reports that it lives.
func lifeOf(ctx context.Context, r *api.ClaimRequest) claims.Life {
	return claims.Life{TTL: (*time.Duration)(r.TTL), PID: r.PID, UID: uidOf(ctx), OnlyKill: r.OnlyKill, ClientToken: r.ClientToken}
}

// uidOf returns the user who sent a request that names a process.
func uidOf(ctx context.Context) uint32 {
	who, _ := server.PeerOf(ctx) // known: see checkOwner
	return who.UID
}

// respondAsync is the preference of clients that do not wait for an answer (RFC 7240).
const respondAsync = "respond-async"

// claimInput is the input of POST /v1/claims.
type claimInput struct {
	Prefer  string `header:"Prefer" doc:"With respond-async the server answers at once, and the claim waits without a connection."`
	RawBody []byte `contentType:"application/json"`

	async bool
	body  *server.Body // that RawBody is the text of, unless huma has made a copy
}

// decoded gives up the text, which a claim that waits would keep.
func (in *claimInput) decoded() {
	if in.RawBody = nil; in.body != nil {
		in.body.DropText()
	}
}

// Resolve finds out whether the client waits for the answer.
func (in *claimInput) Resolve(ctx huma.Context) []error {
	ctx.EachHeader(func(name, value string) {
		if http.CanonicalHeaderKey(name) != "Prefer" {
			return
		}
		for preference := range strings.SplitSeq(value, ",") {
			token, _, _ := strings.Cut(preference, ";")
			in.async = in.async || strings.EqualFold(strings.TrimSpace(token), respondAsync)
		}
	})
	return nil
}

// claimOutput is the answer of POST /v1/claims. The headers are those of one that does not wait.
type claimOutput struct {
	Status   int
	Location string `header:"Location" doc:"The address of the claim. Only with respond-async."`
	Applied  string `header:"Preference-Applied" doc:"respond-async, if that was preferred."`
	Body     api.Claim
}

// claim answers POST /v1/claims.
func (a *apiServer) claim(ctx context.Context, s *session, in *claimInput, req api.ClaimRequest) (*claimOutput, error) {
	begun := time.Now()
	w, err := s.want(ctx, req, in.async)
	if err != nil {
		return nil, err
	}
	if in.async && (w.Wait == nil || *w.Wait > 0) {
		return a.claimAsync(ctx, s, w, begun)
	}
	leave, err := a.waits.waiting.EnterAs(server.KeyOf(ctx), waitersOf(w))
	if err != nil {
		w.proc.Close()
		return nil, err
	}
	defer leave()
	waiting, wait, err := a.waits.enter(ctx, w.ID, w)
	if err != nil {
		w.proc.Close()
		return nil, err
	}
	// Who releases the claim finds the wait, or its holder.
	defer a.waits.leave(wait)
	h, err := a.hold(waiting, s, w, wait)
	if err != nil {
		return nil, err
	}
	a.ifUnread(ctx, func() { s.holders.Unread(h, w.named) })
	return &claimOutput{Status: http.StatusCreated, Body: heldClaim(s.holders.View(h), begun)}, nil
}

// hold waits for a claim and gives it a holder.
func (a *apiServer) hold(ctx context.Context, s *session, w *wanted, wait *wait) (*claims.Holder, error) {
	claim, err := a.take(ctx, s, w, wait)
	if err != nil {
		w.proc.Close()
		return nil, err
	}
	h := s.holders.Add(claim, w.bind, w.proc)
	if err := s.holders.Record(h); err != nil {
		return nil, err
	}
	if claim.Context().Err() != nil { // lost, revoked or released at once
		if err := claim.Err(); err != nil {
			return nil, err
		}
		return nil, problem.New(problem.ClaimCanceled, "claim %q was released as soon as it was granted", w.ID)
	}
	s.holders.Reported(h)
	return h, nil
}

// want checks a request, and finds the process that it names. The client of an asynchronous
// one may never learn of the grant.
func (s *session) want(ctx context.Context, req api.ClaimRequest, async bool) (*wanted, error) {
	w := &wanted{ClaimRequest: req, named: req.ID != "", by: access.Of(ctx).String()}
	w.still = func() error {
		id, err := server.IdentityNow(ctx)
		if err != nil {
			return err
		}
		return id.Allow(access.Claim, slices.Sorted(maps.Keys(req.Pools))...)
	}
	if !w.named {
		w.ID = ulid.Make().String()
	}
	if err := mayClaim(ctx, &req); err != nil {
		return nil, err
	}
	if req.Wait != nil {
		if err := instance.ValidateWait(time.Duration(*req.Wait)); err != nil {
			return nil, err
		}
	}
	var err error
	if w.bind, err = claims.BindingOf(lifeOf(ctx, &req)); err != nil {
		return nil, err
	}
	if untimed := req.PID == 0 && w.bind.Untimed(); untimed && async {
		return nil, problem.Field("ttl", "0s can't be combined with %s: if you never learned of the grant, the claim would be held for ever. Choose a ttl of %s to %s, or name a pid", respondAsync, claims.MinTTL, claims.MaxTTL)
	} else if untimed && !w.named {
		return nil, problem.Field("ttl", "0s needs an id: if the answer were lost, the claim could not be found again to release it. Choose an id, or a ttl of %s to %s", claims.MinTTL, claims.MaxTTL)
	}
	if w.proc, err = s.openProcess(ctx, req.PID); err != nil {
		return nil, err
	}
	w.bind = w.bind.To(w.proc)
	return w, nil
}

// mayClaim refuses a caller that may not claim slots of all the pools, and one without an
// identity that could not show later that the claim is its own.
func mayClaim(ctx context.Context, req *api.ClaimRequest) error {
	id, pools := access.Of(ctx), slices.Sorted(maps.Keys(req.Pools))
	if err := id.Allow(access.Claim, pools...); err != nil {
		return err
	}
	if id.Authenticated() || req.ClientToken != "" || id.Allow(access.Operate, pools...) == nil {
		return nil
	}
	return problem.Field("client_token", "it is needed from a caller without an identity, to show later that the claim is its own: send a random text, and the same as the header %s with each later request about the claim; or use the unix socket of the sidecar, or a token", api.ClientTokenHeader)
}

// holder is who waits for the claim.
func (w *wanted) holder() pool.Holder {
	return pool.Holder{ClaimedBy: w.by, Bind: w.bind.Encode()}
}

// callerOf returns who asks for something about a claim, for which one that does not own it
// needs a role for all of its pools.
func callerOf(ctx context.Context, role access.Role, clientToken string) claims.Caller {
	id := access.Of(ctx)
	return claims.Caller{Name: id.String(), ClientToken: clientToken, May: func(slots map[string]int) error {
		switch {
		case role.Of() == "":
			return id.Allow(role)
		case len(slots) == 0: // they are not known
			return id.Allow(role, access.Everything)
		}
		return id.Allow(role, slices.Sorted(maps.Keys(slots))...)
	}}
}

// same reports whether two requests with one id are for the same claim.
func (w *wanted) same(o *wanted) bool {
	return maps.Equal(w.Pools, o.Pools) && maps.Equal(w.Labels, o.Labels) && w.bind == o.bind && w.by == o.by &&
		w.Priority == o.Priority && w.RunID == o.RunID && w.StepKey == o.StepKey
}

// sameOwner reports whether two requests are of one owner.
func (w *wanted) sameOwner(o *wanted) bool {
	return w.by == o.by && claims.SameOwner(w.holder(), o.holder())
}

// openProcess finds the process that a request names, if it names one.
func (s *session) openProcess(ctx context.Context, pid int) (*proc.Process, error) {
	if pid == 0 {
		return nil, nil
	}
	if err := claims.CheckPID(pid); err != nil {
		return nil, err
	}
	who, local := server.PeerOf(ctx)
	if !local {
		return nil, checkOwner(who, local, pid, proc.Owner{})
	}
	if who.Known && !server.SharesPIDs(ctx) {
		return nil, problem.Field("pid", "the sidecar can't verify that the caller is in its pid namespace, where %d may be another process: leave the pid out and renew the claim, or let both share a pid namespace; a process that opens the connection must live, and be visible in the sidecar's /proc", pid)
	}
	p, err := s.procs.Open(pid)
	if err != nil {
		return nil, noProcess(pid, err)
	}
	if err := checkOwner(who, local, pid, p.Owner()); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// take waits for the claim: until it is granted or refused, its client hangs up,
// its process ends, it is released, or the server stops.
func (a *apiServer) take(ctx context.Context, s *session, w *wanted, wait *wait) (*instance.Claim, error) {
	a.metrics.waits.Inc()
	defer a.metrics.waits.Dec()
	if w.proc != nil {
		w.proc.Notify(func() {
			a.waits.end(wait, problem.Field("pid", "process %d has ended while its claim waited", w.PID))
		})
	}
	claim, err := s.client.Claim(ctx, instance.Slots(w.Pools), w.options()...)
	ended := a.waits.ended(wait)
	if ended == nil && claim != nil {
		ended = w.still() // a wait can take longer than a token lasts
	}
	if ended != nil {
		if claim != nil {
			_ = claim.Release(context.WithoutCancel(ctx)) // at its end there is the lease
		}
		return nil, ended
	}
	return claim, err
}

func (w *wanted) options() []instance.ClaimOption {
	opts := []instance.ClaimOption{
		instance.WithID(w.ID), instance.WithClaimedBy(w.by), instance.WithPriority(w.Priority), instance.WithRun(w.RunID, w.StepKey),
		instance.WithPID(w.PID), instance.WithLabels(w.Labels), instance.WithBind(w.bind.Encode()),
	}
	if w.Wait != nil {
		opts = append(opts, instance.WithWait(time.Duration(*w.Wait)))
	}
	return opts
}

// registerClaims registers the endpoints of claims.
func (a *apiServer) registerClaims(h huma.API) {
	const tag = "claims"
	op := operation(h, "claim", http.MethodPost, api.ClaimsPath, tag, "Claim slots")
	op.Description = "Answers when the claim is granted, or refused. Hanging up before the answer is read withdraws it; asking again with its id within 10 s keeps its place in the wait queue, or the claim."
	op.Description += " With Prefer: respond-async it answers at once, with 202 if the claim waits: GET the claim, or follow its events, to learn of the grant."
	op.DefaultStatus = http.StatusCreated
	op.Responses["202"] = &huma.Response{
		Description: "The claim waits, without a connection.",
		Content:     map[string]*huma.MediaType{"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.Claim](), true, "")}},
		Headers: map[string]*huma.Header{
			"Location":           {Description: "The address of the claim.", Schema: &huma.Schema{Type: huma.TypeString}},
			"Preference-Applied": {Description: respondAsync, Schema: &huma.Schema{Type: huma.TypeString}},
		},
	}
	claim := handleBody(a, h, op, false, func(in *claimInput) []byte { return in.RawBody }, a.claim)
	a.mux.direct[patternOf(op)] = directly(simpleClaim, claim, func(w http.ResponseWriter, out *claimOutput) { api.Write(w, out.Status, out.Body) })

	handle(a, h, operation(h, "list-claims", http.MethodGet, api.ClaimsPath, tag, "List claims of all hosts"), a.listClaims)
	handle(a, h, operation(h, "get-claim", http.MethodGet, api.ClaimsPath+"/{id}", tag, "Get a claim"), a.getClaim)
	handle(a, h, operation(h, "why-claim", http.MethodGet, api.ClaimsPath+"/{id}/why", tag, "Explain why a claim waits"), a.whyClaim)

	op = operation(h, "renew-claim", http.MethodPost, api.ClaimsPath+"/{id}/renew", tag, "Renew a claim: report that its holder lives")
	handleBody(a, h, op, true, func(in *claimBody) []byte { return in.RawBody }, a.renewClaim)
	op = operation(h, "revoke-claim", http.MethodPost, api.ClaimsPath+"/{id}/revoke", tag, "Revoke a claim of any host")
	handleBody(a, h, op, true, func(in *claimBody) []byte { return in.RawBody }, a.revokeClaim)

	op = operation(h, "release-claim", http.MethodDelete, api.ClaimsPath+"/{id}", tag, "Release a claim")
	op.Description = "Answers when the slots are free. A claim that does not exist is released already."
	release := handle(a, h, op, a.releaseClaim)
	a.mux.direct[patternOf(op)] = directly(simpleRelease, release, func(w http.ResponseWriter, _ *struct{}) { w.WriteHeader(http.StatusNoContent) })
}

// checkFence refuses what no claim has.
func checkFence(fence int64) error {
	if fence < 0 {
		return problem.Field("fence", "%d is no fence: send the one that the claim was answered with", fence)
	}
	return nil
}

// checkOwner refuses to bind to a process that the asking user may not signal.
func checkOwner(who server.Peer, local bool, pid int, owner proc.Owner) error {
	switch {
	case !local:
		return problem.Field("pid", "a process can be named over the unix socket only, where the system identifies the caller")
	case !who.Known:
		return problem.Field("pid", "this system does not identify the caller")
	case !owner.Allows(who.UID):
		e := problem.New(problem.Forbidden, "process %d belongs to another user", pid)
		e.Field = "pid"
		return e
	}
	return nil
}

// noProcess returns the problem of a process that does not exist.
func noProcess(pid int, err error) error {
	if errors.Is(err, proc.ErrNoProcess) {
		return problem.Field("pid", "there is no process %d", pid)
	}
	return problem.Field("pid", "process %d can't be watched: %w. Or leave the pid out and renew the claim", pid, err)
}

// clockError is the part of a time by which two clocks may differ that measure it: see
// docs/explanation/guarantees.md.
const clockError = 50

// validFor returns how long, from the sending of a request, its sender may rely on what is
// valid for some time from now on, in whole milliseconds; 0 if that is too short. The request
// was begun then, so what was waited since counts, less what the sender's clock may have missed
// of it. What was left may be too long by the age of a reading of the clock, and the sender finds
// out too late by the age of its own.
func validFor(begun, now time.Time, left time.Duration) api.Duration {
	waited := max(0, now.Sub(begun))
	valid := waited - waited/clockError + left - 2*lease.ReadingAge
	return api.Duration(max(0, valid).Truncate(time.Millisecond))
}

// heldClaim returns a claim for its holder. The request that it answers was begun then:
// validity counts from there.
func heldClaim(v claims.View, begun time.Time) api.Claim {
	c := api.Claim{
		ID: v.Claim.ID, Status: api.ClaimHeld, Pools: v.Claim.Slots, Priority: v.Claim.Priority,
		Fence: int64(v.Claim.Fence()), ClaimedAt: v.Claim.ClaimedAt, LeaseDuration: api.Duration(v.Lease),
		TTL: (*api.Duration)(v.TTL), ValidFor: new(api.Duration),
	}
	c.SetHolder(v.Claim.Holder)
	c.PID = v.PID
	if v.Releasing {
		c.Status = api.ClaimReleasing
	}
	if v.Left > 0 {
		c.ValidUntil = v.At.Add(v.Left)
		*c.ValidFor = validFor(begun, v.At, v.Left)
		c.Grace = api.Duration(v.Grace.Truncate(time.Millisecond))
	}
	return c
}
