package e2e

import (
	"fmt"
	"slices"
)

// Violations are the promises that were broken.
func (h *StepHistory) Violations() []Violation {
	h.judgeAll()
	return append(slices.Clone(h.violations), h.together()...)
}

// together counts what instances have of pools whenever one is taken.
func (h *StepHistory) together() (found []Violation) {
	for _, at := range h.turns {
		if at.unused {
			continue
		}
		for pool := range at.took {
			used := 0
			for _, x := range h.turns {
				if !x.unused && x.from <= at.from && (x.to == 0 || x.to > at.from) {
					used += x.took[pool]
				}
			}
			if limit := at.limits[pool]; limit != Unlimited && used > limit {
				found = append(found, Violation{at.from, StepPools, fmt.Sprintf("%d of %d of pool %s are taken by instances", used, limit, pool)})
			}
		}
	}
	return found
}

// judgeAll judges a revision when all of it was taken.
func (h *StepHistory) judgeAll() {
	for i := range h.touched {
		h.judge(i)
	}
	// A worker keeps the slots of an instance that has ended for the next one, so their keys show
	// whose lease they are on, and not for which instance.
	for t := range h.taken {
		if few := h.needed[t] - h.had[t]; few > 0 {
			h.violate(StepPools, "instances are taken with %d slots of pool %s too few", few, t.pool)
		}
	}
	for t := range h.freed { // by force: the instance is lost, and does not need them
		if !h.taken[t] {
			h.needed[t] = min(h.needed[t], h.had[t])
		}
	}
	clear(h.touched)
	clear(h.taken)
	clear(h.freed)
}

// judge holds what is known of an instance against itself.
func (h *StepHistory) judge(i *StepSeen) {
	s, r := i.step, i.run
	s.peak, r.peak = max(s.peak, s.inFlight), max(r.peak, r.inFlight)
	if s.Concurrency > 0 && s.inFlight > s.Concurrency {
		h.violate(StepWindows, "%d of %d of step %s are in flight", s.inFlight, s.Concurrency, s.Name)
	}
	if r.most > 0 && r.inFlight > r.most {
		h.violate(StepWindows, "%d of %d of run %s are in flight", r.inFlight, r.most, r.id)
	}
	if s.highest+1 != s.published {
		h.violate(StepOrder, "%d of step %s are published, up to index %d", s.published, s.Name, s.highest)
	}
	for host, rev := range i.active {
		if i.Status != "running" || rev != i.rev || host != i.by || len(i.active) > 1 {
			h.violate(StepAlone, "%s is %s since %d by %q, and is seen on %v", i.ID, i.Status, i.rev, i.by, i.active)
		}
	}
	if i.Status == "running" && i.rev == h.rev && len(i.active) == 0 {
		h.violate(StepAlone, "%s is started, and its executor is not seen", i.ID)
	}
	queued := len(i.ready) == 1
	for _, rev := range i.ready {
		queued = queued && rev == i.rev
	}
	if i.Status == "scheduled" && !queued || i.Status != "scheduled" && len(i.ready) > 0 {
		h.violate(StepQueued, "%s is %s since %d, and stands at %v", i.ID, i.Status, i.rev, i.ready)
	}
}
