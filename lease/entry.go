package lease

import (
	"time"

	"github.com/berthhq/berth/internal/store"
)

const (
	// KeysPerLease is how many keys share a lease. Where etcd checks rights,
	// each put with a lease costs time in proportion to the keys on it: 0.3 ms
	// with ten, 15 ms with 10,000. A set of keys that is larger, and that must
	// share one lease, gets a lease of its own.
	KeysPerLease = 300
	// ahead is how many free keys some lease of each duration in use should have. If
	// none has, another lease is granted before it is needed. Half a lease is
	// more than a full transaction of claims takes.
	ahead = KeysPerLease / 2
	// surplusAfter and idleAfter are how long a lease stays without keys: one
	// that is not needed, since another one of its duration has free keys, and the
	// last one of its duration. They keep leases from coming and going with
	// every burst of claims.
	surplusAfter = time.Minute
	idleAfter    = 10 * time.Minute
)

// entry is one lease in the [book].
type entry struct {
	id       store.LeaseID
	duration time.Duration // as asked for: it serves claims of exactly this
	wide     bool          // made for a set of keys larger than [KeysPerLease]

	window  Window
	adopted bool // not renewed by this process yet

	keys       int           // reserved
	emptySince time.Duration // since when keys is 0
	miscounted bool          // more was released than reserved: keys is a guess

	suspected uint64 // how often the lease was suspected
	cleared   uint64 // the value of suspected when the last good renewal was sent

	renewing bool          // a try is under way
	next     time.Duration // when the next one is due
	failure  error         // what the last try said; nil after a success
}

// usable reports whether new keys may be put on the lease: this process has renewed or
// made it, it is not suspect, and its holders need not stop yet.
func (e *entry) usable(now time.Duration) bool {
	return !e.adopted && e.suspected == e.cleared && now < e.window.StopAt()
}

// free is how many keys of ordinary sets the lease still takes.
func (e *entry) free() int {
	if e.wide {
		return 0
	}
	return max(0, KeysPerLease-e.keys)
}

// fits reports whether a set of keys may go on the lease.
func (e *entry) fits(keys int) bool {
	if keys > KeysPerLease {
		return e.keys == 0
	}
	return keys <= e.free()
}

// better reports whether e is the better one of two leases that both fit: a wide
// set takes wide leases first, any other the fullest, so that leases empty out.
func (e *entry) better(than *entry) bool {
	if e.wide != than.wide {
		return e.wide
	}
	return e.keys > than.keys
}

// group is all leases of one duration.
type group struct {
	entries []*entry

	// What was refused since the last call of OnReady: the smallest ordinary set,
	// or 0; and whether any set was that needs a lease of its own.
	refused     int
	refusedWide bool
	// A grant is under way, by kind.
	granting, grantingWide bool
}

// mostFree returns the most free keys of any usable lease but except.
func (g *group) mostFree(now time.Duration, except *entry) int {
	most := -1
	for _, e := range g.entries {
		if e != except && e.usable(now) {
			most = max(most, e.free())
		}
	}
	return most
}

// find returns the usable lease that a set of keys should go on, or nil.
func (g *group) find(now time.Duration, keys int) *entry {
	var best *entry
	for _, e := range g.entries {
		if e.usable(now) && e.fits(keys) && (best == nil || e.better(best)) {
			best = e
		}
	}
	return best
}

// held reports whether any lease of the group has keys.
func (g *group) held() bool {
	for _, e := range g.entries {
		if e.keys > 0 {
			return true
		}
	}
	return false
}

// surplus reports whether a lease has been without keys for long enough to be
// given back.
func (g *group) surplus(now time.Duration, e *entry) bool {
	empty := now - e.emptySince
	switch {
	case e.keys > 0 || e.miscounted || !e.usable(now) || empty < surplusAfter:
		return false
	case e.wide || g.mostFree(now, e) >= ahead:
		return true
	}
	return !g.held() && empty >= idleAfter
}

// wantsGrant reports whether another ordinary lease should be granted.
func (g *group) wantsGrant(now time.Duration) bool {
	if g.granting {
		return false
	}
	return g.refused > 0 || g.held() && g.mostFree(now, nil) < ahead
}

// wantsWideGrant reports whether a lease for one large set should be granted.
func (g *group) wantsWideGrant() bool { return g.refusedWide && !g.grantingWide }

// refuse remembers a set to be called back.
func (g *group) refuse(keys int) {
	keys = max(keys, 1)
	switch {
	case keys > KeysPerLease:
		g.refusedWide = true
	case g.refused == 0 || keys < g.refused:
		g.refused = keys
	}
}

// callBack reports whether a refused set fits now, and forgets those of its kind:
// the ones that still don't fit are refused once more.
func (g *group) callBack(now time.Duration) (ready bool) {
	if g.refused > 0 && g.find(now, g.refused) != nil {
		g.refused, ready = 0, true
	}
	if g.refusedWide && g.find(now, KeysPerLease+1) != nil {
		g.refusedWide, ready = false, true
	}
	return ready
}

// needless reports whether nothing in the group is worth remembering.
func (g *group) needless() bool {
	return len(g.entries) == 0 && g.refused == 0 && !g.refusedWide &&
		!g.granting && !g.grantingWide
}
