package engine

import (
	"context"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/dispatch"
	"github.com/berthhq/berth/pool/wire"
)

// progressEvery is how often a dispatcher asks its watch how far it has come.
const progressEvery = 500 * time.Millisecond

// watching says what a hosted dispatcher follows.
type watching int

const (
	asleep  watching = iota // only which pools are pending
	opening                 // its watch is being opened
	listing                 // what was there before the watch is being read
	awake                   // everything
)

// hosting runs the dispatcher while this instance has the role.
type hosting struct {
	*loop
	lease store.LeaseID // of the role
	role  int64         // 0 if another instance dispatches
	d     *dispatch.Dispatcher

	state  watching
	keys   *tail // from offers/ to the end of pools/, while it is not asleep
	bell   *tail // the pending keys
	early  []message
	rung   int64         // the last revision known to have put a pending key; the highest there is if there may be one
	slept  int64         // the revision after which one ends its sleep
	asked  time.Duration // when it asked for progress last
	wants  pace          // of reads of pools
	half   *offersHalf
	writer *writer

	past   dispatch.Counts // of earlier dispatchers
	known  bool            // everything was read since it was asleep
	reread int             // times that everything was read again
}

func newHosting(l *loop) *hosting {
	half := newOffersHalf(l.e)
	return &hosting{loop: l, half: half, writer: newWriter(half, l.owner.Space())}
}

// demands returns how many demands the dispatcher knows.
func (h *hosting) demands() int {
	if h.d == nil {
		return 0
	}
	return h.d.Demands()
}

// counts returns what this instance has done as the dispatcher so far.
func (h *hosting) counts() dispatch.Counts {
	all := h.past
	if h.d != nil {
		all.Add(h.d.Counts())
	}
	return all
}

// pools returns how many pools are pending, as far as the dispatcher knows.
func (h *hosting) pools() int {
	if h.d == nil {
		return 0
	}
	return h.d.Pending()
}

// follower returns the instance that shall dispatch after this one, none if no other can.
func (h *hosting) follower() dispatch.Follower {
	if h.d == nil {
		return dispatch.Follower{}
	}
	return h.d.Follower()
}

// needed reports whether this instance is to dispatch though it ends: pools are pending, or may be, and no other can follow.
func (h *hosting) needed() bool {
	switch {
	case h.d == nil:
		return h.owner.Left()
	case h.follower() != dispatch.Follower{}:
		return false
	case h.state == awake:
		return h.d.Busy()
	}
	return h.state != asleep || h.slept == 0 // it has not read what there is
}

// leave has the dispatcher, if this instance has one, leave no pool pending without need. It is false if there is nothing new to do.
func (h *hosting) leave() bool { return h.d != nil && h.d.End() }

// leaseLost ends that the role is on a lease that was lost.
func (h *hosting) leaseLost(id store.LeaseID) {
	if h.lease == id {
		h.lease = 0
	}
}

// acquire reserves the keys of the role and the mark on a lease. It is false if it has none yet.
func (h *hosting) acquire() bool {
	if h.lease != 0 {
		return false
	}
	id, ok := h.e.cfg.WaiterLeases.Acquire(pool.WaiterTTL, 2)
	if ok {
		h.lease = id
	}
	return ok
}

// dispatch begins and ends to dispatch, as the succession has decided.
func (h *hosting) dispatch(r dispatch.Ready) {
	if r.Role == h.role {
		return
	}
	h.end()
	if h.role = r.Role; h.role != 0 {
		h.d = dispatch.New(dispatch.Options{Keys: h.e.cfg.Keys, Host: h.e.cfg.Host, Instance: h.e.cfg.Instance, Role: h.role, Lease: h.lease})
		h.half.dispatch(h.d)
		h.owner.Dispatch(h.d.Advance, h.role)
	}
}

// end ends the dispatcher, as another instance has the role.
func (h *hosting) end() {
	for _, t := range []*tail{h.keys, h.bell} {
		if t != nil {
			t.close()
		}
	}
	h.past = h.counts()
	h.d, h.keys, h.bell, h.early, h.state, h.role, h.rung, h.slept = nil, nil, nil, nil, asleep, 0, 0, 0
	h.owner.Dispatch(nil, 0)
}

// act has the dispatcher go on.
func (h *hosting) act(ctx context.Context, now time.Duration) {
	if h.d == nil {
		return
	}
	if h.bell == nil {
		h.bell = newTail(h.e, store.Prefix(h.e.keys.Pending("")), h.wake, h.ring)
		h.bell.open(ctx)
	}
	if h.state == awake {
		h.follow(ctx, now)
	}
	if h.state == asleep && h.rung > h.slept { // maybe since before it fell asleep
		h.begin(ctx, now)
	}
	if h.state == awake || !h.writer.fenced() {
		h.write(ctx, h.writer, now, time.Time{})
	}
	if own := h.d.Offers(); len(own) > 0 {
		h.owner.OfferOwn(own, h.role)
	}
	for _, o := range h.owner.OwnOffers() {
		if o.Revision > 0 {
			h.d.Committed(o.Demand, o.Revision, now)
		} else {
			h.d.Declined(o.Demand, now)
		}
	}
}

