package engine

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/dispatch"
	"github.com/berthhq/berth/pool/wire"
)

// lender grants leases to an instance, and renews them.
type lender struct {
	n        *node
	ttl      time.Duration
	ids      map[store.LeaseID]time.Duration // until when they are valid
	current  store.LeaseID
	granting bool
}

func newLender(n *node, ttl time.Duration) *lender {
	return &lender{n: n, ttl: ttl, ids: map[store.LeaseID]time.Duration{}}
}

// Acquire reserves keys on a lease.
func (l *lender) Acquire(time.Duration, int) (store.LeaseID, bool) {
	if l.current == 0 {
		l.grant()
	}
	return l.current, l.current != 0
}

// Release ends a reservation.
func (*lender) Release(store.LeaseID, int) {}

// Valid reports whether a lease is valid by the clock of the instance.
func (l *lender) Valid(id store.LeaseID) bool { return l.n.w.now < l.ids[id] }

func (l *lender) grant() {
	if l.granting {
		return
	}
	l.granting = true
	w := l.n.w
	w.after(w.delay(), func() {
		var id store.LeaseID
		sent := w.now
		if l.n.reachable() {
			id, _, _ = w.etcd.Grant(l.ttl)
		}
		w.after(w.delay(), func() {
			l.n.arrive(func() {
				if l.granting = false; id != 0 {
					l.current, l.ids[id] = id, sent+l.ttl
				}
			})
		})
	})
}

// renew renews all leases, and finds out which have ended.
func (l *lender) renew() {
	for _, id := range slices.Sorted(maps.Keys(l.ids)) {
		l.renewOne(id)
	}
}

func (l *lender) renewOne(id store.LeaseID) {
	w, sent := l.n.w, l.n.w.now
	if sent >= l.ids[id] {
		l.lose(id)
		return
	}
	w.after(w.delay(), func() {
		if !l.n.reachable() {
			return
		}
		_, err := w.etcd.Renew(id)
		w.after(w.delay(), func() {
			l.n.arrive(func() {
				switch _, ok := l.ids[id]; {
				case !ok:
				case err != nil:
					l.lose(id)
				default:
					l.ids[id] = max(l.ids[id], sent+l.ttl)
				}
			})
		})
	})
}

// lose has the instance learn that a lease has ended. Its holders release what they hold.
func (l *lender) lose(id store.LeaseID) {
	n := l.n
	delete(l.ids, id)
	if l.current == id {
		l.current = 0
	}
	if n.w.missing != leasesLost {
		n.owner.LeaseLost(id, nil)
	}
	if n.seat.lease == id {
		n.seat.lease = 0
	}
	for _, a := range n.sorted() {
		if a.granted && !a.gone && a.Lease() == id {
			a.gone = true
			n.w.after(time.Duration(n.w.IntN(200))*ms, func() {
				n.arrive(func() { n.owner.Release(a.Claim) })
			})
		}
	}
}

// suspect has leases renewed that etcd may not know.
func (l *lender) suspect(ids []store.LeaseID) {
	for _, id := range ids {
		if _, ok := l.ids[id]; ok {
			l.renewOne(id)
		}
	}
}

// revoke ends a lease in etcd. The instance believes in it.
func (l *lender) revoke() {
	if ids := slices.Sorted(maps.Keys(l.ids)); len(ids) > 0 {
		_ = l.n.w.etcd.Revoke(ids[l.n.w.IntN(len(ids))])
	}
}

// change has the next keys be on another lease.
func (l *lender) change() { l.current = 0 }

// renew renews the leases of an instance from time to time.
func (n *node) renew() {
	if n.life == dead {
		return
	}
	n.w.after(700*ms, n.renew)
	if n.life != hangs {
		n.leases.renew()
		n.wait.renew()
		n.step()
	}
}

// stream is a watch of an instance.
type stream struct {
	n      *node
	keys   store.KeyRange
	opened func()
	shown  func(message)
	f      *storetest.Follower // nil while it is not open
	open   int                 // counts openings
	over   bool
	silent bool
	due    bool
	lag    time.Duration
}

// follow opens a watch.
func (n *node) follow(keys store.KeyRange, opened func(), shown func(message)) *stream {
	s := &stream{n: n, keys: keys, opened: opened, shown: shown}
	n.streams = append(n.streams, s)
	s.reopen()
	return s
}

