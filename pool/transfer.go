package pool

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// TakeOver is a request for a claim that another instance holds until it is taken over:
// see [Request.Bridge].
type TakeOver struct {
	// ID and Fence name the claim, and Slots has its pools.
	ID    string
	Fence int64
	Slots map[string]int
	// Holder to record from now on. Host and Instance are filled in by the engine.
	Holder Holder
	// Extra goes into the transaction by which the claim changes hands.
	Extra store.Extra
}

// errTakenOver ends a bridge: its slots are another instance's, or free.
var errTakenOver = errors.New("the claim was taken over")

// TakeOver makes a claim one of this engine: its slots stay taken, on a lease of
// this instance, and its fence grows. Only one who asks for it gets it. If it is not
// there, or something else must hold that does not, that is a Precondition problem.
// If ctx ends first, the claim is given back if it changed hands just then.
func (e *Engine) TakeOver(ctx context.Context, h TakeOver) (*Claim, error) {
	if err := ValidateID(h.ID); err != nil {
		return nil, err
	}
	if err := ValidateSlots(h.Slots); err != nil {
		return nil, err
	}
	if err := h.Holder.validate(); err != nil {
		return nil, err
	}
	if err := validateExtra(h.Extra); err != nil {
		return nil, err
	}
	reply := make(chan outcome, 1)
	taking := newEntry(&Request{ID: h.ID, Slots: maps.Clone(h.Slots), Holder: h.Holder, Extra: h.Extra}, e.cfg.Host, e.cfg.Instance)
	taking.takesFence = h.Fence
	if err := e.send(ctx, func(c *core, now time.Time) { c.take(taking, reply, now) }); err != nil {
		return nil, canceled(ctx, err)
	}
	o := e.granted(ctx, h.ID, 0, reply)
	return o.claim, o.err
}

// take takes an entry that is to take a claim over. The answer goes to reply, which
// must be buffered.
func (c *core) take(e *entry, reply chan<- outcome, now time.Time) {
	switch older := c.entries[e.req.ID]; {
	case c.stopping:
		reply <- outcome{err: errStopped}
		return
	case older != nil:
		reply <- outcome{err: problem.New(problem.IDInUse, "claim id %q belongs to another claim of this host", e.req.ID)}
		return
	}
	e.arrived, e.listeners, e.waiting = now, []listener{{reply: reply}}, &Waiting{Mine: true}
	e.retryAt = e.takesFence // the view must show it, or that it has gone
	c.entries[e.req.ID] = e
	c.takes = append(c.takes, e)
	c.asked(e.req.Slots, false, now)
}

// takeOvers takes over the claims that were requested with [Engine.TakeOver].
func (c *core) takeOvers(b *builder) {
	var refused, declined []*entry
	for _, e := range c.takes {
		if e.state != queued || e.retryAt > c.shown(e) || e.offer == nil && c.anyStale(e.needs) || c.alone != nil && c.alone != e {
			continue
		}
		slots, ok := c.slotsToTake(e)
		switch {
		case !ok:
			refused = append(refused, e)
			continue
		case !e.req.Place.Take():
			declined = append(declined, e)
			continue
		}
		switch b.take(e, slots, func(t *claimTxn) { t.held(c.view, slots, e.takesFence) }) {
		case overrun:
			c.dirty = true
			return
		case tooWide:
			if b.next == nil {
				b.next = e
			}
		case unleased, taken:
		}
		if b.b.shape == wide {
			break
		}
	}
	for _, e := range refused {
		if e.offer != nil {
			c.decline(e)
		} else {
			c.refusePrecondition(e)
		}
	}
	for _, e := range declined {
		c.decline(e)
	}
}

