package engine

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
)

// combined is a release of a claim with other writes.
type combined struct {
	place *pool.Place
	reply chan<- combinedOutcome // buffered
}

// combinedOutcome is the revision of such a release, or why there is none.
type combinedOutcome struct {
	revision int64
	err      error
}

// answer answers it.
func (c *combined) answer(revision int64, err error) {
	c.reply <- combinedOutcome{revision, err}
}

// takeOver asks for a claim that another instance holds.
func (r *requests) takeOver(c *owner.Claim, a asking) {
	id := c.Request().ID
	switch {
	case r.life.stopping:
		a.refuse(errStopped)
	case r.byID[id] != nil:
		a.refuse(problem.New(problem.IDInUse, "claim id %q is used by another claim of this host: use another id", id))
	default:
		r.add(&entry{request: c.Request(), claim: c, asking: []asking{a}, asked: r.e.now()})
		r.owner.Claim(c, r.e.now(), time.Now())
	}
}

// releaseWith releases a claim together with other writes.
func (r *requests) releaseWith(cl *pool.Claim, extra store.Extra, c *combined) {
	e := r.byID[cl.ID]
	err := pool.ErrNotCombined
	if e != nil && e.granted == cl {
		err = r.owner.ReleaseWith(e.claim, extra, c.place)
	}
	if err != nil {
		c.answer(0, err)
		return
	}
	e.combined = c
}

// stays answers that a combined release has not happened. If the claim was released by itself meanwhile, that is next; else it is
// as one that was granted just now.
func (r *requests) stays(e *entry, err error) {
	e.combined.answer(0, err)
	if e.combined = nil; len(e.releases) > 0 {
		r.giveBack(e)
		return
	}
	r.life.granted(e)
}

// combinedEnds answers a combined release of a claim that is released, or whose slots were gone. A claim that is released, or
// may be, has given its place back.
func (e *entry) combinedEnds(res owner.Result) {
	if e.combined == nil {
		return
	}
	err := res.Err
	if res.Outcome == owner.Lost || errors.Is(err, owner.ErrGone) {
		err = pool.ErrNotCombined
	} else {
		e.combined.place.Give()
	}
	e.combined.answer(res.Revision, err)
	e.combined = nil
}

// TakeOver makes a claim one of this engine that another one holds: its slots stay taken, on a lease of this instance, and its
// fencing token grows. If the claim is not there, or something else must hold that does not, that is a Precondition problem. If
// ctx ends first, the claim is released if it changed hands just then.
func (e *Engine) TakeOver(ctx context.Context, h pool.TakeOver) (*pool.Claim, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	h.Slots, h.Holder.Labels = maps.Clone(h.Slots), maps.Clone(h.Holder.Labels)
	h.Holder.Host, h.Holder.Instance = e.cfg.Host, e.cfg.Instance
	c := owner.NewTakeOver(&h)
	reply := make(chan outcome, 1)
	if !e.inbox.put(func() { e.requests.takeOver(c, asking{reply, false}) }) {
		return nil, errStopped
	}
	select {
	case o := <-reply:
		return o.claim, o.err
	case <-ctx.Done():
		c, err := e.leave(h.ID, reply, problem.New(problem.ClaimCanceled, "the claim was canceled while it waited: %w", context.Cause(ctx)))
		if c == nil {
			return nil, err
		}
		e.inbox.put(func() { e.requests.release(c, make(chan struct{})) })
		return nil, problem.New(problem.ClaimCanceled, "the claim was canceled as it was granted: %w", context.Cause(ctx))
	case <-e.stopped:
		return nil, errStopped
	}
}

// ReleaseWith is a combined release: it releases a claim and writes x in the same revision, so that what a claim is for ends
// together with it. It can have no writes on the claim's lease.
//
// If a condition does not hold, it returns [store.ErrChanged]: nothing has happened, and the claim is still held, as after
// [pool.ErrNotCombined] and errors with a known outcome. After errors with an unknown one ([store.OutcomeUnknown]) x may have been
// written, and the claim released with it. Asked, if not nil, is called once the release is queued: a claim that is requested then
// is granted with the slots that are released, or later. Place, if not nil, is given back with the claim.
func (e *Engine) ReleaseWith(ctx context.Context, cl *pool.Claim, x store.Extra, place *pool.Place, asked func()) (revision int64, err error) {
	if err := pool.ValidateReleased(x); err != nil {
		return 0, err
	}
	reply := make(chan combinedOutcome, 1)
	if !e.inbox.put(func() {
		if e.requests.releaseWith(cl, x, &combined{place, reply}); asked != nil {
			e.expect()
		}
	}) {
		return 0, errStopped
	}
	if asked != nil {
		asked()
	}
	select {
	case o := <-reply:
		return o.revision, o.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-e.stopped:
		return 0, errStopped
	}
}
