package pool

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// Claim is a claim that was granted. It is held until its
// context is done.
type Claim struct {
	ID    string
	Slots map[string]int
	// Fence is the revision of the claim's keys. A later holder of one of its
	// slots has a larger one.
	Fence     int64
	Lease     store.LeaseID
	Holder    Holder
	Priority  int
	ClaimedAt time.Time
	// Keys is how many keys hang on the lease.
	Keys int
	// Extra are the answers to what the claim carried along ([store.Extra.Then]): nil
	// if the answer was lost, or the claim was too wide for company.
	Extra []*pb.ResponseOp

	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Context is done when the claim has ended: released, lost or revoked.
func (c *Claim) Context() context.Context { return c.ctx }

// Err tells how the claim ended: nil after a release, and while it is held.
func (c *Claim) Err() error {
	if err := context.Cause(c.ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// end closes the claim; only the first end counts. A nil error is a release.
func (c *Claim) end(err error) { c.cancel(err) }
