package executor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// home provides what one start needs: a key on a lease of this instance, or a claim that it
// takes over, with the key on the same lease. It is a [run.Home].
type home struct {
	x *Executors
	// request ends when the client no longer waits for the start.
	request context.Context
	on      reservation
}

// Lease returns the lease of a key reservation. It waits for one, for reserveTimeout.
func (h *home) Lease(context.Context) (store.LeaseID, error) {
	if h.on == nil {
		waiting, cancel := context.WithTimeout(h.request, reserveTimeout)
		defer cancel()
		on, err := h.x.reserve(waiting)
		if err != nil {
			return 0, err
		}
		h.on = on
	}
	return h.on.Lease(), nil
}

// TakeOver takes over the claim that the coordinator keeps for a run. It does not return
// before the outcome is known.
func (h *home) TakeOver(ctx context.Context, r *run.Run, x store.Extra) (fence store.Fence, err error) {
	claim, err := h.x.takeOver(context.WithoutCancel(ctx), pool.TakeOver{
		ID: r.Claim, Fence: r.Fence(), Slots: r.Pools, Holder: pool.Holder{ClaimedBy: access.Of(h.request).String(), Run: r.ID, Bind: run.BindExecutor}, Extra: x,
	})
	if err != nil {
		return 0, err
	}
	h.on = &claimReservation{x: h.x, claim: claim}
	return claim.Fence(), nil
}

// claimReservation is the reservation of a run that holds slots: the key of its executor is
// on the lease of its claim, and the claim is released with it.
type claimReservation struct {
	x     *Executors
	claim *instance.Claim
	key   reservation // the key's own, if it was taken over; nil otherwise
	once  sync.Once
}

// Lease returns that of the claim.
func (r *claimReservation) Lease() store.LeaseID { return r.claim.Claim.Lease }

// Context is done when the claim has ended.
func (r *claimReservation) Context() context.Context { return r.claim.Context() }

// ValidFor returns that of the claim.
func (r *claimReservation) ValidFor() (left, grace time.Duration) { return r.claim.ValidFor() }

// Release releases the claim, and does not wait for that.
func (r *claimReservation) Release() {
	r.once.Do(func() {
		r.x.tasks.Go(func() { _ = r.claim.Release(r.x.quit) }) // it is released in any case
		if r.key != nil {
			r.key.Release()
		}
	})
}

// shutsDown reports whether a reservation has ended because its client ends: a claim is lost
// then, with that as the cause.
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

// Binds reports whether a claim with such a bind holds the slots of a run or a step instance,
// and is released with it.
func Binds(bind string) bool { return run.Binds(bind) || bind == run.BindStep }

// Split separates the claims of runs and step instances from others.
func Split(claims []*instance.Claim) (executed, others []*instance.Claim) {
	others = slices.DeleteFunc(slices.Clone(claims), func(c *instance.Claim) bool { return Binds(c.Bind()) })
	executed = slices.DeleteFunc(slices.Clone(claims), func(c *instance.Claim) bool { return !Binds(c.Bind()) })
	return executed, others
}

// heldFor names what a claim holds the slots of.
func heldFor(c *instance.Claim) string {
	if c.Bind() == run.BindStep {
		return c.Holder.Run + "/" + c.Holder.Step
	}
	return c.Holder.Run
}

// holderOf names a run, or a step instance as claims of its slots do.
func holderOf(id store.StepID) string {
	if id.Step == "" {
		return id.Run
	}
	return id.Run + "/" + id.Text()
}
