package e2e

import (
	"maps"
	"slices"
	"time"
)

// Gap is a time in which a waiter of a pool fitted and none was granted.
type Gap struct {
	Pool     string
	From, To time.Time
}

// Received notes that everything that etcd has written before was delivered. Where that does not
// happen for a second, time is not judged.
func (h *History) Received() {
	now := h.queue.now()
	if !h.queue.received.IsZero() && now.Sub(h.queue.received) > deaf {
		for _, d := range h.queue.dispatches {
			if !d.idle.IsZero() {
				d.idle = now
			}
		}
	}
	h.queue.received = now
}

// Gaps returns the gaps of more than 100 ms, and those that have not ended until now.
func (h *History) Gaps() []Gap {
	all := slices.Clone(h.queue.gaps)
	now := h.queue.now()
	for _, name := range slices.Sorted(maps.Keys(h.queue.dispatches)) {
		if d := h.queue.dispatches[name]; !d.idle.IsZero() && now.Sub(d.idle) >= shortestGap {
			all = append(all, Gap{name, d.idle, now})
		}
	}
	return all
}

// passed reports whether every dispatcher certainly passes a waiter by now, so that it keeps
// nothing from those behind it.
func (h *History) passed(w *waiter) bool {
	now := h.queue.now()
	if key := h.leaseOf(w); key != "" && !h.queue.leases[key] {
		return now.Sub(h.queue.leaseEnds[key]) > noticedLease
	}
	if all := h.queue.notices[w.value.Holder.id()]; all != nil {
		for _, x := range all.open {
			if now.Sub(x.putAt) > lateAcknowledged {
				return true
			}
		}
	}
	return false
}

// noteIdle notes in which pools a waiter fits now, and ends the gaps of those that moved.
func (h *History) noteIdle(moved map[string]bool) {
	q := &h.queue
	fitting, now := h.fitting(), q.now()
	for name, d := range q.dispatches {
		switch fits := fitting[name]; {
		case d.idle.IsZero() && fits:
			d.idle = now
		case !d.idle.IsZero() && (!fits || moved[name]):
			if now.Sub(d.idle) >= shortestGap {
				q.gaps = append(q.gaps, Gap{name, d.idle, now})
			}
			if d.idle = (time.Time{}); fits {
				d.idle = now
			}
		}
	}
}

// fitting returns the pools whose dispatcher has a waiter to grant now. A waiter that a
// dispatcher may skip takes its slots, but does not count.
func (h *History) fitting() map[string]bool {
	all := map[string]bool{}
	if !slices.ContainsFunc(slices.Collect(maps.Values(h.queue.dispatches)), func(d *dispatch) bool { return d.dispatched }) {
		return all
	}
	free, reserved := h.free(), map[string]bool{}
	for _, w := range h.queue.line {
		if !h.possible(w) || h.passed(w) {
			continue
		}
		switch anyReserved := h.anyOf(reserved, w); {
		case h.fits(free, w):
			if name := lowest(w.value.Pools); h.dispatch(name).dispatched && !h.excused(w, h.rev) {
				all[name] = true
			}
		case !w.value.Reserve || anyReserved:
			continue
		default:
			for name := range w.value.Pools {
				reserved[name] = true
			}
		}
		for name, n := range w.value.Pools {
			free[name] -= n
		}
	}
	return all
}

func (h *History) anyOf(pools map[string]bool, w *waiter) bool {
	for name := range w.value.Pools {
		if pools[name] {
			return true
		}
	}
	return false
}
