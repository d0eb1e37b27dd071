package pool

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// Claim is a claim that was granted. It is held until its
// context is done.
type Claim struct {
	ID    string
	Slots map[string]int
	// Fence is the fencing token: a later holder of one of the slots has a larger one.
	Fence     store.Fence
	Lease     store.LeaseID
	Holder    Holder
	Priority  int
	ClaimedAt time.Time
	// Keys is how many keys are attached to the lease.
	Keys int
	// Extra are the responses to [store.Extra.Then]: nil if the response was lost, or
	// the claim was too wide to share a batch.
	Extra []*pb.ResponseOp

	ctx    context.Context
	cancel context.CancelCauseFunc

	supervised, freed atomic.Bool
}

// Context is done when the claim has ended: released, lost or revoked.
func (c *Claim) Context() context.Context { return c.ctx }

// Err returns why the claim ended: nil after a release, and while it is held.
func (c *Claim) Err() error {
	if err := context.Cause(c.ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Begin begins the context of a claim that was granted: for the engine that has granted it.
func (c *Claim) Begin() { c.ctx, c.cancel = context.WithCancelCause(context.Background()) }

// End ends the claim; only the first end counts. A nil error is a release. It is for the engine that has granted it.
func (c *Claim) End(err error) { c.cancel(err) }

// Free records that the slots are free again: for the engine that has granted the claim.
func (c *Claim) Free() { c.freed.Store(true) }

// Supervise says whether the owner of the claim knows when its holder has stopped, as it does
// of a process that it watches. After a revocation the slots of such a claim are kept until it
// is released, however long that takes, and those of others for [RevokeGrace].
func (c *Claim) Supervise(on bool) { c.supervised.Store(on) }

// Supervised reports what [Claim.Supervise] was called with.
func (c *Claim) Supervised() bool { return c.supervised.Load() }

// Freed reports whether the slots are known to be free again.
func (c *Claim) Freed() bool { return c.freed.Load() }
