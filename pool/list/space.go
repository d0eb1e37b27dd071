package list

import (
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

// Space returns what the waiters leave of all pools, and what is offered to them.
func (s *State) Space(o Own) *pool.Space {
	statuses := s.Pools(o)
	space := pool.NewSpace(statuses...)
	index := make(map[string]int, len(statuses))
	capacities := make([]admit.Capacity, len(statuses))
	for i, p := range statuses {
		index[p.Name] = i
		capacities[i] = admit.Capacity{Limit: p.Limit, Used: p.Claimed, Open: !p.Deleted && !p.Paused && p.Problem == ""}
	}
	offered := s.offered()
	var waiting []*admit.Waiter
	for _, w := range s.queueOf(o) {
		needs := make([]admit.Need, 0, len(w.Pools))
		for name, n := range w.Pools {
			capacities[index[name]].Used += n * offered[w.ref]
			needs = append(needs, admit.Need{Pool: index[name], N: n})
		}
		one := &admit.Waiter{Needs: needs, Reserve: w.Reserve}
		for range min(s.wanted(w)-offered[w.ref], most(capacities, needs)) {
			waiting = append(waiting, one)
		}
	}
	d := admit.Admit(capacities, waiting)
	for i, p := range statuses {
		space.Leave(p.Name, d.Free[i], d.Reserved[i])
	}
	return space
}

// most returns how many times needs are worth to be decided about: once more than they can fit.
func most(capacities []admit.Capacity, needs []admit.Need) int {
	n, limited := pool.MaxLimit, false
	for _, need := range needs {
		if c := capacities[need.Pool]; c.Limit != admit.Unlimited {
			n, limited = min(n, 1+max(0, c.Limit-c.Used)/need.N), true
		}
	}
	if !limited {
		return 1
	}
	return n
}

// offered counts the open offers of each demand.
func (s *State) offered() map[wire.DemandRef]int {
	n := map[wire.DemandRef]int{}
	for _, list := range s.offers {
		for _, o := range list {
			if len(o.Take) > 0 {
				n[o.Demand]++
			}
		}
	}
	return n
}

// wanted returns how many times a waiter would take its slots now: once, or once for each step that its worker has a place
// for. Demands of instances that are passed keep no slots.
func (s *State) wanted(w *waiter) int {
	switch {
	case s.passed(w.by):
		return 0
	case w.Steps == 0:
		return 1
	}
	return max(0, min(s.places[w.by], w.Steps-s.ended[w.ref]))
}
