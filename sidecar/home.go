package sidecar

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// home is where one start puts what it needs: a key on a lease of this instance, or a
// claim that it takes over, with the key on the same lease. It is a [run.Home].
type home struct {
	x *executors
	// asker ends when nobody waits for the start any more.
	asker context.Context
	room  room
}

// Lease returns the lease of room for a key. It waits for one, for a while.
func (h *home) Lease(context.Context) (store.LeaseID, error) {
	if h.room == nil {
		waiting, cancel := context.WithTimeout(h.asker, roomTimeout)
		defer cancel()
		on, err := h.x.room(waiting)
		if err != nil {
			return 0, err
		}
		h.room = on
	}
	return h.room.Lease(), nil
}

// TakeOver takes over the claim that the coordinator keeps for a run. It does not end
// before it is known what has become of that.
func (h *home) TakeOver(ctx context.Context, r *run.Run, x store.Extra) (fence int64, err error) {
	claim, err := h.x.takeOver(context.WithoutCancel(ctx), pool.TakeOver{
		ID: r.Claim, Fence: r.Revision, Holder: pool.Holder{Run: r.ID, Bind: run.BindExecutor}, Extra: x,
	})
	if err != nil {
		return 0, err
	}
	h.room = &claimRoom{x: h.x, claim: claim}
	return claim.Fence(), nil
}

// claimRoom is the room of a run that holds slots: the key of its executor is on the
// lease of its claim, and the claim is given back with it.
type claimRoom struct {
	x     *executors
	claim *berth.Claim
	key   room // the key's own, if it was taken over; nil else
	once  sync.Once
}

// Lease is the claim's.
func (r *claimRoom) Lease() store.LeaseID { return r.claim.Claim.Lease }

// Context is done when the claim has ended.
func (r *claimRoom) Context() context.Context { return r.claim.Context() }

// Trust is the claim's.
func (r *claimRoom) ValidFor() (left, grace time.Duration) { return r.claim.ValidFor() }

// Release gives the claim back, and does not wait for that.
func (r *claimRoom) Release() {
	r.once.Do(func() {
		r.x.tasks.Go(func() { _ = r.claim.Release(r.x.quit) }) // it is released all the same
		if r.key != nil {
			r.key.Release()
		}
	})
}

// shutsDown tells whether a room has ended because its client ends: a claim is lost
// then, by that.
func shutsDown(cause error) bool {
	for {
		var p *problem.Error
		if !errors.As(cause, &p) {
			return false
		}
		if p.Code == problem.Stopping {
			return true
		}
		cause = p.Unwrap()
	}
}

// bindStep is how the claims are bound that hold the slots of step instances: see
// [pool.Holder.Bind].
const bindStep = "step"

// executes tells whether a claim that is bound so holds the slots of a run or a step
// instance, and is given back with it.
func executes(bind string) bool { return run.Binds(bind) || bind == bindStep }

// splitClaims parts the claims of runs and step instances from others.
func splitClaims(claims []*berth.Claim) (executed, others []*berth.Claim) {
	others = slices.DeleteFunc(slices.Clone(claims), func(c *berth.Claim) bool { return executes(c.Bind()) })
	executed = slices.DeleteFunc(slices.Clone(claims), func(c *berth.Claim) bool { return !executes(c.Bind()) })
	return executed, others
}

// claimFor names what a claim holds the slots of.
func claimFor(c *berth.Claim) string {
	if c.Bind() == bindStep {
		return c.Holder.Run + "/" + c.Holder.Step
	}
	return c.Holder.Run
}

// holderOfStep names a run, or a step instance as claims of its slots do.
func holderOfStep(id store.StepID) string {
	if id.Step == "" {
		return id.Run
	}
	return id.Run + "/" + id.Text()
}
