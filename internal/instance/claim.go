package instance

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

// Slots maps the name of each pool to the number of slots that a claim takes of it.
type Slots map[string]int

// ClaimOption changes a request for a claim.
type ClaimOption func(*pool.Request)

// WithID sets the id of the claim. A second request with the same id returns the same
// claim, so a caller that lost the response can retry. No two instances hold claims with one id at the same time, unless
// it is a ULID: such an id was made by a program, and nothing else has it.
func WithID(id string) ClaimOption {
	return func(r *pool.Request) {
		_, err := ulid.ParseStrict(id)
		r.ID, r.Chosen = id, id != "" && err != nil
	}
}

// WithOwnID sets an id that the program has made, so that claims of other instances with it need not be excluded.
func WithOwnID(id string) ClaimOption { return func(r *pool.Request) { r.ID, r.Chosen = id, false } }

// WithPriority sets the priority, from -1000 to 1000. Claims with a higher priority are
// granted first; the default is 0.
func WithPriority(p int) ClaimOption { return func(r *pool.Request) { r.Priority = p } }

// MaxWait is the longest wait that requests and settings may ask for.
const MaxWait = 365 * 24 * time.Hour

// ValidateWait returns an error unless d is between 0 and [MaxWait].
func ValidateWait(d time.Duration) error {
	if d < 0 || d > MaxWait {
		return problem.Field("wait", "%s is out of range: use 0s (do not wait) to %dh", d, MaxWait/time.Hour)
	}
	return nil
}

// WithWait limits the time in the wait queue, to at most [MaxWait]. With 0, the claim is
// refused at once if its slots are not free.
func WithWait(d time.Duration) ClaimOption { return func(r *pool.Request) { r.Wait = d } }

// WithRun records the run and step that the claim is for.
func WithRun(run, step string) ClaimOption {
	return func(r *pool.Request) { r.Holder.Run, r.Holder.Step = run, step }
}

// WithClaimedBy records the identity that makes the claim. The default is the client's own:
// its user in etcd.
func WithClaimedBy(identity string) ClaimOption {
	return func(r *pool.Request) { r.Holder.ClaimedBy = identity }
}

// WithPID records the id of the process that holds the claim.
func WithPID(pid int) ClaimOption { return func(r *pool.Request) { r.Holder.PID = pid } }

// WithLabels records up to 32 labels of the holder.
func WithLabels(labels map[string]string) ClaimOption {
	return func(r *pool.Request) { r.Holder.Labels = labels }
}

// WithBind records how the caller checks that the holder lives. The format is the
// caller's own, and [Claim.Bind] returns it after a restart.
func WithBind(bind string) ClaimOption { return func(r *pool.Request) { r.Holder.Bind = bind } }

// WithSole makes the claim one of several for the same run, step and bind, which are one
// waiter. It has the position in the queue of one that has waited since that revision. One
// that helps waits only while no other instance has one of them wait.
func WithSole(since int64, helps bool) ClaimOption {
	return func(r *pool.Request) { r.Sole, r.Since, r.Helps = true, since, helps }
}

// WithPlace makes the grant wait for a free execution place: see [pool.Place].
func WithPlace(p *pool.Place) ClaimOption { return func(r *pool.Request) { r.Place = p } }

// WithExtra adds conditions and writes to the transaction of the claim. If a condition
// does not hold, the claim is refused with precondition_failed.
func WithExtra(x store.Extra) ClaimOption { return func(r *pool.Request) { r.Extra = x } }

// Claim is a claim that this client holds.
type Claim struct {
	*pool.Claim
	client *Client
}

// Claim takes slots, all or none. It waits for them for [Options.ClaimTimeout] unless
// [WithWait] says otherwise. If ctx ends first, nothing is taken.
//
// The codes of its errors include pool_not_found, exceeds_limit, claim_timeout,
// no_capacity, id_in_use, invalid and etcd_unavailable: see [ErrorCode].
func (c *Client) Claim(ctx context.Context, slots Slots, opts ...ClaimOption) (*Claim, error) {
	r := pool.Request{Slots: slots, Wait: c.opts.ClaimTimeout, Holder: pool.Holder{ClaimedBy: c.identity.String()}}
	for _, o := range opts {
		o(&r)
	}
	if err := ValidateWait(r.Wait); err != nil {
		return nil, err
	}
	if r.ID == "" {
		r.ID = ulid.Make().String()
	}
	cl, err := c.claim(ctx, &r)
	if err != nil {
		return nil, err
	}
	return &Claim{Claim: cl, client: c}, nil
}

// Reconsider checks the waiting claims again, after an execution place was freed.
func (c *Client) Reconsider() { c.engine.Reconsider() }

