package owner

import (
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// maxCombined is the most slot keys and blocks of a claim that is released together with other writes.
const maxCombined = 32

// errOutcomeUnknown is the error for a write that may have been carried out, and can't be any longer.
var errOutcomeUnknown = problem.New(problem.EtcdUnavailable, "%w: the outcome of a write is unknown", store.ErrUnavailable)

// combined is other writes with which a claim is released, in one revision or not at all.
type combined struct {
	extra store.Extra
	place *pool.Place // of its worker, which a claim may have that takes over its slots
	plain bool        // it is to be released by itself if that does not happen
	gone  bool        // its lease has ended meanwhile
}

// release has the claim released by itself if it is not released with the other writes.
func (w *combined) release() { w.plain = true }

// lose records that the lease of the claim has ended.
func (w *combined) lose() { w.gone = true }

// ReleaseWith asks for the end of a claim that was granted, together with other writes: they happen in the revision in which
// its slots are released, or neither happens. Extra may have no writes on the lease of the claim, and no stamp. The place,
// which may be nil, is passed on to a claim that takes over the slots; else it is for the caller to give back.
//
// If it does not happen, the claim [Stays]: with [store.ErrChanged] if a condition of extra does not hold. If the claim is Lost,
// or Released with [ErrGone], nothing was written; with an error of which [store.OutcomeUnknown] is true it may have been.
//
// It returns [pool.ErrNotCombined], and does nothing, if the claim is not held, or has more than 32 slot keys and blocks.
func (o *Owner) ReleaseWith(c *Claim, extra store.Extra, place *pool.Place) error {
	if c.state != held || len(wire.Refs(c.keys)) > maxCombined {
		return pool.ErrNotCombined
	}
	c.combine(&combined{extra: extra, place: place})
	o.commits.release(c)
	return nil
}

// stay leaves a claim held whose combined release has not happened.
func (o *commits) stay(c *Claim, err error) {
	w := c.combined
	c.stay()
	switch o.outcomes.news.add(Result{Claim: c, Outcome: Stays, Err: err}); {
	case w.gone:
		o.leaseLost([]*Claim{c})
	case w.plain:
		o.release(c)
	}
}
