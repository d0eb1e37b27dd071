package engine

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
)

// outcome is the answer to a request for a claim.
type outcome struct {
	claim *pool.Claim
	err   error
}

// asking is one request for a claim.
type asking struct {
	reply chan<- outcome // buffered
	waits bool
}

func (a asking) refuse(err error) { a.reply <- outcome{err: err} }

// entry is one claim and those who have asked for it.
type entry struct {
	request  *pool.Request
	claim    *owner.Claim
	granted  *pool.Claim // nil before
	asking   []asking
	asked    time.Duration // when the first of them has asked
	releases []chan<- struct{}
	combined *combined // a release with other writes that is under way
	renewed  bool      // its lease was, and that was published
	dropped  bool      // nobody asks for it: it ends, or is released if it is granted just now
	// refusal is the answer if it is not granted, because it is taken out of the wait queue; nil if it is not.
	refusal error
}

// requests is the claims of the instance, by their ids.
type requests struct {
	*loop
	byID       map[string]*entry
	of         map[*owner.Claim]*entry
	successors successors
	places     places
}

func newRequests(l *loop) *requests {
	return &requests{loop: l, byID: map[string]*entry{}, of: map[*owner.Claim]*entry{}, successors: successors{}, places: places{}}
}

// ask asks for a claim. The same request again asks for the same claim. One whose id is of a claim that is ending is asked for
// after that.
func (r *requests) ask(c *owner.Claim, a asking, now time.Duration) {
	req := c.Request()
	e := r.byID[req.ID]
	switch {
	case r.life.stopping && (e == nil || e.granted == nil):
		a.refuse(errStopped)
	case e == nil:
		c = r.places.back(c, now)
		e = &entry{request: req, claim: c, asking: []asking{a}, asked: now}
		r.byID[req.ID], r.of[c] = e, e
		r.owner.Claim(c, now, time.Now())
	case e.dropped && e.request.SameAs(req) && r.owner.Want(e.claim): // its client came back in time
		e.dropped = false
		e.asking = append(e.asking, a)
	case e.dropped || len(e.releases) > 0:
		r.successors.add(e, c, a, now)
	case !e.request.SameAs(req):
		a.refuse(problem.New(problem.IDInUse, "claim id %q is used by another claim: use another id", req.ID))
	case e.granted == nil:
		r.join(e, a)
	case e.granted.Err() != nil:
		a.refuse(e.granted.Err())
	default:
		a.reply <- outcome{claim: e.granted}
	}
}

// add adds a claim that is asked for.
func (r *requests) add(e *entry) { r.byID[e.request.ID], r.of[e.claim] = e, e }

// join has one more request wait for a claim. One that does not wait is refused if the claim is in the wait queue.
func (r *requests) join(e *entry, a asking) {
	if _, queued := e.claim.Waits(); queued && !a.waits {
		a.refuse(errWaits(e))
		return
	}
	e.asking = append(e.asking, a)
}

func errWaits(e *entry) error {
	return problem.New(problem.NoCapacity, "claim %q waits for its turn", e.request.ID)
}

// refuseHasty refuses those that do not wait, and reports whether others are left.
func (e *entry) refuseHasty(err error) bool {
	e.asking = slices.DeleteFunc(e.asking, func(a asking) bool {
		if !a.waits {
			a.refuse(err)
		}
		return !a.waits
	})
	return len(e.asking) > 0
}

// refused records that a claim is refused. If it did not wait, and others have asked for it since that do, it is asked for again.
func (r *requests) refused(e *entry, err error) {
	hasty := e.request.Wait == 0 && problem.CodeOf(err) == problem.NoCapacity
	if !hasty || !e.refuseHasty(err) {
		r.end(e, err)
		return
	}
	delete(r.of, e.claim)
	again := *e.request
	again.Wait = math.MaxInt64 // those who have asked for it stop the time
	asked := e.claim.Since()
	e.request, e.claim = &again, owner.NewClaim(&again)
	r.of[e.claim] = e
	r.owner.Claim(e.claim, r.e.now(), asked)
}

