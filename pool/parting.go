package pool

import (
	"context"
	"errors"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// ErrApart tells that a claim can't be given back with something else, and that
// nothing of that was written: it is not held any more, or has more than 32 keys.
var ErrApart = errors.New("pool: the claim can't be given back together with something else")

// parting is what is to happen with the release of a claim, or not at all.
type parting struct {
	extra store.Extra
	// place is given back with the claim, nil if it has none.
	place *Place
	reply chan<- parted // with room for one
}

// parted is what has become of it: the revision, or why there is none.
type parted struct {
	revision int64
	err      error
}

// ReleaseWith gives a claim back, and writes x in the same revision: so that what a
// claim is for ends together with it. It can have no writes on the claim's lease.
//
// If a condition does not hold, that is [store.ErrChanged]: nothing has happened, and
// the claim is held still. So it is after [ErrApart] and errors that are not in doubt
// (see [store.InDoubt]); after the others x may have been written, and the claim given
// back with it. Asked, if it is not nil, is called once the wish has its place: a claim
// that is asked for then is granted with what is given back, or later. So is place, if it
// is not nil: it is free for another claim in the same revision.
func (e *Engine) ReleaseWith(ctx context.Context, cl *Claim, x store.Extra, place *Place, asked func()) (revision int64, err error) {
	if err := validateExtra(x); err != nil {
		return 0, err
	}
	if len(x.Leased) > 0 || x.Stamp != nil {
		return 0, problem.New(problem.Internal, "a release has no lease to write on, and is never tried long after it was asked for")
	}
	reply := make(chan parted, 1)
	if err := e.send(ctx, func(c *core, now time.Time) { c.part(cl, &parting{x, place, reply}, now) }); err != nil {
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

// part gives a claim back together with something else.
func (c *core) part(cl *Claim, p *parting, now time.Time) {
	e := c.entries[cl.ID]
	switch {
	case e == nil || e.claim != cl || e.state != held || len(e.slots) > wideKeys:
		p.reply <- parted{err: ErrApart}
	case c.full(now):
		p.reply <- parted{err: c.trouble(now)}
	default:
		// Trust in it goes on until it is given back: it may come to stay.
		e.state, e.parting = releasing, p
		c.releases = append(c.releases, e)
		c.dirty = true
	}
}

// stay leaves a claim held whose release was to happen with something else, which did
// not happen.
func (c *core) stay(e *entry, err error, now time.Time) {
	e.state = held
	e.parted(0, err)
	if len(e.waiters) > 0 { // it was released by itself meanwhile
		c.giveBack(e, nil)
		return
	}
	c.reconsider(e, now)
}

// stayAll leaves those of a list held that were to be released with something of a
// kind, and takes them off.
func (c *core) stayAll(list *[]*entry, err error, now time.Time, kind func(*parting) bool) {
	given := *list
	*list = nil
	var stay []*entry
	for _, e := range given {
		if e.parting != nil && kind(e.parting) {
			stay = append(stay, e)
		} else {
			*list = append(*list, e)
		}
	}
	for _, e := range stay {
		c.stay(e, err, now) // it may be put up for release again, by itself
	}
}

func anyParting(*parting) bool { return true }

// parted answers who gave the claim back with something else, if somebody did.
func (e *entry) parted(revision int64, err error) {
	if e.parting != nil {
		if err == nil || err == errInDoubt {
			e.parting.place.Give() // unless it was passed on
		}
		e.parting.reply <- parted{revision, err}
		e.parting = nil
	}
}

// onForeignLeases tells whether what is written besides hangs on leases that are not
// the claim's: if one of them is gone, the same can never be written.
func onForeignLeases(x *store.Extra) bool {
	for _, op := range x.Then {
		if p := op.GetRequestPut(); p != nil && p.Lease != 0 {
			return true
		}
	}
	return false
}

// errInDoubt answers for a write that may have been carried out, and can't be any more.
var errInDoubt = problem.New(problem.EtcdUnavailable, "%w: nobody can tell any more what has become of a write", store.ErrUnavailable)
