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
		for _, d := range h.queue.idle {
			d.since = now
		}
	}
	h.queue.received = now
}

// Gaps returns the gaps of more than 100 ms, and those that have not ended until now.
func (h *History) Gaps() []Gap {
	all := slices.Clone(h.queue.gaps)
	now := h.queue.now()
	for _, name := range slices.Sorted(maps.Keys(h.queue.idle)) {
		if d := h.queue.idle[name]; now.Sub(d.since) >= shortestGap {
			all = append(all, Gap{name, d.since, now, d.stuck})
		}
	}
	return all
}

// noteIdle notes in which pools a waiter fits now, and ends the gaps of those that moved.
func (h *History) noteIdle(moved map[string]bool) {
	q := &h.queue
	fitting, now := h.fitting(), q.now()
	for name, d := range q.idle {
		if _, fits := fitting[name]; fits && !moved[name] {
			continue
		}
		if now.Sub(d.since) >= shortestGap {
			q.gaps = append(q.gaps, Gap{name, d.since, now, d.stuck})
		}
		delete(q.idle, name)
	}
	for name, stuck := range fitting {
		if q.idle[name] == nil {
			q.idle[name] = &idling{since: now}
		}
		q.idle[name].stuck = stuck
	}
}

// fitting returns the first waiter of each pool that fits now and was not granted, under the first of its pools by name. A waiter
// that may be left out takes its slots, but does not count; nothing is kept for one that is passed.
func (h *History) fitting() map[string]string {
	all := map[string]string{}
	if !h.queue.dispatched || len(h.queue.line) == 0 {
		return all
	}
	free, reserved := h.free(), map[string]bool{}
	for _, w := range h.queue.line {
		if !w.whole || !h.possible(w) || h.passed(w) {
			continue
		}
		switch anyReserved := h.anyOf(reserved, w); {
		case h.fits(free, w):
			if name := lowest(w.value.Pools); all[name] == "" && !h.stuckExcused(w) {
				all[name] = fmt.Sprintf("%s of %s/%s", w.value.Claim, w.value.Holder.Host, w.value.Holder.Instance)
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

// stuckExcused reports whether a waiter that fits may be left out for long: its owner may have no place for it, or it has its
// slots and its demand goes later.
func (h *History) stuckExcused(w *waiter) bool {
	return w.value.Sole || w.value.Holder.Step != "" || h.holding[w.value.Claim] != nil
}

func (h *History) anyOf(pools map[string]bool, w *waiter) bool {
	for name := range w.value.Pools {
		if pools[name] {
			return true
		}
	}
	return false
}

// lowest is the first of a claim's pools by name.
func lowest(pools map[string]int) string {
	low := ""
	for name := range pools {
		if low == "" || name < low {
			low = name
		}
	}
	return low
}
