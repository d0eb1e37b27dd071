package berth

import (
	"context"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// Slots is how many slots of each pool a claim takes.
type Slots map[string]int

// ClaimOption says more about a claim.
type ClaimOption func(*pool.Request)

// WithID names the claim. Asking again with the same id finds the same claim,
// so a caller that lost an answer can repeat the question.
func WithID(id string) ClaimOption { return func(r *pool.Request) { r.ID = id } }

// WithPriority from -1000 to 1000; higher goes first, 0 is the default.
func WithPriority(p int) ClaimOption { return func(r *pool.Request) { r.Priority = p } }

// MaxWait is the longest wait, in line and in the settings: what is longer is
// hardly meant.
const MaxWait = 365 * 24 * time.Hour

// ValidateWait refuses a wait that can't be meant.
func ValidateWait(d time.Duration) error {
	if d < 0 || d > MaxWait {
		return problem.Field("wait", "%s is out of range: allowed are 0s (do not wait) to %dh", d, MaxWait/time.Hour)
	}
	return nil
}

// WithWait bounds the time in line, to [MaxWait] at most; 0 refuses at once what
// does not fit now.
func WithWait(d time.Duration) ClaimOption { return func(r *pool.Request) { r.Wait = d } }

// WithRun records the run and step that the claim is for.
func WithRun(run, step string) ClaimOption {
	return func(r *pool.Request) { r.Holder.Run, r.Holder.Step = run, step }
}

// WithPID records the process that holds the claim.
func WithPID(pid int) ClaimOption { return func(r *pool.Request) { r.Holder.PID = pid } }

// WithLabels records what else is worth knowing about the holder: at most 32
// labels.
func WithLabels(labels map[string]string) ClaimOption {
	return func(r *pool.Request) { r.Holder.Labels = labels }
}

// WithBind records, in words of its own, how the caller knows that the holder
// lives; it finds them in [Claim.Bind] after a restart.
func WithBind(bind string) ClaimOption { return func(r *pool.Request) { r.Holder.Bind = bind } }

// WithSole has the claim wait in the queue only while no other claim of the same run, step
// and bind does, of any instance, and in the place of what has waited since a revision.
func WithSole(since int64) ClaimOption {
	return func(r *pool.Request) { r.Sole, r.Since = true, since }
}

// WithPlace has the claim granted only when there is a place to use it: see [pool.Place].
func WithPlace(p *pool.Place) ClaimOption { return func(r *pool.Request) { r.Place = p } }

// WithExtra adds conditions and writes to the claim's transaction. If a
// condition does not hold, the claim is refused with precondition_failed.
func WithExtra(x store.Extra) ClaimOption { return func(r *pool.Request) { r.Extra = x } }

// Claim is a claim that this client holds.
type Claim struct {
	*pool.Claim
	client *Client
}

// Claim takes slots, all or none, waiting for them for [Options.ClaimTimeout]
// unless an option says otherwise. If ctx ends first, nothing is taken.
//
// Its errors are problems: pool_not_found, exceeds_limit, claim_timeout,
// no_capacity, id_in_use, invalid, etcd_unavailable and others, told apart by
// [ErrorCode].
func (c *Client) Claim(ctx context.Context, slots Slots, opts ...ClaimOption) (*Claim, error) {
	r := pool.Request{Slots: slots, Wait: c.opts.ClaimTimeout, Holder: pool.Holder{}}
	for _, o := range opts {
		o(&r)
	}
	if err := ValidateWait(r.Wait); err != nil {
		return nil, err
	}
	if r.ID == "" {
		r.ID = ulid.Make().String()
	}
	cl, err := c.engine.Claim(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Claim{Claim: cl, client: c}, nil
}

// Reconsider has the claims looked at that wait: a place was given back.
func (c *Client) Reconsider() { c.engine.Reconsider() }

// ClaimTimeout bounds the wait of claims that say nothing else.
func (c *Client) ClaimTimeout() time.Duration { return c.opts.ClaimTimeout }

// Withdraw takes a claim out of the line that waits there: see [pool.Engine.Withdraw].
func (c *Client) Withdraw(ctx context.Context, id string) { c.engine.Withdraw(ctx, id) }

// TakeOver makes a claim this client's that another instance holds for whoever comes
// for it, and records that it is for a run: see [pool.Engine.TakeOver]. If ctx ends
// first, the claim is given back if it changed hands just then.
func (c *Client) TakeOver(ctx context.Context, h pool.Handover) (*Claim, error) {
	cl, err := c.engine.TakeOver(ctx, h)
	if err != nil {
		return nil, err
	}
	return &Claim{Claim: cl, client: c}, nil
}

// Held returns the claims that this client holds, by id.
func (c *Client) Held(ctx context.Context) ([]*Claim, error) {
	all, err := c.engine.Held(ctx)
	if err != nil {
		return nil, err
	}
	claims := make([]*Claim, len(all))
	for i, cl := range all {
		claims[i] = &Claim{Claim: cl, client: c}
	}
	return claims, nil
}

// Lookup returns a claim that this client holds, nil if there is none.
func (c *Client) Lookup(ctx context.Context, id string) (*Claim, error) {
	cl, err := c.engine.Lookup(ctx, id)
	if err != nil || cl == nil {
		return nil, err
	}
	return &Claim{Claim: cl, client: c}, nil
}

// Context is done when the claim has ended: because it was released, or because
// trust in it has ended. Work that needs the slots should run under it.
func (cl *Claim) Context() context.Context { return cl.Claim.Context() }

// Fence grows from holder to holder of a slot, so that what a claim protects can
// refuse a holder from before.
func (cl *Claim) Fence() int64 { return cl.Claim.Fence }

// Trust tells how long the claim can be believed to be held unless its lease is
// renewed again, and how long its holder should take to stop at most: whoever
// needs that long must begin that much earlier. Both are 0 if it can't be
// believed now. Of a claim that was taken over it counts from when etcd was asked
// how long its lease lives.
func (cl *Claim) Trust() (left, grace time.Duration) {
	w, ok := cl.Validity()
	if !ok {
		return 0, 0
	}
	return w.Left(cl.client.clock.Now()), lease.StopGrace(w.TTL)
}

// Validity returns the window in which the claim is valid unless its lease is renewed
// again, in times of [lease.BootClock]. It is false if the claim is not valid now.
func (cl *Claim) Validity() (lease.Window, bool) {
	w, ok := cl.client.keeper.Trust(cl.Lease)
	if !ok || cl.Context().Err() != nil {
		return lease.Window{}, false
	}
	return w, true
}

// LeaseDuration is how long the claim's slots stay taken if this program dies:
// the time to live of its lease. It is 0 while [Claim.Trust] is.
func (cl *Claim) LeaseDuration() time.Duration {
	w, _ := cl.Validity()
	return w.TTL
}

// Bind is what [WithBind] recorded.
func (cl *Claim) Bind() string { return cl.Holder.Bind }

// Release gives the slots back, and returns when they are free. To release what
// is no longer held is no error. If ctx ends first it is released all the same.
func (cl *Claim) Release(ctx context.Context) error {
	return cl.client.engine.Release(ctx, cl.Claim)
}

// ReleaseWith is [Claim.Release] with something else that is written then, or not at
// all: see [pool.Engine.ReleaseWith].
func (cl *Claim) ReleaseWith(ctx context.Context, x store.Extra, place *pool.Place, asked func()) (revision int64, err error) {
	return cl.client.engine.ReleaseWith(ctx, cl.Claim, x, place, asked)
}

// String names the claim and what it holds.
func (cl *Claim) String() string { return fmt.Sprintf("claim %s %v", cl.ID, cl.Slots) }

// Error is what the functions of this package return: what happened, for a
// person, and a stable code for programs.
type Error = problem.Error

// ErrorCode is the stable code of an error: "claim_timeout", "pool_not_found",
// "claim_lost" and so on, "internal" for an error that is none of berth's.
func ErrorCode(err error) string { return string(problem.CodeOf(err)) }