func (s *stream) close() {
	s.over = true
	s.n.streams = slices.DeleteFunc(slices.Clone(s.n.streams), func(o *stream) bool { return o == s })
}

// reopen opens the watch again.
func (s *stream) reopen() {
	s.f, s.silent, s.lag = nil, false, 0
	s.open++
	s.try(s.open)
}

func (s *stream) try(open int) {
	w := s.n.w
	w.after(w.delay(), func() {
		switch {
		case s.over || s.open != open || s.n.life == dead:
		case !s.n.reachable():
			w.after(reopenAfter, func() { s.try(open) })
		default:
			f := w.etcd.Follow(s.keys, 0)
			w.after(w.delay(), func() {
				s.n.arrive(func() {
					if !s.over && s.open == open {
						s.f = f
						s.opened()
						s.arrived()
					}
				})
			})
		}
	})
}

// changed has what was written be on its way.
func (s *stream) changed(events []*mvccpb.Event) {
	if s.f == nil || s.due {
		return
	}
	if slices.ContainsFunc(events, func(ev *mvccpb.Event) bool { return s.keys.Contains(ev.Kv.Key) }) {
		s.arrived()
	}
}

// arrived has what waits be shown soon.
func (s *stream) arrived() {
	if s.f == nil || s.due || s.over {
		return
	}
	s.due = true
	s.n.w.after(s.lag+s.n.w.delay(), s.show)
}

// show shows what the watch has.
func (s *stream) show() {
	s.due = false
	if s.over || s.f == nil || s.silent || s.n.life != lives {
		return
	}
	f := s.f
	for s.f == f && !s.over {
		m, ok := f.Next(1 + s.n.w.IntN(4))
		if !ok {
			break
		}
		s.shown(m)
	}
	s.n.step()
}

// progress asks how far the watch has come.
func (s *stream) progress() {
	w := s.n.w
	w.after(s.lag+w.delay(), func() {
		if s.over || s.f == nil || s.silent || s.n.life != lives {
			return
		}
		if m, ok := s.f.Progress(); ok {
			s.shown(m)
			s.n.step()
		}
	})
}

// links is what the polls of an engine do.
type links struct {
	succession *dispatch.Succession
	ready      dispatch.Ready
	at         time.Duration
	busy       bool
	deciding   bool
	ending     bool
	leads      bool
}

// lead makes a coordinator the leader, or ends that it is. The one that was the leader finds that out some time later.
func (n *node) lead() {
	w, l := n.w, &n.links
	if n.kind != wire.Coordinator || n.life != lives {
		return
	}
	if was := w.leader; was != nil {
		w.after(time.Duration(w.IntN(1_000))*ms, func() { was.links.leads = w.leader == was })
	}
	if w.leader = nil; w.IntN(3) > 0 {
		w.leader, l.leads = n, true
	}
}

func (l *links) wakes() time.Duration {
	if l.at > 0 && !l.busy {
		return min(l.at, l.ready.At)
	}
	return l.ready.At
}

// decide has the succession decide.
func (n *node) decide() {
	l := &n.links
	l.succession.Set(n.w.now, dispatch.Instance{Leads: l.leads, Demands: n.owner.Queued() > 0, Waiting: n.seat.demands() > 0, Lease: n.seat.lease})
	l.ready = l.succession.Ready(n.w.now, n.wall())
}

// polls polls if it is time, and has the succession decide.
func (n *node) polls() {
	w, l := n.w, &n.links
	if w.missing == succession {
		return
	}
	n.decide()
	if l.ready.Lease && n.seat.acquire() {
		n.decide()
	}
	if l.ready.Changed && w.missing != roleChanged {
		n.owner.RoleChanged()
	}
	n.seat.dispatch(l.ready)
	if t := l.ready.Txn; t != nil && !l.deciding {
		l.deciding = true
		n.request(ofSuccession, t, func(resp *pb.TxnResponse, err error) {
			l.deciding = false
			l.succession.Answer(w.now, resp, err)
		})
	}
	switch {
	case l.busy:
	case l.ready.Poll, l.at > 0 && w.now >= l.at:
		n.poll()
	case n.owner.Waiting() > 0 && l.at == 0:
		l.at = w.now + firstPoll
	}
}

