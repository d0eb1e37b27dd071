package pool

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Handover is a claim that another instance holds for whoever comes for it: see
// [Request.Bridge].
type Handover struct {
	// ID and Fence name the claim.
	ID    string
	Fence int64
	// Holder to record from now on. Host and Instance are filled in by the engine.
	Holder Holder
	// Extra goes into the transaction by which the claim changes hands.
	Extra store.Extra
}

// errHandedOver ends a bridge: its slots are somebody else's, or free.
var errHandedOver = errors.New("the claim was handed over")

// TakeOver makes a claim one of this engine: its slots stay taken, on a lease of
// this instance, and its fence grows. Only one who asks for it gets it. If it is not
// there, or something else must hold that does not, that is a Precondition problem.
// If ctx ends first, the claim is given back if it changed hands just then.
func (e *Engine) TakeOver(ctx context.Context, h Handover) (*Claim, error) {
	if err := ValidateID(h.ID); err != nil {
		return nil, err
	}
	if err := h.Holder.validate(); err != nil {
		return nil, err
	}
	if err := validateExtra(h.Extra); err != nil {
		return nil, err
	}
	reply := make(chan outcome, 1)
	taking := newEntry(&Request{ID: h.ID, Holder: h.Holder, Extra: h.Extra}, e.cfg.Host, e.cfg.Instance)
	taking.handed = h.Fence
	if err := e.send(ctx, func(c *core, now time.Time) { c.take(taking, reply, now) }); err != nil {
		return nil, canceled(ctx, err)
	}
	return e.granted(ctx, h.ID, 0, reply)
}

// take takes an entry that is to take a claim over. The answer goes to reply, which
// must have room for it.
func (c *core) take(e *entry, reply chan<- outcome, now time.Time) {
	switch older := c.entries[e.req.ID]; {
	case c.stopping:
		reply <- outcome{err: errStopped}
		return
	case older != nil:
		reply <- outcome{err: problem.New(problem.IDInUse, "claim id %q stands for another claim of this host", e.req.ID)}
		return
	}
	e.arrived, e.listeners, e.waiting = now, []listener{{reply: reply}}, &Waiting{Mine: true}
	e.retryAt = e.handed // the view must show it, or that it has gone
	c.entries[e.req.ID] = e
	c.takes = append(c.takes, e)
}

// takeOvers takes claims over that were handed to this instance.
func (c *core) takeOvers(b *builder) {
	var refused []*entry
	for _, e := range c.takes {
		if e.state != queued || e.retryAt > c.view.rev || c.alone != nil && c.alone != e {
			continue
		}
		slots, ok := c.handed(e)
		if !ok {
			refused = append(refused, e)
			continue
		}
		switch b.take(e, slots, func(t *claimTxn) { t.held(c.view, slots, e.handed) }) {
		case overrun:
			c.dirty = true
			return
		case tooWide:
			if b.next == nil {
				b.next = e
			}
		case unfit, taken:
		}
		if b.b.shape == wide {
			break
		}
	}
	for _, e := range refused {
		c.refusePrecondition(e)
	}
}

// handed returns the slots of a claim that is to be taken over, and makes its record
// the entry's; false if it is not there any more.
func (c *core) handed(e *entry) ([]placed, bool) {
	cv := c.view.fenced(e.req.ID, e.handed)
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
		if !ok || s.claim != cv.claimKey || s.rev != e.handed {
			return nil, false
		}
		slots = append(slots, placed{ref: ref, n: s.n})
	}
	e.req.Slots, e.req.Priority = rec.Pools, rec.Priority
	e.needs, e.spelled = needsOf(rec.Pools), spell(e.req)
	e.record = &record{Pools: rec.Pools, Priority: rec.Priority, Holder: e.req.Holder, Since: rec.Since, Admitted: cmp.Or(rec.Admitted, cv.rev)}
	return slots, true
}