// Prospects reports of each request whether its slots are free for it: see
// [engine.Engine.Prospects].
func (c *Client) Prospects(ctx context.Context, asked []*pool.Request) ([]bool, error) {
	return c.engine.Prospects(ctx, asked)
}

// ClaimTimeout returns how long claims without [WithWait] wait.
func (c *Client) ClaimTimeout() time.Duration { return c.opts.ClaimTimeout }

// Withdraw removes a waiting claim from the wait queue: see [engine.Engine.Withdraw].
func (c *Client) Withdraw(id string) { c.engine.Withdraw(id) }

// TakeOver transfers a claim that another instance offers to this client, and records
// the run that it is for: see [engine.Engine.TakeOver]. If ctx ends first and the transfer
// happened nevertheless, the claim is released.
func (c *Client) TakeOver(ctx context.Context, h pool.TakeOver) (*Claim, error) {
	if h.Holder.ClaimedBy == "" {
		h.Holder.ClaimedBy = c.identity.String()
	}
	cl, err := c.engine.TakeOver(ctx, h)
	if err != nil {
		return nil, err
	}
	return &Claim{Claim: cl, client: c}, nil
}

// Held returns the claims that this client holds, ordered by id.
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

// Lookup returns the claim with that id, or nil if this client does not hold it.
func (c *Client) Lookup(ctx context.Context, id string) (*Claim, error) {
	cl, err := c.engine.Lookup(ctx, id)
	if err != nil || cl == nil {
		return nil, err
	}
	return &Claim{Claim: cl, client: c}, nil
}

// Context returns a context that is cancelled when the claim ends: it was released, or
// its validity has ended. Run work that needs the slots under it.
func (cl *Claim) Context() context.Context { return cl.Claim.Context() }

// Fence returns the fencing token. It is larger for each later holder of a slot, so that
// a resource can reject the writes of earlier holders.
func (cl *Claim) Fence() store.Fence { return cl.Claim.Fence }

// ValidFor returns how long the claim stays valid unless its lease is renewed, and the
// longest time its holder should take to stop: a holder that needs that long must begin
// that much earlier. Both are 0 if the claim is not valid now. For a claim that was
// transferred, the time counts from the request to etcd for the remaining life of its
// lease.
func (cl *Claim) ValidFor() (left, grace time.Duration) {
	now := cl.client.clock.Now()
	w, ok := cl.ValidityAt(now)
	if !ok {
		return 0, 0
	}
	return w.Remaining(now), lease.StopGrace(w.TTL)
}

// Validity returns the window in which the claim is valid unless its lease is renewed,
// in times of [lease.BootClock]. It returns false if the claim is not valid now.
func (cl *Claim) Validity() (lease.Window, bool) { return cl.ValidityAt(cl.client.clock.Now()) }

// ValidityAt is [Claim.Validity] at a time of [lease.BootClock], which is not read again.
func (cl *Claim) ValidityAt(now time.Duration) (lease.Window, bool) {
	w, ok := cl.client.keeper.ValidityAt(cl.Lease, now)
	if !ok || cl.Context().Err() != nil {
		return lease.Window{}, false
	}
	return w, true
}

// LeaseDuration returns how long the slots stay taken if this program dies: the time to
// live of the lease. It is 0 if the claim is not valid now.
func (cl *Claim) LeaseDuration() time.Duration {
	w, _ := cl.Validity()
	return w.TTL
}

// Bind returns the value that [WithBind] recorded.
func (cl *Claim) Bind() string { return cl.Holder.Bind }

// Release frees the slots and returns when they are free. It returns nil if the claim is
// no longer held. If ctx ends first, the release continues in the background.
func (cl *Claim) Release(ctx context.Context) error {
	ctx, span := cl.releasing(ctx)
	err := cl.client.engine.Release(ctx, cl.Claim)
	span.End(err)
	return err
}

// ReleaseWith is [Claim.Release] with further writes in the same transaction: see
// [engine.Engine.ReleaseWith].
func (cl *Claim) ReleaseWith(ctx context.Context, x store.Extra, place *pool.Place, asked func()) (revision int64, err error) {
	ctx, span := cl.releasing(ctx)
	revision, err = cl.client.engine.ReleaseWith(ctx, cl.Claim, x, place, asked)
	span.End(err)
	return revision, err
}

// String returns the id and the slots of the claim.
func (cl *Claim) String() string { return fmt.Sprintf("claim %s %v", cl.ID, cl.Slots) }

// ErrorCode returns the stable code of an error, such as "claim_timeout",
// "pool_not_found" or "claim_lost". It is "internal" for errors without a code.
func ErrorCode(err error) string { return string(problem.CodeOf(err)) }
