package berth

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/instance"
)

// Slots maps the name of each pool to the number of slots that a claim takes of it.
type Slots map[string]int

// MaxWait is the longest wait of a claim.
const MaxWait = instance.MaxWait

// ClaimOption changes a request for a claim.
type ClaimOption func(*claimOptions)

type claimOptions []instance.ClaimOption

func with(o instance.ClaimOption) ClaimOption {
	return func(all *claimOptions) { *all = append(*all, o) }
}

// WithID sets the id of the claim. A second request with the same id returns the same
// claim, so a caller that lost the response can retry.
func WithID(id string) ClaimOption { return with(instance.WithID(id)) }

// WithPriority sets the priority, from -1000 to 1000. Claims with a higher priority are
// granted first; the default is 0.
func WithPriority(p int) ClaimOption { return with(instance.WithPriority(p)) }

// WithWait limits the time in the wait queue, to at most [MaxWait]. With 0, the claim is
// refused at once if its slots are not free.
func WithWait(d time.Duration) ClaimOption { return with(instance.WithWait(d)) }

// WithRun records the run and step that the claim is for. The claim ends with the run if it
// belongs to it: see docs/explanation/runs.md.
func WithRun(run, step string) ClaimOption { return with(instance.WithRun(run, step)) }

// WithPID records the id of the process that holds the claim.
func WithPID(pid int) ClaimOption { return with(instance.WithPID(pid)) }

// WithLabels records up to 32 labels of the holder.
func WithLabels(labels map[string]string) ClaimOption { return with(instance.WithLabels(labels)) }

// WithBind records how the caller checks that the holder lives. The format is the
// caller's own, and [Claim.Bind] returns it after a restart.
func WithBind(bind string) ClaimOption { return with(instance.WithBind(bind)) }

// Claim is a claim that this client holds.
type Claim struct{ in *instance.Claim }

// Claim takes slots, all or none. It waits for them for [Options.ClaimTimeout] unless
// [WithWait] says otherwise. If ctx ends first, nothing is taken.
//
// If ctx has a span of OpenTelemetry that is recorded, the claim and its wait are recorded as
// children of it, by the same provider.
//
// The codes of its errors include pool_not_found, exceeds_limit, claim_timeout,
// no_capacity, id_in_use, invalid and etcd_unavailable: see [ErrorCode].
func (c *Client) Claim(ctx context.Context, slots Slots, opts ...ClaimOption) (*Claim, error) {
	var all claimOptions
	for _, o := range opts {
		o(&all)
	}
	in, err := c.in.Claim(ctx, instance.Slots(slots), all...)
	if err != nil {
		return nil, public(c.in.Suggest(ctx, err, nil))
	}
	return &Claim{in}, nil
}

// Held returns the claims that this client holds, ordered by id.
func (c *Client) Held(ctx context.Context) ([]*Claim, error) {
	held, err := c.in.Held(ctx)
	if err != nil {
		return nil, public(err)
	}
	claims := make([]*Claim, len(held))
	for i, in := range held {
		claims[i] = &Claim{in}
	}
	return claims, nil
}

// ID returns the id of the claim.
func (cl *Claim) ID() string { return cl.in.ID }

// Slots returns the slots that the claim takes of each pool.
func (cl *Claim) Slots() Slots { return Slots(cl.in.Slots) }

// Fence returns the fencing token. It is larger for each later holder of a slot, so that a
// resource which a pool of one slot guards can reject the writes of earlier holders. Holders of
// a pool of several slots are valid at the same time, with different tokens or the same one.
func (cl *Claim) Fence() int64 { return int64(cl.in.Fence()) }

// ClaimedAt returns when the claim was granted, by the clock of the host that made it.
func (cl *Claim) ClaimedAt() time.Time { return cl.in.ClaimedAt }

// Bind returns the value that [WithBind] recorded.
func (cl *Claim) Bind() string { return cl.in.Bind() }

// Context returns a context that is cancelled when the claim has ended: released, lost or
// revoked. Pass it to all work that needs the slots.
func (cl *Claim) Context() context.Context { return cl.in.Context() }

// Err returns why the claim has ended: nil after a release, and while it is held.
func (cl *Claim) Err() error { return public(cl.in.Err()) }

// ValidFor returns how long the claim stays valid unless its lease is renewed, and the
// longest time its holder should take to stop: a holder that needs that long must begin
// that much earlier. Both are 0 if the claim is not valid now.
func (cl *Claim) ValidFor() (left, grace time.Duration) { return cl.in.ValidFor() }

// LeaseDuration returns how long the slots stay taken if this program dies: the time to
// live of the lease. It is 0 if the claim is not valid now.
func (cl *Claim) LeaseDuration() time.Duration { return cl.in.LeaseDuration() }

// Release frees the slots and returns when they are free. It returns nil if the claim is
// no longer held. If ctx ends first, the release continues in the background.
func (cl *Claim) Release(ctx context.Context) error { return public(cl.in.Release(ctx)) }

// String returns the id and the slots of the claim.
func (cl *Claim) String() string { return cl.in.String() }