// slotsToTake returns the slots of a claim that is to be taken over, and makes its record
// the entry's; false if it is not there any more.
func (c *core) slotsToTake(e *entry) ([]placed, bool) {
	if n := e.offer; n != nil {
		rec := *e.record
		rec.Since, rec.Admitted = n.since, n.rev
		e.record = &rec
		_, lost := c.lost[n.lease]
		return n.slots, !lost && c.view.notices[n.key] == n && c.holdsAll(n)
	}
	cv := c.view.fenced(e.req.ID, e.takesFence)
	if cv == nil {
		return nil, false
	}
	rec, err := cv.full(c.view.keys)
	if err != nil {
		c.log.Error("a claim can't be taken over", "claim", e.req.ID, "error", err)
		return nil, false
	}
	var slots []placed
	for _, ref := range rec.refs(cv.main) {
		s, ok := c.view.slot(ref)
		if !ok || s.claim != cv.claimKey || s.rev != e.takesFence {
			return nil, false
		}
		slots = append(slots, placed{ref: ref, n: s.n})
	}
	e.req.Slots, e.req.Priority = rec.Pools, rec.Priority
	e.needs, e.spelled = needsOf(rec.Pools), spell(e.req)
	e.record = &record{Pools: rec.Pools, Priority: rec.Priority, Holder: e.req.Holder, Since: rec.Since, Admitted: cmp.Or(rec.Admitted, cv.rev)}
	return slots, true
}

// ErrNotCombined is the error of a combined release that is impossible: the claim is no
// longer held, or has more than 32 keys. Nothing was written.
var ErrNotCombined = errors.New("pool: the claim can't be released together with another write")

// combinedRelease is a release with other writes that happen with it, or not at all.
type combinedRelease struct {
	extra store.Extra
	// place is given back with the claim, nil if it has none.
	place *Place
	reply chan<- combinedResult // buffered
}

// combinedResult is its outcome: the revision, or why there is none.
type combinedResult struct {
	revision int64
	err      error
}

// ReleaseWith is a combined release: it releases a claim and writes x in the same
// revision, so that what a claim is for ends together with it. It can have no writes on
// the claim's lease.
//
// If a condition does not hold, that is [store.ErrChanged]: nothing has happened, and
// the claim is still held. So it is after [ErrNotCombined] and errors with a known outcome
// (see [store.OutcomeUnknown]); after the others x may have been written, and the claim
// released with it. Asked, if it is not nil, is called once the release is queued: a claim
// that is requested then is granted with the slots that are released, or later. Place, if
// it is not nil, is free for another claim in the same revision.
func (e *Engine) ReleaseWith(ctx context.Context, cl *Claim, x store.Extra, place *Place, asked func()) (revision int64, err error) {
	if err := validateExtra(x); err != nil {
		return 0, err
	}
	if len(x.Leased) > 0 || x.Stamp != nil {
		return 0, problem.New(problem.Internal, "a release has no lease to write on, and is never tried long after it was asked for")
	}
	reply := make(chan combinedResult, 1)
	if err := e.send(ctx, func(c *core, now time.Time) { c.releaseCombined(cl, &combinedRelease{x, place, reply}, now) }); err != nil {
		return 0, err
	}
	if asked != nil {
		asked()
	}
	select {
	case p := <-reply:
		return p.revision, p.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-e.stopped:
	}
	select {
	case p := <-reply: // it came in time
		return p.revision, p.err
	default:
		return 0, errStopped
	}
}

// releaseCombined queues a combined release.
func (c *core) releaseCombined(cl *Claim, p *combinedRelease, now time.Time) {
	e := c.entries[cl.ID]
	switch {
	case e == nil || e.claim != cl || e.state != held || len(e.slots) > wideKeys:
		p.reply <- combinedResult{err: ErrNotCombined}
	case c.full(now):
		p.reply <- combinedResult{err: c.trouble(now)}
	default:
		// It is valid until it is released: the release may fail, and leave it held.
		e.state, e.combined = releasing, p
		c.releases = append(c.releases, e)
		c.dirty = true
	}
}

// stay leaves a claim held whose combined release did not happen.
func (c *core) stay(e *entry, err error, now time.Time) {
	e.state = held
	e.answerCombined(0, err)
	if len(e.waiters) > 0 { // it was released by itself meanwhile
		c.giveBack(e, nil)
		return
	}
	c.reconsider(e, now)
}

