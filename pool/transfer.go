package pool

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/admit"
)

// TakeOver is a request for a claim that another instance holds until it is taken over:
// see [Request.Bridge].
type TakeOver struct {
	// ID and Fence name the claim, and Slots has its pools.
	ID    string
	Fence store.Fence
	Slots map[string]int
	// Holder to record from now on. Host and Instance are filled in by the engine.
	Holder Holder
	// Extra goes into the transaction by which the claim changes hands.
	Extra store.Extra
}

// Validate refuses what can't be asked for, whatever claims there are.
func (h *TakeOver) Validate() error {
	if err := ValidateID(h.ID); err != nil {
		return err
	}
	if err := ValidateSlots(h.Slots); err != nil {
		return err
	}
	if err := h.Holder.validate(); err != nil {
		return err
	}
	return ValidateExtra(h.Extra)
}

// errTakenOver ends a bridge: its slots are another instance's, or free.
var errTakenOver = errors.New("the claim was taken over")

// TakeOver makes a claim one of this engine: its slots stay taken, on a lease of
// this instance, and its fence grows. Only one who asks for it gets it. If it is not
// there, or something else must hold that does not, that is a Precondition problem.
// If ctx ends first, the claim is given back if it changed hands just then.
func (e *Engine) TakeOver(ctx context.Context, h TakeOver) (*Claim, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	reply := make(chan outcome, 1)
	taking := newEntry(&Request{ID: h.ID, Slots: maps.Clone(h.Slots), Holder: h.Holder, Extra: h.Extra}, e.cfg.Host, e.cfg.Instance)
	taking.takes = h.Fence.Revision()
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
		reply <- outcome{err: problem.New(problem.IDInUse, "claim id %q is used by another claim of this host: use another id", e.req.ID)}
		return
	}
	e.arrived, e.listeners, e.waiting = now, []listener{{reply: reply}}, &admit.Waiter{Mine: true}
	e.retryAt = e.takes // the view must show it, or that it has gone
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
		switch b.take(e, slots, func(t *claimTxn) { t.held(c.view, slots, e.takes) }) {
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
	cv := c.view.putAt(e.req.ID, e.takes)
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
		if !ok || s.claim != cv.claimKey || s.rev != e.takes {
			return nil, false
		}
		slots = append(slots, placed{ref: ref, n: s.n})
	}
	e.req.Slots, e.req.Priority = rec.Pools, rec.Priority
	e.needs = needsOf(rec.Pools)
	e.spelled = spell(e.req, e.needs)
	e.record = &record{Pools: rec.Pools, Priority: rec.Priority, Holder: e.req.Holder, Since: rec.Since, Admitted: cmp.Or(rec.Admitted, cv.rev)}
	return slots, true
}

// ErrNotCombined is the error of a combined release that is impossible: the claim is no
// longer held, or has more than 32 keys. Nothing was written.
var ErrNotCombined = errors.New("pool: the claim can't be released together with another write")