// wake has the dispatcher follow all pools with demands: there may be some.
func (h *hosting) wake() { h.rung = math.MaxInt64 }

// ring takes events of pending keys: one that is put wakes a dispatcher.
func (h *hosting) ring(m message) {
	for _, ev := range m.Events {
		if ev.Type == mvccpb.PUT {
			h.rung = max(h.rung, ev.Kv.ModRevision)
		}
	}
}

// begin opens the watch.
func (h *hosting) begin(ctx context.Context, now time.Duration) {
	h.state, h.early, h.asked, h.rung, h.known = opening, nil, now, 0, false
	h.keys = newTail(h.e, dispatch.Watched(h.e.cfg.Keys), func() { h.list(ctx) }, h.shown)
	h.keys.open(ctx)
}

// list reads all that was there before the watch was open.
func (h *hosting) list(ctx context.Context) {
	if h.known {
		h.reread++
	}
	h.state, h.early, h.known = listing, nil, true
	d, l, keys := h.d, dispatch.Listing{}, h.e.keys
	h.e.fetch(ctx, func(ctx context.Context) (err error) {
		l, err = listOffers(ctx, h.e.cfg.Backend, keys)
		return err
	}, func(err error) {
		switch {
		case h.d != d || h.state != listing:
		case err != nil:
			h.keys.reopen()
			h.state = opening
		default:
			h.listed(l)
		}
	})
}

// listed shows the dispatcher what was read, and what has happened meanwhile.
func (h *hosting) listed(l dispatch.Listing) {
	now := h.e.now()
	h.d.Restart(l, now)
	h.state, h.asked = awake, now
	h.keys.progress()
	for _, m := range h.early {
		h.show(m, now)
	}
	h.early = nil
}

// shown takes what the watch has delivered.
func (h *hosting) shown(m message) {
	switch h.state {
	case listing:
		h.early = append(h.early, m)
	case awake:
		h.show(m, h.e.now())
	}
}

func (h *hosting) show(m message, now time.Duration) {
	h.d.Events(m.Revision, m.Events, now)
}

// follow keeps the view current, reads pools that are not known, and sleeps if there is nothing to do.
func (h *hosting) follow(ctx context.Context, now time.Duration) {
	switch {
	case h.d.Stale(now):
		h.keys.reopen()
		h.state, h.asked = opening, now
		return
	case now >= h.asked+progressEvery:
		h.asked = now
		h.keys.progress()
	}
	h.readPools(ctx, now)
	if revision, ok := h.d.Sleep(now); ok {
		h.keys.close()
		h.keys, h.state, h.slept = nil, asleep, revision
	}
}

// readPools reads pools that are not known, one read at a time.
func (h *hosting) readPools(ctx context.Context, now time.Duration) {
	if !h.wants.free(now) {
		return
	}
	names := h.d.Wants()
	if len(names) == 0 {
		return
	}
	h.wants.begin()
	d, l, keys := h.d, dispatch.Listing{Pools: names}, h.e.keys
	h.e.fetch(ctx, func(ctx context.Context) (err error) {
		l, err = listPools(ctx, h.e.cfg.Backend, keys, names)
		return err
	}, func(err error) {
		if h.wants.answered(err, h.e.now()); err != nil {
			l = dispatch.Listing{Pools: names} // of revision 0: they are to be read again
		}
		if h.d == d {
			h.d.Listed(l, h.e.now())
		}
	})
}

// wakes returns when there is something to do without anything having happened.
func (h *hosting) wakes(now time.Duration) time.Duration {
	if h.d == nil || h.state != awake {
		return 0
	}
	return min(h.d.Wake(now), h.asked+progressEvery)
}

// listOffers reads what is of no pool: offers, and which pools are pending.
func listOffers(ctx context.Context, b store.Backend, keys wire.Keys) (l dispatch.Listing, err error) {
	for _, prefix := range []string{keys.OffersAll(), keys.Pending("")} {
		l.Revision, err = store.Pages{Prefix: prefix, Revision: l.Revision}.Each(ctx, b, func(p store.Page) bool {
			l.Pages = append(l.Pages, p.KVs)
			return true
		})
		if err != nil {
			return l, err
		}
	}
	return l, nil
}

// listPools reads pools at one revision.
func listPools(ctx context.Context, b store.Backend, keys wire.Keys, names []string) (l dispatch.Listing, err error) {
	l.Pools = names
	for _, name := range names {
		if l.Revision, err = (store.Pages{Prefix: keys.Pool(name), Revision: l.Revision}).Each(ctx, b, func(p store.Page) bool {
			l.Pages = append(l.Pages, p.KVs)
			return true
		}); err != nil {
			return l, err
		}
	}
	return l, nil
}