// stayAll leaves the claims of a list held whose combined release is of a kind, and
// takes them off the list.
func (c *core) stayAll(list *[]*entry, err error, now time.Time, kind func(*combinedRelease) bool) {
	given := *list
	*list = nil
	var stay []*entry
	for _, e := range given {
		if e.combined != nil && kind(e.combined) {
			stay = append(stay, e)
		} else {
			*list = append(*list, e)
		}
	}
	for _, e := range stay {
		c.stay(e, err, now) // it may be put up for release again, by itself
	}
}

func anyCombined(*combinedRelease) bool { return true }

// answerCombined answers the combined release of the claim, if there is one.
func (e *entry) answerCombined(revision int64, err error) {
	if e.combined != nil {
		if err == nil || err == errOutcomeUnknown {
			e.combined.place.Give() // unless it was passed on
		}
		e.combined.reply <- combinedResult{revision, err}
		e.combined = nil
	}
}

// onForeignLeases reports whether the other writes are attached to leases that are not
// the claim's: if one of them is gone, they can never be written.
func onForeignLeases(x *store.Extra) bool {
	for _, op := range x.Then {
		if p := op.GetRequestPut(); p != nil && p.Lease != 0 {
			return true
		}
	}
	return false
}

// errOutcomeUnknown answers for a write that may have been committed, and can't be any more.
var errOutcomeUnknown = problem.New(problem.EtcdUnavailable, "%w: the outcome of a write is unknown", store.ErrUnavailable)

// Places bound how many claims a holder can use at a time, of any pools: those of a
// worker, for example. A claim that has a [Place] is granted only when the place is taken,
// so no slots are taken that the holder can't use.
type Places struct {
	mu    sync.Mutex // guards free, and which places are taken
	free  int        // below 0 while more are taken by force than there are
	given chan struct{}
}

// Place is what one claim, or anything else that is to be counted with claims, takes of
// places. A nil Place is no bound.
type Place struct {
	of    *Places
	taken bool
	// lent: it was passed on, and was not given back since.
	lent bool
}

// NewPlaces returns places of which so many are free.
func NewPlaces(n int) *Places { return &Places{free: n, given: make(chan struct{}, 1)} }

// Free is how many are free, never below 0.
func (p *Places) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.free)
}

// Given has a message after a place was given back.
func (p *Places) Given() <-chan struct{} { return p.given }

// New returns a place that is not taken yet.
func (p *Places) New() *Place { return &Place{of: p} }

// Take takes the place, and reports whether it is taken: by this call or one before.
func (p *Place) Take() bool {
	if p == nil {
		return true
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken && p.of.free > 0 {
		p.taken = true
		p.of.free--
	}
	return p.taken
}

// available reports whether the place is taken already, or could be now.
func (p *Place) available() bool {
	if p == nil {
		return true
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken || p.of.free > 0
}

// passes reports whether the place could be passed on to another one.
func (p *Place) passes(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.taken
}

// Force takes the place even if none is free: for what is there already.
func (p *Place) Force() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken {
		p.taken = true
		p.of.free--
	}
}

// Give gives the place back, if it is taken.
func (p *Place) Give() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.lent = false
	if !p.taken {
		return
	}
	p.taken = false
	p.of.free++
	select {
	case p.of.given <- struct{}{}:
	default: // there is a message already
	}
}

// Pass gives the place to another one, which is not taken. It reports whether it was taken,
// and so is passed on.
func (p *Place) Pass(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken || to.taken {
		return false
	}
	p.taken, to.taken = false, true
	p.lent = true
	return true
}

// Return passes a place back to the one that it was passed on from. It is false if that was
// given back meanwhile: its owner would not give it back again.
func (p *Place) Return(to *Place) bool {
	if p == nil || to == nil || p.of != to.of {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.taken || !to.lent || to.taken {
		return false
	}
	p.taken, p.lent = false, false
	to.taken, to.lent = true, false
	return true
}