// leave ends one request for a claim. The last one takes the claim out of the wait queue; its place is kept for a while.
func (r *requests) leave(id string, reply chan<- outcome, now time.Duration) {
	e := r.byID[id]
	if e == nil || r.successors.leave(e, reply) {
		return
	}
	i := slices.IndexFunc(e.asking, func(a asking) bool { return a.reply == reply })
	if i < 0 {
		return
	}
	if e.asking = slices.Delete(e.asking, i, i+1); len(e.asking) > 0 {
		return
	}
	e.dropped = true
	r.places.keep(e, now)
	r.owner.Withdraw(e.claim, false)
}

// withdraw takes a claim out of the wait queue, unless it is granted just now.
func (r *requests) withdraw(id string, now time.Duration) {
	if e := r.byID[id]; e != nil && e.granted == nil && !e.dropped {
		r.places.keep(e, now)
		r.takeOut(e, problem.New(problem.ClaimCanceled, "claim %q has left the wait queue", id))
	}
}

// takeOut takes a claim out of the wait queue, with an error for those who have asked for it, unless it is granted just now.
func (r *requests) takeOut(e *entry, err error) {
	e.refusal = err
	r.owner.Withdraw(e.claim, true)
}

// giveBack releases a claim that was granted.
func (r *requests) giveBack(e *entry) {
	e.granted.End(nil)
	r.owner.Release(e.claim)
}

// release releases a claim, and closes done when its slots are free.
func (r *requests) release(cl *pool.Claim, done chan<- struct{}) {
	e := r.byID[cl.ID]
	if e == nil || e.granted != cl {
		close(done)
		return
	}
	e.releases = append(e.releases, done)
	r.giveBack(e)
}

// stop refuses the claims that were not granted yet. What they were about to take is released.
func (r *requests) stop() {
	for c, e := range r.of {
		if e.granted != nil {
			continue
		}
		for _, a := range e.asking {
			a.refuse(errStopped)
		}
		e.asking, e.dropped = nil, true
		r.owner.Withdraw(c, false)
	}
}

// answer answers those who have asked, and returns how many it has answered.
func (r *requests) answer(results []owner.Result) (answered int) {
	for _, res := range results {
		e := r.of[res.Claim]
		if e == nil {
			continue // slots that belonged to no claim
		}
		switch res.Outcome {
		case owner.Waits:
			e.refuseHasty(errWaits(e))
			e.waits(time.Now())
			r.waitings.add(e, res.Why)
			continue
		case owner.Granted:
			r.grant(e)
		case owner.Refused:
			r.refused(e, res.Err)
		case owner.Withdrawn:
			r.end(e, problem.New(problem.ClaimCanceled, "the claim was canceled while it waited"))
		case owner.Stays:
			r.stays(e, res.Err)
		case owner.Lost:
			e.combinedEnds(res)
			r.life.gone(e)
			r.released(e)
		case owner.Released:
			e.combinedEnds(res)
			r.released(e)
		}
		answered++
	}
	return answered
}

// begin begins the validity of a claim.
func (r *requests) begin(e *entry) {
	c, req := e.claim, e.claim.Request()
	e.request = req // with what was read of a claim that is taken over
	e.granted = &pool.Claim{ID: req.ID, Slots: maps.Clone(req.Slots), Fence: c.Fence(), Lease: c.Lease(), Holder: req.Holder, Priority: req.Priority, ClaimedAt: c.Since(), Keys: c.Keys(), Extra: c.Extra()}
	e.granted.Begin()
}

// grant answers that a claim was granted.
func (r *requests) grant(e *entry) {
	r.begin(e)
	r.waitings.flush(e)
	r.broker.publish(pool.ClaimGranted, e.request, "")
	r.e.metrics.waited(r.e.now() - e.asked)
	r.life.granted(e)
	for _, a := range e.asking {
		a.reply <- outcome{claim: e.granted}
	}
	e.asking = nil
	r.revocations.obey(e)
}

// adopt adds a claim of an earlier process of the instance.
func (r *requests) adopt(c *owner.Claim) *pool.Claim {
	e := &entry{request: c.Request(), claim: c}
	r.byID[e.request.ID], r.of[c] = e, e
	r.begin(e)
	r.revocations.obey(e)
	return e.granted
}

