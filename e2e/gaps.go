package e2e

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Gap is a time in which a waiter of a pool fitted and none was granted.
type Gap struct {
	Pool     string
	From, To time.Time
	// Waiter is the first one that fitted at the end: its claim, host and instance.
	Waiter string
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
			all = append(all, Gap{name, d.idle, now, d.stuck})
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
		stuck, fits := fitting[name]
		switch {
		case d.idle.IsZero() && fits:
			d.idle = now
		case !d.idle.IsZero() && (!fits || moved[name]):
			if now.Sub(d.idle) >= shortestGap {
				q.gaps = append(q.gaps, Gap{name, d.idle, now, d.stuck})
			}
			if d.idle = (time.Time{}); fits {
				d.idle = now
			}
		}
		d.stuck = stuck
	}
}

// fitting returns the first waiter that the dispatcher of each pool has to grant now. A waiter
// that a dispatcher may skip takes its slots, but does not count.
func (h *History) fitting() map[string]string {
	all := map[string]string{}
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
			name := lowest(w.value.Pools)
			if all[name] == "" && h.dispatch(name).dispatched && !h.excused(w, "", h.rev) {
				all[name] = fmt.Sprintf("%s of %s/%s", w.wait.Claim, w.value.Holder.Host, w.value.Holder.Instance)
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
