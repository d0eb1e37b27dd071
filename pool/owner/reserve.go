package owner

import (
	"slices"
	"time"

	"github.com/berthhq/berth/pool"
)

// reserveEvery is how often demands are looked through for those that are old enough to reserve.
const reserveEvery = 100 * time.Millisecond

// reserving knows from what age on a demand has slots kept for it while it does not fit: the shortest time of its pools.
type reserving struct {
	after map[string]time.Duration // by pool, as its spec was read last; [pool.NeverReserve] is never
	next  time.Duration            // when a demand may be old enough; 0 for never
}

// set records the time of a pool.
func (r *reserving) set(name string, after time.Duration) {
	if was, ok := r.after[name]; !ok || was != after {
		r.after[name], r.next = after, 1 // the time of all demands may be another one now
	}
}

// keep forgets the pools that no demand is in.
func (r *reserving) keep(names map[string]bool) {
	for name := range r.after {
		if !names[name] {
			delete(r.after, name)
		}
	}
}

// due returns when a demand reserves, false if it never does.
func (r *reserving) due(d *demand) (at time.Duration, ok bool) {
	for _, name := range d.claim.pools {
		after, known := r.after[name]
		if known && after != pool.NeverReserve && (!ok || d.claim.came+after < at) {
			at, ok = d.claim.came+after, true
		}
	}
	return at, ok
}

// add records that a demand has come.
func (r *reserving) add(d *demand) {
	if at, ok := r.due(d); ok && !d.reserves {
		r.soon(at)
	}
}

// soon has demands looked through at a time.
func (r *reserving) soon(at time.Duration) {
	if r.next == 0 || at < r.next {
		r.next = max(1, at)
	}
}

// begin reports whether demands are to be looked through now.
func (r *reserving) begin(now time.Duration) bool {
	if r.next == 0 || now < r.next {
		return false
	}
	r.next = 0
	return true
}

// reserve has those demands reserve that are old enough: they are put again, and their pools are pending.
func (q *queue) reserve(now time.Duration) {
	if !q.reserving.begin(now) {
		return
	}
	used := map[string]bool{}
	for _, d := range slices.AppendSeq(slices.Clone(q.fresh), q.demands()) {
		for _, p := range d.claim.pools {
			used[p] = true
		}
		at, ok := q.reserving.due(d)
		switch {
		case !ok || d.reserves:
		case at > now:
			q.reserving.soon(max(at, now+reserveEvery))
		default:
			q.reserveFor(d)
		}
	}
	q.reserving.keep(used)
}

// reserveFor has a demand reserve.
func (q *queue) reserveFor(d *demand) {
	d.reserve()
	q.putPending(d.claim.pools)
	if d.key != nil {
		q.change(d.key)
	}
}