// withSlots returns the claims that were granted.
func (r *requests) withSlots() (all []*owner.Claim) {
	for c, e := range r.of {
		if e.granted != nil {
			all = append(all, c)
		}
	}
	return all
}

// end answers that a claim was not granted.
func (r *requests) end(e *entry, err error) {
	r.waitings.flush(e)
	if e.refusal != nil {
		err = e.refusal
	}
	for _, a := range e.asking {
		a.refuse(err)
	}
	r.forget(e)
}

// released answers that the slots of a claim are free.
func (r *requests) released(e *entry) {
	if e.granted != nil {
		e.granted.End(nil)
		e.granted.Free()
		if !e.request.Bridge {
			r.broker.publish(pool.ClaimReleased, e.request, "")
		}
	}
	for _, done := range e.releases {
		close(done)
	}
	r.end(e, errStopped)
}

func (r *requests) forget(e *entry) {
	r.revocations.ended(e)
	delete(r.of, e.claim)
	if r.byID[e.request.ID] == e {
		delete(r.byID, e.request.ID)
	}
	for _, s := range r.successors.take(e) {
		r.ask(s.claim, s.asking, r.e.now())
	}
}

// Claim claims slots, waiting for them as long as the request says. If ctx ends first, the claim leaves the wait queue, or
// is released if it was granted just then. Its errors are problems.
func (e *Engine) Claim(ctx context.Context, req *pool.Request) (*pool.Claim, error) {
	c, err := e.claim(ctx, req)
	if err != nil {
		e.metrics.refused(err)
	}
	return c, err
}

func (e *Engine) claim(ctx context.Context, req *pool.Request) (*pool.Claim, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if err := pool.ValidateExtra(req.Extra); err != nil {
		return nil, err
	}
	own := *req
	own.Slots, own.Holder.Labels = maps.Clone(req.Slots), maps.Clone(req.Holder.Labels)
	own.Holder.Host, own.Holder.Instance = e.cfg.Host, e.cfg.Instance
	c := owner.NewClaim(&own)
	reply := make(chan outcome, 1)
	if !e.inbox.put(func() { e.requests.ask(c, asking{reply, req.Wait > 0}, e.now()) }) {
		return nil, errStopped
	}
	limit := req.Wait
	if limit <= 0 {
		limit = patience
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	var err error
	select {
	case o := <-reply:
		if o.err != nil {
			return nil, e.explained(ctx, &own, o.err)
		}
		return o.claim, nil
	case <-timeout.C:
		if req.Wait > 0 {
			err = e.timedOut(ctx, c, req.Wait)
		} else {
			err = e.impatience()
		}
	case <-ctx.Done():
		err = problem.New(problem.ClaimCanceled, "the claim was canceled while it waited: %w", context.Cause(ctx))
	case <-e.stopped:
		return nil, errStopped
	}
	return e.leave(own.ID, reply, err)
}

// leave ends a request, and returns the error why, or what it was answered just then.
func (e *Engine) leave(id string, reply chan outcome, err error) (*pool.Claim, error) {
	left := make(chan struct{})
	if e.inbox.put(func() { e.requests.leave(id, reply, e.now()); close(left) }) {
		select {
		case <-left:
		case <-e.stopped:
		}
	}
	select {
	case o := <-reply:
		return o.claim, o.err
	default:
		return nil, err
	}
}

// Withdraw takes a claim out of the wait queue. Its requests are answered that it was canceled, or that it was granted, if that
// was under way: unlike the end of a context, this leaves no outcome unknown. Its place is kept for 10 s.
func (e *Engine) Withdraw(id string) {
	e.inbox.put(func() { e.requests.withdraw(id, e.now()) })
}

// Release releases a claim and returns when its slots are free. A claim that has ended is no error. If ctx ends first, it is
// released all the same.
func (e *Engine) Release(ctx context.Context, cl *pool.Claim) error {
	_, err := await(ctx, e, func(done chan<- struct{}) { e.requests.release(cl, done) })
	return err
}

// Reconsider has the engine try waiting claims again: a place was given back.
func (e *Engine) Reconsider() { e.inbox.put(func() {}) }

// LeasesReady reports that a lease that was requested is there.
func (e *Engine) LeasesReady() { e.inbox.put(func() {}) }