// poll reads the offers to this instance, its demands, the role and the mark in one transaction.
func (n *node) poll() {
	w, l := n.w, &n.links
	l.busy, l.at = true, 0
	reads, sent := l.succession.Reads(), w.now
	t := &pb.TxnRequest{Success: append(n.owner.Polls(), reads...)}
	n.request(ofReads, t, func(resp *pb.TxnResponse, err error) {
		l.busy = false
		if n.owner.Waiting() > 0 {
			l.at = w.now + time.Second
		}
		if err != nil {
			l.succession.Unanswered(w.now, sent, err)
			return
		}
		k := len(resp.Responses) - len(reads)
		if w.missing != offersPolled {
			n.owner.Polled(resp.Responses[:k], resp.Header.Revision)
		}
		if w.serves {
			n.owner.Serve(w.now, l.ready.Nobody)
		}
		role, mark := resp.Responses[k].GetResponseRange(), resp.Responses[k+1].GetResponseRange()
		if w.missing == rolePolled {
			l.succession.Unanswered(w.now, sent, errors.New("not shown"))
			return
		}
		l.succession.Polled(w.now, sent, resp.Header.Revision, first(role.Kvs), first(mark.Kvs))
	})
}

// seeRole shows the succession what the queue has read of the role.
func (n *node) seeRole() {
	if r, revision := n.owner.Role(); r != nil && n.w.missing != roleOfDemands {
		n.links.succession.SeeRole(n.w.now, revision, first(r.Kvs))
	}
}

// seat runs the dispatcher while an instance has the role.
type seat struct {
	n     *node
	lease store.LeaseID
	role  int64
	d     *dispatch.Dispatcher

	state       watching
	keys, bell  *stream
	early       []message
	rung, slept int64
	asked       time.Duration
	wants       pace
	half        *offersHalf
	writer      *writer
	view, sent  int64 // the revision that was shown last, and the one of the last transaction
}

func newSeat(n *node) *seat {
	half := &offersHalf{guard: store.NewGuard(n.w.keys.Guard(n.name, "i~offers")), clock: func() time.Duration { return n.w.now }}
	return &seat{n: n, half: half, writer: newWriter(half, n.owner.Space())}
}

func (h *seat) demands() int {
	if h.d == nil {
		return 0
	}
	return h.d.Demands()
}

func (h *seat) follower() dispatch.Follower {
	if h.d == nil {
		return dispatch.Follower{}
	}
	return h.d.Follower()
}

// acquire reserves the keys of the role and the mark on a lease.
func (h *seat) acquire() bool {
	if h.lease != 0 {
		return false
	}
	id, ok := h.n.wait.Acquire(pool.WaiterTTL, 2)
	if ok {
		h.lease = id
	}
	return ok
}

// dispatch begins and ends to dispatch.
func (h *seat) dispatch(r dispatch.Ready) {
	if r.Role == h.role {
		return
	}
	for _, s := range []*stream{h.keys, h.bell} {
		if s != nil {
			s.close()
		}
	}
	h.d, h.keys, h.bell, h.early, h.state, h.rung, h.slept, h.view = nil, nil, nil, nil, asleep, 0, 0, 0
	h.n.owner.Dispatch(nil, 0)
	if h.role = r.Role; h.role != 0 {
		w := h.n.w
		h.d = dispatch.New(dispatch.Options{Keys: w.keys.Keys, Host: h.n.name, Instance: "i", Role: h.role, Lease: h.lease})
		h.half.dispatch(h.d)
		w.roles[h.role] = &roleHeld{by: h.n, open: map[wire.DemandRef][]wire.Offer{}}
		h.n.owner.Dispatch(h.d.Advance, h.role)
		w.seen["roles"]++
	}
}

