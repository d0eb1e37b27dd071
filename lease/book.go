package lease

import (
	"slices"
	"time"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/store"
)

// book is what a keeper knows of its leases and what follows from it. It does
// no I/O, reads no clock and takes no lock: its methods get the time, and its
// caller carries out what [book.due] says.
type book struct {
	cluster uint64        // of etcd that the leases are of; 0 if that is not known yet
	rest    time.Duration // before which no lease is granted, nor takes keys
	leases  map[store.LeaseID]*entry
	groups  map[time.Duration]*group
	lost    []loss // to be reported
	fresh   bool   // an adopted lease was renewed; to be reported
	// successes of renewals, to be reported.
	successes []success
}

// loss is the end of one lease's validity.
type loss struct {
	id    store.LeaseID
	cause error
}

// success is a renewal that has succeeded; again, if it is the first after a gap.
type success struct {
	id    store.LeaseID
	again bool
}

// renewal is a try to renew a lease.
type renewal struct {
	id        store.LeaseID
	ttl       time.Duration
	sent      time.Duration
	suspected uint64 // those raised before it was sent
}

// grant is a lease to be made.
type grant struct {
	duration time.Duration
	wide     bool
}

// work is what has to be done now.
type work struct {
	lost    []loss
	renewed []success
	renew   []renewal
	grant   []grant
	revoke  []store.LeaseID
	ready   bool // OnReady is to be called
}

func newBook() *book {
	return &book{leases: map[store.LeaseID]*entry{}, groups: map[time.Duration]*group{}}
}

func (b *book) group(d time.Duration) *group {
	g := b.groups[d]
	if g == nil {
		g = &group{}
		b.groups[d] = g
	}
	return g
}

func (b *book) add(e *entry) {
	b.leases[e.id] = e
	g := b.group(e.duration)
	g.entries = append(g.entries, e)
}

func (b *book) remove(e *entry) {
	delete(b.leases, e.id)
	g := b.groups[e.duration]
	g.entries = slices.DeleteFunc(g.entries, func(x *entry) bool { return x == e })
}

func (b *book) lose(e *entry, cause error) {
	b.remove(e)
	b.lost = append(b.lost, loss{id: e.id, cause: cause})
}

// in records the cluster of etcd. The leases of another one are lost, and no lease is granted until
// their holders have stopped: in this cluster, their slots may be free already.
func (b *book) in(now time.Duration, cluster uint64) {
	if b.cluster != 0 && b.cluster != cluster {
		for _, e := range b.leases {
			b.stopping(now, e.keys, e.window.TTL)
			b.lose(e, errReplaced)
		}
	}
	b.cluster = cluster
}

// stopping gives the holders of keys on a lost lease their time to stop, from now on.
func (b *book) stopping(now time.Duration, keys int, ttl time.Duration) {
	if keys > 0 {
		b.rest = max(b.rest, now+StopGrace(ttl)+grace.Kill)
	}
}

// acquire reserves keys on a lease of duration d. More is set if a lease has to be
// granted now, for this set or ahead of the next.
func (b *book) acquire(now, d time.Duration, keys int) (id store.LeaseID, ok, more bool) {
	g := b.group(d)
	if e := g.find(now, keys); e != nil && now >= b.rest {
		e.keys += keys
		return e.id, true, g.wantsGrant(now)
	}
	g.refuse(keys)
	return 0, false, g.wantsGrant(now) || g.wantsWideGrant()
}

// release releases reserved keys. Awaited is set if a refused set may fit now; bad, if
// more was released than reserved.
func (b *book) release(now time.Duration, id store.LeaseID, keys int) (awaited, bad bool) {
	e := b.leases[id]
	if e == nil {
		return false, false // lost or revoked, and its reservations with it
	}
	bad = keys > e.keys
	e.keys = max(0, e.keys-keys)
	e.miscounted = e.miscounted || bad
	if e.keys == 0 {
		e.emptySince = now
	}
	g := b.groups[e.duration]
	return g.refused > 0 || g.refusedWide, bad
}

// suspect keeps new keys off leases until a renewal sent from now on succeeds.
func (b *book) suspect(now time.Duration, ids []store.LeaseID) {
	for _, id := range ids {
		if e := b.leases[id]; e != nil {
			e.suspected++
			e.next = now
		}
	}
}

// adopt takes over a lease of an earlier process, to be renewed at once.
// If that does not succeed within its window, it is lost.
func (b *book) adopt(now time.Duration, l Resumable, keys int) {
	if b.leases[l.ID] != nil {
		return
	}
	if l.Cluster != 0 && l.Cluster != b.cluster {
		b.stopping(now, keys, l.Duration)
		b.lost = append(b.lost, loss{l.ID, errReplaced})
		return
	}
	b.add(&entry{
		id: l.ID, duration: l.Duration, keys: keys, emptySince: now,
		window: l.Window, adopted: true, next: now,
	})
}