// ValidateReleased refuses what can't be written together with a release.
func ValidateReleased(x store.Extra) error {
	if err := ValidateExtra(x); err != nil {
		return err
	}
	if len(x.Leased) > 0 || x.Stamp != nil {
		return problem.New(problem.Internal, "a release has no lease to write on, and is never tried long after it was asked for")
	}
	return nil
}

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
// If a condition does not hold, it returns [store.ErrChanged]: nothing has happened, and the claim is
// still held, as after [ErrNotCombined] and errors with a known outcome. After errors with an unknown
// one ([store.OutcomeUnknown]) x may have been written, and the claim released with it. Asked, if not
// nil, is called once the release is queued: a claim that is requested then is granted with the slots
// that are released, or later. Place, if not nil, is free for another claim in the same revision.
func (e *Engine) ReleaseWith(ctx context.Context, cl *Claim, x store.Extra, place *Place, asked func()) (revision int64, err error) {
	if err := ValidateReleased(x); err != nil {
		return 0, err
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
	c.noteGiven(e, false)
	c.rewrites = c.rewrites || c.regrants[e.shown] == e
	if len(e.waiters) > 0 { // it was released by itself meanwhile
		e.answerCombined(0, err)
		c.giveBack(e, nil)
		return
	}
	c.reconsider(e) // before its holder is notified, who goes on
	e.answerCombined(0, err)
	c.obey(e, now)
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

// prepare makes the record of a regrant, and notes it in the journal. It is false if the regrant
// must not be made.
func (c *core) prepare(e *entry, h *holding, now time.Time) bool {
	fence, ok := h.fence.Next()
	if !ok {
		return false
	}
	before := e.record
	if e.record = e.recordOf(h, fence, c.seen, now); !c.journaled(h, e) {
		e.record = before
		return false
	}
	return true
}

// recordOf returns the record of an entry that is granted slots which its instance has already. Granted
// is the revision of the grant, or one before.
func (e *entry) recordOf(h *holding, fence store.Fence, granted int64, now time.Time) *record {
	rec := *e.record
	rec.Since, rec.Fence, rec.Granted, rec.Admitted, rec.Keys = recorded(now), fence, granted, h.admitted, keysOf(h.slots)
	return &rec
}

// regrant makes an entry the holder of slots whose keys show another claim.
func (c *core) regrant(e *entry, h holding, extra []*pb.ResponseOp, now time.Time) {
	e.holding = h
	e.regranted = now
	c.regrants[h.shown] = e
	c.label(h.shown.id, 1)
	c.metrics.regrants.Inc()
	c.metrics.granted(now.Sub(e.arrived))
	c.wakeAt(now.Add(c.retains(e.needs) * 3 / 4))
	c.hold(e, extra, h.rev, now)
	if e.state != held {
		return
	}
	// What came while the slots changed hands concerns them still.
	if other := c.entries[h.shown.id]; other != nil && other != e && other.state == queued {
		c.rewriteNow(e) // it can be granted when no key shows its id
	}
	if w, ok := c.wanted[h.shown.id]; ok && w.fence == h.shownFence {
		c.revokeRetained(h.shown.id, w.fence, w.forced)
	}
}

// retire ends a claim whose slots are retained.
func (c *core) retire(e *entry) {
	c.unregrant(e)
	e.state, c.ownRev = over, c.seen
	e.claim.end(nil)
	e.claim.freed.Store(true)
	c.publish(ClaimReleased, e, "")
	e.released()
	delete(c.entries, e.req.ID)
	if len(e.successors) > 0 {
		c.successors = append(c.successors, e.successors...)
		e.successors, c.dirty = nil, true
	}
}

// label counts a key that shows a claim which may have ended.
func (c *core) label(id string, n int) {
	if c.labels[id] += n; c.labels[id] == 0 {
		delete(c.labels, id)
	}
}

// unregrant takes that an entry no longer has slots whose keys show another claim.
func (c *core) unregrant(e *entry) {
	if c.regrants[e.shown] == e {
		delete(c.regrants, e.shown)
		c.label(e.shown.id, -1)
	}
}

// unshow makes the keys that show an ended claim show another one, or deletes them, so that a new claim
// can have its id.
func (c *core) unshow(id string) {
	if c.labels[id] == 0 {
		return
	}
	c.returnAllIdle(func(i *idleSlots) bool { return i.shown.id == id })
	for shown, e := range c.regrants {
		if shown.id == id {
			c.rewriteNow(e)
		}
	}
}

// overdue reports whether the keys of an entry are to show it with the next batch.
func (e *entry) overdue() bool { return e.shown.id != "" && e.regranted.IsZero() }

// rewriteNow has the keys of a claim show it with the next batch.
func (c *core) rewriteNow(e *entry) {
	e.regranted = time.Time{}
	c.rewrites, c.dirty = true, true
}

// sortedRegrants returns the entries whose keys show another claim, so that nothing depends on the
// order of a map.
func (c *core) sortedRegrants() []*entry {
	return slices.SortedFunc(maps.Values(c.regrants), func(a, b *entry) int { return cmp.Compare(a.req.ID, b.req.ID) })
}

// retained reports whether keys show a claim that has ended here, and whose slots are retained.
func (c *core) retained(shown claimKey) bool {
	e := c.regrants[shown]
	return c.idle[shown] != nil || e != nil && e.req.ID != shown.id
}

// revokeRetained acts on a revocation of a claim that has ended here, while its slots are retained.
func (c *core) revokeRetained(id string, fence store.Fence, forced bool) {
	for _, i := range c.sortedIdle() {
		if i.shown.id == id && i.shownFence == fence {
			if forced {
				c.goneIdle(i)
			} else {
				c.returnIdle(i)
			}
		}
	}
	for _, e := range c.sortedRegrants() {
		if e.shown.id != id || e.shownFence != fence || e.fence == fence {
			continue
		}
		if forced {
			c.gone(e) // its slots were freed
		} else {
			c.rewriteNow(e)
		}
	}
}

// freeFor is for how many claims of a kind there may be free slots: some, as far as is known.
func (c *core) freeFor(r *retention) int {
	n := r.quota()
	for _, need := range r.local[0].needs {
		if p := c.view.pool(need.Pool); !p.stale && p.spec.Limit != Unlimited {
			n = min(n, max(0, p.spec.Limit-p.used)/need.N)
		}
	}
	return n
}