// act has the dispatcher go on.
func (h *seat) act() {
	n := h.n
	w := n.w
	if h.d == nil {
		return
	}
	if h.bell == nil {
		h.bell = n.follow(store.Prefix(w.keys.Pending("")), func() { h.rung = math.MaxInt64 }, h.ring)
	}
	if h.state == awake {
		h.watch()
	}
	if h.state == asleep && h.rung > h.slept {
		h.state, h.early, h.asked, h.rung = opening, nil, w.now, 0
		h.keys = n.follow(dispatch.Watched(w.keys.Keys), h.list, h.shown)
	}
	if h.state == awake || !h.writer.fenced() {
		h.sent = h.view
		n.write(h.writer, ofDispatcher)
	}
	if own := h.d.Offers(); len(own) > 0 {
		for _, o := range own {
			w.roles[h.role].open[o.Demand] = append(w.roles[h.role].open[o.Demand], o)
			w.seen["offers in memory"]++
		}
		if w.missing != ownOffersMade {
			n.owner.OfferOwn(own, h.role)
		}
	}
	for _, o := range n.owner.OwnOffers() {
		switch {
		case w.missing == ownOffersReported:
		case o.Revision > 0:
			h.d.Committed(o.Demand, o.Revision, w.now)
		default:
			w.roles[h.role].close(o.Demand)
			h.d.Declined(o.Demand, w.now)
		}
	}
}

func (h *seat) ring(m message) {
	for _, ev := range m.Events {
		if ev.Type == mvccpb.PUT && h.n.w.missing != pendingWakes {
			h.rung = max(h.rung, ev.Kv.ModRevision)
		}
	}
}

// list reads all that was there before the watch was open.
func (h *seat) list() {
	h.state, h.early = listing, nil
	d, keys := h.d, h.n.w.keys
	var l dispatch.Listing
	h.n.query(func(b store.Backend) (err error) {
		l, err = listOffers(context.Background(), b, keys)
		return err
	}, func(err error) {
		h.n.w.after(h.n.w.listingTime(), func() {
			switch {
			case h.d != d || h.state != listing:
			case err != nil:
				h.keys.reopen()
				h.state = opening
			default:
				h.listed(l)
			}
		})
	})
}

// listingTime returns how long a listing takes after its first page.
func (w *world) listingTime() time.Duration {
	if w.calm || w.IntN(3) > 0 {
		return 0
	}
	return time.Duration(w.IntN(400)) * ms
}

func (h *seat) listed(l dispatch.Listing) {
	now := h.n.w.now
	h.d.Restart(l, now)
	h.state, h.asked, h.view = awake, now, max(h.view, l.Revision)
	h.keys.progress()
	for _, m := range h.early {
		if h.n.w.missing != eventsWhileListed {
			h.show(m)
		}
	}
	h.early = nil
}

func (h *seat) shown(m message) {
	switch h.state {
	case listing:
		h.early = append(h.early, m)
	case awake:
		h.show(m)
	}
}

func (h *seat) show(m message) {
	h.view = max(h.view, m.Revision)
	h.d.Events(m.Revision, m.Events, h.n.w.now)
}

// watch keeps the view current, reads pools that are not known, and sleeps if there is nothing to do.
func (h *seat) watch() {
	w := h.n.w
	now := w.now
	switch {
	case h.d.Stale(now) && w.missing != staleViews:
		h.keys.reopen()
		h.state, h.asked = opening, now
		return
	case now >= h.asked+progressEvery:
		h.asked = now
		h.keys.progress()
	}
	h.readPools()
	if revision, ok := h.d.Sleep(now); ok {
		h.keys.close()
		h.keys, h.state, h.slept = nil, asleep, revision
		w.seen["sleeps"]++
	}
}

// readPools reads pools that are not known.
func (h *seat) readPools() {
	w := h.n.w
	if !h.wants.free(w.now) || w.missing == unknownPools {
		return
	}
	names := h.d.Wants()
	if len(names) == 0 {
		return
	}
	h.wants.begin()
	d := h.d
	var l dispatch.Listing
	h.n.query(func(b store.Backend) (err error) {
		l, err = listPools(context.Background(), b, w.keys, names)
		return err
	}, func(err error) {
		h.wants.answered(err, w.now)
		if err != nil {
			l = dispatch.Listing{Pools: names}
		}
		if h.d == d {
			h.d.Listed(l, w.now)
		}
	})
}

func (h *seat) wakes(now time.Duration) time.Duration {
	if h.d == nil || h.state != awake {
		return 0
	}
	return min(h.d.Wake(now), h.asked+progressEvery)
}