// ungranted records that no lease was made.
func (b *book) ungranted(job grant) {
	if g := b.group(job.duration); job.wide {
		g.grantingWide = false
	} else {
		g.granting = false
	}
}

// granted takes a new lease.
func (b *book) granted(now time.Duration, job grant, id store.LeaseID, w Window) {
	b.ungranted(job)
	b.add(&entry{
		id: id, duration: job.duration, wide: job.wide, emptySince: now,
		window: w, next: w.Sent + renewAfter(w.TTL),
	})
}

// renewed takes the success of a try, answered with the time to live. A success
// that comes after the validity has ended does not restore it. Recovered is set if the
// try before had failed.
func (b *book) renewed(now time.Duration, try renewal, ttl time.Duration) (recovered bool) {
	e := b.leases[try.id]
	if e == nil {
		return false
	}
	e.renewing = false
	w := NewWindow(try.sent, ttl)
	if !e.window.Valid(now) || !w.Valid(now) {
		b.lose(e, validityEnded(e.failure))
		return false
	}
	recovered = e.failure != nil
	b.successes = append(b.successes, success{e.id, recovered || e.adopted})
	b.fresh = b.fresh || e.adopted
	e.window, e.adopted, e.failure = w, false, nil
	e.next = w.Sent + renewAfter(w.TTL)
	e.cleared = try.suspected
	if e.suspected != e.cleared {
		e.next = now
	}
	return recovered
}

// unrenewed takes the failure of a try. First is set if the one before had succeeded.
func (b *book) unrenewed(now time.Duration, try renewal, failure error) (first bool) {
	e := b.leases[try.id]
	if e == nil {
		return false
	}
	first = e.failure == nil
	e.renewing, e.failure = false, failure
	e.next = max(now, try.sent+retryPause(e.window.TTL))
	return first
}

// gone takes the answer that a lease does not exist.
func (b *book) gone(id store.LeaseID, cause error) {
	if e := b.leases[id]; e != nil {
		b.lose(e, cause)
	}
}

// due tells what has to be done now, and takes it as begun:
//
//  1. Leases whose validity has ended are lost.
//  2. Renewals that are due begin.
//  3. Leases that have had no keys for long are given back.
//  4. Leases that are wanted are granted, unless holders of an earlier cluster are still to stop:
//     neither does a lease take keys then whose grant was tried since before the change.
//
// Ready is set if a set that was refused fits now, or if an adopted lease
// was renewed.
func (b *book) due(now time.Duration) work {
	for _, e := range b.leases {
		if !e.window.Valid(now) {
			b.lose(e, validityEnded(e.failure))
		}
	}
	w := work{lost: b.lost, renewed: b.successes, ready: b.fresh}
	b.lost, b.successes, b.fresh = nil, nil, false
	for _, e := range b.leases {
		if !e.renewing && e.next <= now {
			e.renewing = true
			w.renew = append(w.renew, renewal{id: e.id, ttl: e.window.TTL, sent: now, suspected: e.suspected})
		}
	}
	for d, g := range b.groups {
		b.dueIn(now, d, g, &w)
		if g.needless() {
			delete(b.groups, d)
		}
	}
	return w
}

// dueIn adds what has to be done for one duration.
func (b *book) dueIn(now, d time.Duration, g *group, w *work) {
	for _, e := range slices.Clone(g.entries) {
		if g.surplus(now, e) {
			b.remove(e)
			w.revoke = append(w.revoke, e.id)
		}
	}
	if now < b.rest {
		return
	}
	w.ready = g.callBack(now) || w.ready
	if g.wantsGrant(now) {
		g.granting = true
		w.grant = append(w.grant, grant{duration: d})
	}
	if g.wantsWideGrant() {
		g.grantingWide = true
		w.grant = append(w.grant, grant{duration: d, wide: true})
	}
}

// validity returns the window of a lease, unless it has ended.
func (b *book) validity(now time.Duration, id store.LeaseID) (Window, bool) {
	e := b.leases[id]
	if e == nil || !e.window.Valid(now) {
		return Window{}, false
	}
	return e.window, true
}

// clear forgets everything and returns the leases that there were.
func (b *book) clear() []store.LeaseID {
	ids := make([]store.LeaseID, 0, len(b.leases))
	for id := range b.leases {
		ids = append(ids, id)
	}
	cluster, rest := b.cluster, b.rest
	*b = *newBook()
	b.cluster, b.rest = cluster, rest
	return ids
}
