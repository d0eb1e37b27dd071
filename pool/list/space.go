package list

import (
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

// Space returns what the waiters leave of all pools, and what is offered to them.
func (s *State) Space() *pool.Space {
	queue := s.waitQueue()
	f := s.fill(queue, nil)
	f.admit(queue, func(*waiter) {})
	space := pool.NewSpace(f.statuses...)
	reserved := f.walk.Reserved()
	for i, p := range f.statuses {
		space.Leave(p.Name, f.walk.Free()[i], reserved[i])
	}
	return space
}

// fill returns what gives the waiters of a queue their slots. What is offered is taken. The slots of freed, by pool, are free.
func (s *State) fill(queue []*waiter, freed map[string]int) *filling {
	f := &filling{State: s, statuses: s.statuses(queue), index: map[string]int{}}
	for i, p := range f.statuses {
		f.index[p.Name] = i
		f.capacities = append(f.capacities, admit.Capacity{Limit: p.Limit, Used: p.Claimed - freed[p.Name], Open: !p.Deleted && !p.Paused && p.Problem == ""})
	}
	f.offered = f.offers()
	f.take(queue)
	f.walk = admit.NewWalk(f.capacities)
	return f
}

// filling gives waiters the slots that they would get.
type filling struct {
	*State
	statuses   []pool.Status
	index      map[string]int // of each pool
	capacities []admit.Capacity
	walk       *admit.Walk
	offered    map[wire.DemandRef]int // open offers
}

// offers counts the open offers of each demand.
func (f *filling) offers() map[wire.DemandRef]int {
	n := map[wire.DemandRef]int{}
	for _, list := range f.State.offers {
		for _, o := range list {
			if len(o.Take) > 0 {
				n[o.Demand]++
			}
		}
	}
	return n
}

// take takes the slots that are offered.
func (f *filling) take(queue []*waiter) {
	for _, w := range queue {
		for name, slots := range w.Pools {
			f.capacities[f.index[name]].Used += slots * f.offered[w.ref]
		}
	}
}

// admit lets waiters have slots in their order, as the dispatcher would, and calls got for each that gets them.
func (f *filling) admit(queue []*waiter, got func(*waiter)) {
	for _, w := range queue {
		if !f.walk.AnyFree() {
			return // nobody behind fits
		}
		if f.wants(w) && f.walk.Next(f.waiterOf(w)) == admit.Fit {
			got(w)
		}
	}
}

// waiterOf returns what a walk needs to know of a waiter in the pools that are known.
func (f *filling) waiterOf(w *waiter) *admit.Waiter {
	one := &admit.Waiter{Reserve: w.Reserve}
	for name, n := range w.Pools {
		if i, ok := f.index[name]; ok && f.knows(name) {
			one.Needs = append(one.Needs, admit.Need{Pool: i, N: n})
		}
	}
	return one
}

// wants reports whether slots are kept for a waiter: none are for one that has an offer, or of an instance that is passed.
func (f *filling) wants(w *waiter) bool { return !f.passed(w.by) && f.offered[w.ref] == 0 }
