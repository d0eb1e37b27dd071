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

const (
	// deaf is how long a history may receive nothing before it does not judge time.
	deaf = time.Second
	// shortestGap is the shortest gap that is kept.
	shortestGap = 100 * time.Millisecond
)

// idling is a pool in which a waiter fits and none is granted.
type idling struct {
	since time.Time
	stuck string // the first one that fits
}

// idleState is what is kept to find gaps.
type idleState struct {
	received time.Time
	pools    map[string]*idling
	gaps     []Gap
}

// TakeOvers returns when the role of the dispatcher was taken from one that was silent, as far as role keys have shown it.
func (h *History) TakeOvers() []time.Time { return slices.Clone(h.queue.takeOvers) }

// Received notes that everything that etcd has written before was delivered. Where that does not
// happen for a second, time is not judged.
func (h *History) Received() { h.idle.receive(h.queue.now()) }

func (s *idleState) receive(now time.Time) {
	if !s.received.IsZero() && now.Sub(s.received) > deaf {
		for _, d := range s.pools {
			d.since = now
		}
	}
	s.received = now
}

// Gaps returns the gaps of more than 100 ms, and those that have not ended until now.
func (h *History) Gaps() []Gap { return h.idle.all(h.queue.now()) }

func (s *idleState) all(now time.Time) []Gap {
	all := slices.Clone(s.gaps)
	for _, name := range slices.Sorted(maps.Keys(s.pools)) {
		if d := s.pools[name]; now.Sub(d.since) >= shortestGap {
			all = append(all, Gap{name, d.since, now, d.stuck})
		}
	}
	return all
}

// forget drops the gaps that have ended.
func (s *idleState) forget() { s.gaps = nil }

// note notes in which pools a waiter fits now, and ends the gaps of those that moved.
func (s *idleState) note(now time.Time, fitting map[string]string, moved map[string]bool) {
	for name, d := range s.pools {
		if _, fits := fitting[name]; fits && !moved[name] {
			continue
		}
		if now.Sub(d.since) >= shortestGap {
			s.gaps = append(s.gaps, Gap{name, d.since, now, d.stuck})
		}
		delete(s.pools, name)
	}
	for name, stuck := range fitting {
		if s.pools[name] == nil {
			s.pools[name] = &idling{since: now}
		}
		s.pools[name].stuck = stuck
	}
}

// fitting returns the first waiter of each pool that fits now and was not granted, under the first of its pools by name. A waiter
// that may be left out takes its slots, but does not count; nothing is kept for one that is passed.
func (h *History) fitting() map[string]string {
	all := map[string]string{}
	if !h.queue.dispatched || len(h.demands.line) == 0 {
		return all
	}
	free, reserved := h.free(), map[string]bool{}
	for _, w := range h.demands.line {
		if !w.whole || !h.possible(w) || h.queue.passed(w) {
			continue
		}
		switch anyReserved := w.needsAny(reserved); {
		case w.fits(free):
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

// needsAny reports whether it needs one of some pools.
func (w *waiter) needsAny(pools map[string]bool) bool {
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
