package engine

import (
	"context"
	"maps"
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

// entry is one claim and those who have asked for it.
type entry struct {
	request  *pool.Request
	claim    *owner.Claim
	granted  *pool.Claim // nil before
	asking   []chan<- outcome
	releases []chan<- error
	renewed  bool // its lease was, and that was published
	// refusal is the answer if it is not granted, because it is taken out of the wait queue; nil if it is not.
	refusal error
}

// requests is the claims of the instance, by their ids.
type requests struct {
	owner *owner.Owner
	byID  map[string]*entry
	of    map[*owner.Claim]*entry
	// begun is called with each claim that is granted, before its request is answered.
	begun func(*entry)
	// lost is called with each claim whose slots are gone.
	lost     func(*entry)
	stopping bool // nothing new is claimed

	broker      *broker
	waitings    *waitings
	revocations *revocations
}

func newRequests(o *owner.Owner, b *broker, w *waitings, v *revocations) *requests {
	return &requests{owner: o, byID: map[string]*entry{}, of: map[*owner.Claim]*entry{}, broker: b, waitings: w, revocations: v}
}

// ask asks for a claim. The same request again asks for the same claim.
func (r *requests) ask(c *owner.Claim, reply chan<- outcome, now time.Duration) {
	req := c.Request()
	e := r.byID[req.ID]
	switch {
	case r.stopping && (e == nil || e.granted == nil):
		reply <- outcome{err: errStopped}
		return
	case e == nil:
		e = &entry{request: req, claim: c}
		r.byID[req.ID], r.of[c] = e, e
		r.owner.Claim(c, now)
	case !e.request.SameAs(req):
		reply <- outcome{err: problem.New(problem.IDInUse, "claim id %q is used by another claim of this host: use another id", req.ID)}
		return
	case e.granted != nil:
		if err := e.granted.Err(); err != nil {
			reply <- outcome{err: err}
		} else {
			reply <- outcome{claim: e.granted}
		}
		return
	}
	e.asking = append(e.asking, reply)
}

// leave ends one request for a claim. The last one takes the claim out of the wait queue.
func (r *requests) leave(id string, reply chan<- outcome) {
	e := r.byID[id]
	if e == nil {
		return
	}
	for i, asking := range e.asking {
		if asking == reply {
			e.asking = append(e.asking[:i:i], e.asking[i+1:]...)
			if len(e.asking) == 0 {
				r.owner.Withdraw(e.claim, false)
			}
			return
		}
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

// release releases a claim. It reports false for one that has ended.
func (r *requests) release(cl *pool.Claim, reply chan<- error) {
	e := r.byID[cl.ID]
	if e == nil || e.granted != cl {
		reply <- nil
		return
	}
	e.releases = append(e.releases, reply)
	r.giveBack(e)
}

// stop refuses new claims and those that were not granted yet. What they were about to take is released.
func (r *requests) stop() {
	r.stopping = true
	for c, e := range r.of {
		if e.granted != nil {
			continue
		}
		for _, reply := range e.asking {
			reply <- outcome{err: errStopped}
		}
		e.asking = nil
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
			e.waits(time.Now())
			r.waitings.add(e, res.Why)
			continue
		case owner.Granted:
			r.grant(e)
		case owner.Refused:
			r.end(e, res.Err)
		case owner.Withdrawn:
			r.end(e, problem.New(problem.ClaimCanceled, "the claim was canceled while it waited"))
		case owner.Lost:
			r.lost(e)
			r.released(e)
		case owner.Released:
			r.released(e)
		}
		answered++
	}
	return answered
}

// begin begins the validity of a claim.
func (r *requests) begin(e *entry) {
	c, req := e.claim, e.request
	e.granted = &pool.Claim{ID: req.ID, Slots: maps.Clone(req.Slots), Fence: c.Fence(), Lease: c.Lease(), Holder: req.Holder, Priority: req.Priority, Keys: c.Keys()}
	e.granted.Begin()
}

// grant answers that a claim was granted.
func (r *requests) grant(e *entry) {
	r.begin(e)
	r.waitings.flush(e)
	r.broker.publish(pool.ClaimGranted, e.request, "")
	r.begun(e)
	for _, reply := range e.asking {
		reply <- outcome{claim: e.granted}
	}
	e.asking = nil
	r.revocations.obey(e)
}

// adopt adds a claim of an earlier process of the instance.
func (r *requests) adopt(a owner.Adopted) *pool.Claim {
	e := &entry{request: a.Request(), claim: a.Claim}
	r.byID[e.request.ID], r.of[a.Claim] = e, e
	r.begin(e)
	e.granted.ClaimedAt = a.Since
	r.begun(e)
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
	for _, reply := range e.asking {
		reply <- outcome{err: err}
	}
	r.forget(e)
}

// released answers that the slots of a claim are free.
func (r *requests) released(e *entry) {
	if e.granted != nil {
		e.granted.End(nil)
		e.granted.Free()
		r.broker.publish(pool.ClaimReleased, e.request, "")
	}
	for _, reply := range e.releases {
		reply <- nil
	}
	r.end(e, errStopped)
}

func (r *requests) forget(e *entry) {
	r.revocations.ended(e)
	delete(r.of, e.claim)
	if r.byID[e.request.ID] == e {
		delete(r.byID, e.request.ID)
	}
}

// Claim claims slots, waiting for them as long as the request says. If ctx ends first, the claim leaves the wait queue, or
// is released if it was granted just then. Its errors are problems.
func (e *Engine) Claim(ctx context.Context, req *pool.Request) (*pool.Claim, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	own := *req
	own.Slots, own.Holder.Labels = maps.Clone(req.Slots), maps.Clone(req.Holder.Labels)
	own.Holder.Host, own.Holder.Instance = e.cfg.Host, e.cfg.Instance
	c := owner.NewClaim(&own)
	reply := make(chan outcome, 1)
	if !e.inbox.put(func() { e.requests.ask(c, reply, e.now()) }) {
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
	left := make(chan struct{})
	if e.inbox.put(func() { e.requests.leave(own.ID, reply); close(left) }) {
		select {
		case <-left:
		case <-e.stopped:
		}
	}
	select {
	case o := <-reply: // it was granted just then
		return o.claim, o.err
	default:
		return nil, err
	}
}

// Release releases a claim and returns when its slots are free. A claim that has ended is no error.
func (e *Engine) Release(ctx context.Context, cl *pool.Claim) error {
	reply := make(chan error, 1)
	if !e.inbox.put(func() { e.requests.release(cl, reply) }) {
		return errStopped
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx) // it is released all the same
	case <-e.stopped:
		return errStopped
	}
}

// LeasesReady reports that a lease that was requested is there.
func (e *Engine) LeasesReady() { e.inbox.put(func() {}) }
