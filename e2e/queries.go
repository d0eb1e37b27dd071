package e2e

import (
	"maps"
	"slices"
)

// Holds returns all claims that were ever held, first come first.
func (h *History) Holds() []Hold {
	all := make([]Hold, 0, len(h.holds))
	for _, x := range h.holds {
		all = append(all, *x)
	}
	return all
}

// Hold returns the last hold of a claim, nil if it was never held.
func (h *History) Hold(claim string) *Hold {
	for _, x := range slices.Backward(h.holds) {
		if x.Claim == claim {
			c := *x
			return &c
		}
	}
	return nil
}

// Held returns how many claims are held.
func (h *History) Held() int { return len(h.holding) }

// Holding returns the claims that are held, by id.
func (h *History) Holding() []Hold {
	var all []Hold
	for _, id := range slices.Sorted(maps.Keys(h.holding)) {
		all = append(all, *h.holding[id])
	}
	return all
}

// Waits returns all stays in the wait queue, first come first.
func (h *History) Waits() []Wait {
	all := make([]Wait, 0, len(h.demands.waits))
	for _, x := range h.demands.waits {
		all = append(all, *x)
	}
	return all
}

// Wait returns the last stay of a claim in the wait queue, nil if it never waited.
func (h *History) Wait(claim string) *Wait {
	for _, x := range slices.Backward(h.demands.waits) {
		if x.Claim == claim {
			c := *x
			return &c
		}
	}
	return nil
}

// Waiting returns the claims that wait, in order. A demands key may list one that has its slots.
func (h *History) Waiting() (ids []string) {
	for _, w := range h.demands.line {
		if h.holding[w.value.Claim] == nil {
			ids = append(ids, w.value.Claim)
		}
	}
	return ids
}

// Used returns how many slots of a pool are taken.
func (h *History) Used(name string) int { return h.pool(name).used }

// Limit returns the limit of a pool that exists.
func (h *History) Limit(name string) (limit int, ok bool) {
	p := h.pool(name)
	return p.limit, p.known
}

// Peak returns the most slots that were taken when a holder was added while the
// pool had that limit.
func (h *History) Peak(name string, limit int) int { return h.pool(name).peaks[limit] }

// MostKeys returns the most slot keys that hung on one lease at a time.
func (h *History) MostKeys() int { return h.mostKeys }
