package owner

import (
	"slices"
	"time"

	"github.com/berthhq/berth/pool"
)

// reserveEvery is how often demands are looked through for those that are old enough to reserve.
const reserveEvery = 100 * time.Millisecond

// reserving says when a demand may be old enough to have slots kept for it while it does not fit; 0 for never.
type reserving struct{ next time.Duration }

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

// reservesAt returns when a demand reserves, by the shortest time of its pools; false if it never does, as far as is known.
func (m *memory) reservesAt(d *demand) (at time.Duration, ok bool) {
	for _, name := range d.claim.pools {
		k := m.pools[name]
		if k == nil || !k.specKnown() || k.spec.ReserveAfter == pool.NeverReserve {
			continue
		}
		if of := d.claim.came + k.spec.ReserveAfter; !ok || of < at {
			at, ok = of, true
		}
	}
	return at, ok
}

// reserve has those demands reserve that are old enough: they are put again, and their pools are pending.
func (q *queue) reserve(now time.Duration) {
	if !q.reserving.begin(now) {
		return
	}
	for _, d := range slices.AppendSeq(slices.Clone(q.fresh), q.demands()) {
		at, ok := q.memory.reservesAt(d)
		switch {
		case !ok || d.reserves:
		case at > now:
			q.reserving.soon(max(at, now+reserveEvery))
		default:
			q.reserveFor(d)
		}
	}
}

// reserveFor has a demand reserve.
func (q *queue) reserveFor(d *demand) {
	d.reserve()
	q.putPending(d.claim.pools)
	if d.key != nil {
		q.change(d.key)
	}
}
