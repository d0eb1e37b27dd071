package storetest

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

const (
	// maxTTL is the longest time to live that etcd grants.
	maxTTL = 9_000_000_000 * time.Second
	// never is later than any lease ends.
	never time.Duration = math.MaxInt64
)

// lease is one lease. Its keys are found by scanning all keys when it
// ends: that is rare, and so puts need not keep a list.
type lease struct {
	ttl time.Duration
	end time.Duration
}

// Now returns how much time has passed in this store.
func (e *Etcd) Now() time.Duration { return e.now }

// Advance lets time pass. Leases end on their way, in the order of their ends
// and then of their numbers; the keys of each go in one revision.
func (e *Etcd) Advance(d time.Duration) {
	until := later(e.now, max(0, d))
	for e.earliest <= until {
		id, end, ok := e.nextExpiry()
		if !ok || end > until {
			e.earliest = end
			break
		}
		e.now = max(e.now, end)
		e.remove(id)
	}
	e.now = until
}

// NextExpiry returns when the next lease loses its keys unless it is renewed,
// in the time of [Etcd.Now]; false if there is no lease.
func (e *Etcd) NextExpiry() (time.Duration, bool) {
	_, end, ok := e.nextExpiry()
	return end, ok
}

func (e *Etcd) nextExpiry() (id store.LeaseID, end time.Duration, ok bool) {
	end = never
	for i, l := range e.leases {
		if at := later(l.end, e.opts.ExpiryLag); at < end || at == end && (!ok || i < id) {
			id, end, ok = i, at, true
		}
	}
	return id, end, ok
}

// later adds to a moment without running over.
func later(at, d time.Duration) time.Duration {
	if at > never-d {
		return never
	}
	return at + d
}

// Grant makes a lease and returns what was granted: the time to live is rounded
// up to whole seconds and to [Options.MinTTL]. Numbers are never used twice.
func (e *Etcd) Grant(ttl time.Duration) (store.LeaseID, time.Duration, error) {
	e.lastLease++
	granted, err := e.grant(e.lastLease, ttl)
	if err != nil {
		return 0, 0, err
	}
	return e.lastLease, granted, nil
}

// grant makes a lease with a number that the caller chose.
func (e *Etcd) grant(id store.LeaseID, ttl time.Duration) (time.Duration, error) {
	switch {
	case e.space == SpaceFull:
		return 0, errGrantNoSpace
	case ttl > maxTTL:
		return 0, errTTLTooLarge
	case e.leases[id] != nil:
		return 0, errLeaseExists
	}
	ttl = wholeSeconds(max(time.Second, e.opts.MinTTL, ttl))
	l := &lease{ttl: ttl, end: later(e.now, ttl)}
	e.leases[id] = l
	e.earliest = min(e.earliest, later(l.end, e.opts.ExpiryLag))
	if e.space == SpaceFilling {
		return 0, errGrantNoSpace
	}
	return ttl, nil
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// Renew starts a lease's time again and returns it.
func (e *Etcd) Renew(id store.LeaseID) (time.Duration, error) {
	l := e.live(id)
	if l == nil {
		return 0, errLease
	}
	l.end = later(e.now, l.ttl)
	return l.ttl, nil
}

// Revoke ends a lease. Its keys go in one revision; without keys there is none.
func (e *Etcd) Revoke(id store.LeaseID) error {
	if e.leases[id] == nil {
		return errLease
	}
	e.remove(id)
	return nil
}

// TimeToLive returns the remaining time of a lease, in whole seconds as etcd does.
func (e *Etcd) TimeToLive(id store.LeaseID) (time.Duration, error) {
	l := e.live(id)
	if l == nil {
		return 0, errLease
	}
	return (l.end - e.now).Truncate(time.Second), nil
}

// LeaseKeys returns the keys that are attached to a lease.
func (e *Etcd) LeaseKeys(id store.LeaseID) (keys []string, err error) {
	if e.live(id) == nil {
		return nil, errLease
	}
	for kv := range e.All("") {
		if store.LeaseID(kv.Lease) == id {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys, nil
}

// live returns a lease whose time has not ended, or nil.
func (e *Etcd) live(id store.LeaseID) *lease {
	if l := e.leases[id]; l != nil && l.end > e.now {
		return l
	}
	return nil
}

// Leases returns the numbers of all leases, in order.
func (e *Etcd) Leases() []store.LeaseID { return slices.Sorted(maps.Keys(e.leases)) }

// RestartLeases gives every lease its full time again and extra on top, as a
// restart of etcd or a change of its leader does; extra is then the election
// timeout.
func (e *Etcd) RestartLeases(extra time.Duration) {
	for _, l := range e.leases {
		l.end = later(later(e.now, l.ttl), extra)
	}
}

// remove ends a lease: its keys are deleted in their order.
func (e *Etcd) remove(id store.LeaseID) {
	delete(e.leases, id)
	r := run{e: e, began: e.rev}
	kept := e.keys[:0]
	for _, kv := range e.keys {
		if store.LeaseID(kv.Lease) == id {
			r.delete(kv)
		} else {
			kept = append(kept, kv)
		}
	}
	clear(e.keys[len(kept):])
	e.keys = kept
	if e.rev != r.began {
		e.committed(nil)
	}
}
