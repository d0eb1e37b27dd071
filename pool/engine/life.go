package engine

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// leaveTimeout bounds how long [Engine.Stop] waits until nothing of the wait queue is left in etcd.
const leaveTimeout = 2 * time.Second

// errLate is why [Engine.Stop] does not wait any longer.
var errLate = errors.New("something of the wait queue may be left")

// errLeaseOver ends a claim that is granted, or not released, when its lease is not valid any longer.
var errLeaseOver = errors.New("its lease was lost meanwhile")

// life is which claims are valid, and how the instance ends.
type life struct {
	*loop
	cause    error // why all claims have ended; nil before
	stopping bool
	ending   bool              // another instance is to dispatch
	leaving  []chan<- struct{} // those who wait until nothing of the wait queue is left
}

func newLife(l *loop) *life { return &life{loop: l} }

// leaseLost ends the claims on a lease, and has those that wait use another one. The slots stay taken until their holders
// release them, or the lease ends.
func (l *life) leaseLost(id store.LeaseID, cause error) {
	l.owner.LeaseLost(id, nil)
	l.hosting.leaseLost(id)
	l.end(func(c *pool.Claim) error {
		if c.Lease != id {
			return nil
		}
		return lostError(c, cause)
	})
}

func lostError(c *pool.Claim, cause error) error {
	return problem.New(problem.ClaimLost, "claim %q is lost: %w", c.ID, cause)
}

// gone ends a claim whose slots are gone.
func (l *life) gone(e *entry) {
	l.endOne(e, problem.New(problem.ClaimLost, "claim %q is lost: its slots were taken away (its lease expired, or an operator released it by force)", e.request.ID))
}

// end ends the validity of the claims for which a function returns why.
func (l *life) end(why func(*pool.Claim) error) {
	for _, c := range l.requests.held() {
		if err := why(c); err != nil {
			l.endOne(l.requests.byID[c.ID], err)
		}
	}
}

// endOne ends the validity of a claim, if it has not ended yet. A bridge has no holder whom that concerns, and another instance may
// have it now.
func (l *life) endOne(e *entry, why error) {
	if e.granted.Context().Err() != nil {
		return // its holder was notified before
	}
	if e.request.Bridge {
		e.granted.End(why)
		return
	}
	l.e.cfg.Logger.Warn("claim lost", "claim", e.request.ID, "pools", e.request.Slots, "reason", why)
	e.granted.End(why)
	l.e.metrics.lost(why)
	l.broker.publish(pool.ClaimEnded, e.request, why.Error())
}

// granted ends a claim that was granted, or not released, just now if its lease was lost meanwhile, or all claims have ended.
func (l *life) granted(e *entry) {
	l.audit.follows(e.granted.Lease)
	switch {
	case l.cause != nil:
		l.endOne(e, l.cause)
	case !l.e.cfg.Leases.Valid(e.granted.Lease):
		l.endOne(e, lostError(e.granted, errLeaseOver))
	}
}

// stop refuses new claims and those that wait.
func (l *life) stop() {
	l.stopping = true
	l.requests.stop()
}

// endAll ends all claims.
func (l *life) endAll(cause error) {
	l.cause = cause
	l.stop()
	l.end(func(*pool.Claim) error { return cause })
}

// giveRoleUp has another instance dispatch if this one stops. It is false if there is nothing new to do. Where no other can follow, that
// is when the dispatcher has seen that nothing waits any longer, so that no pool is left pending.
func (l *life) giveRoleUp() bool {
	switch {
	case !l.stopping || l.ending:
		return false
	case l.hosting.needed():
		return l.hosting.leave()
	}
	l.ending = true
	l.polls.end(l.hosting.follower())
	return true
}

// act answers those who wait until nothing of the wait queue is left in etcd.
func (l *life) act() {
	if len(l.leaving) == 0 || !l.polls.ready.Done || l.owner.Queued() > 0 || l.owner.Waiting() > 0 {
		return
	}
	for _, left := range l.leaving {
		close(left)
	}
	l.leaving = nil
}

// LeaseLost reports that a lease is no longer valid: the claims on it are lost, with a cause, and those that wait are put
// into the wait queue again on another one.
func (e *Engine) LeaseLost(id store.LeaseID, cause error) {
	e.inbox.put(func() { e.life.leaseLost(id, cause) })
}

// Stop refuses new claims and those that wait, from now on. It returns when nothing of them is left in etcd and another
// instance may dispatch, or after 2 s.
func (e *Engine) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, leaveTimeout, errLate)
	defer cancel()
	_, err := await(ctx, e, func(left chan<- struct{}) {
		e.life.stop()
		e.life.leaving = append(e.life.leaving, left)
	})
	if errors.Is(err, errLate) {
		return nil
	}
	return err
}

// End ends the validity of all claims, later grants included, and refuses new ones: this instance is stopping. Slots stay taken
// until their holders release them.
func (e *Engine) End(cause error) {
	e.inbox.put(func() { e.life.endAll(cause) })
}

// Abandon leaves all claims to a later process, once Run has returned: here their contexts end, with a cause. Their slots
// stay taken for as long as their leases live.
func (e *Engine) Abandon(cause error) {
	<-e.stopped
	for _, en := range e.requests.of {
		if en.granted != nil {
			en.granted.End(cause)
		}
	}
}

// Unfinished returns how many claims of this instance have slots, or may have some: those that are being granted or released
// included.
func (e *Engine) Unfinished(ctx context.Context) (int, error) {
	return ask(ctx, e, func() int { return e.owner.Unfinished(maps.Keys(e.requests.of)) })
}
