package list

import (
	"strconv"
	"strings"

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
	f := &filling{State: s, statuses: s.statuses(queue), index: map[string]int{}, places: map[instance]int{}}
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
	places     map[instance]int       // of workers, that no offer is for
	inUse      map[class]int          // claims; nil until it is wanted
}

// class is what the steps of a worker's demand have in common with it.
type class struct {
	instance
	needs string
}

// classOf returns the class of what an instance holds or wants.
func classOf(by instance, pools map[string]int, priority int) class {
	var b strings.Builder
	b.WriteString(strconv.Itoa(priority))
	for _, name := range sortedNames(pools) {
		b.WriteString(" " + name + "=" + strconv.Itoa(pools[name]))
	}
	return class{by, b.String()}
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

// take takes the slots and places that are offered.
func (f *filling) take(queue []*waiter) {
	for by, free := range f.State.places {
		f.places[by] = free
	}
	for _, w := range queue {
		n := f.offered[w.ref]
		if n == 0 {
			continue
		}
		for name, slots := range w.Pools {
			f.capacities[f.index[name]].Used += slots * n
		}
		if w.Steps > 0 {
			f.places[w.by] -= n
		}
	}
}

// admit lets waiters have slots in their order, as the dispatcher would, and calls got for each that gets them.
func (f *filling) admit(queue []*waiter, got func(*waiter)) {
	for _, w := range queue {
		if !f.walk.AnyFree() {
			return // nobody behind fits
		}
		one, limited := &admit.Waiter{Reserve: w.Reserve}, false
		for name, n := range w.Pools {
			one.Needs = append(one.Needs, admit.Need{Pool: f.index[name], N: n})
			limited = limited || f.capacities[f.index[name]].Limit != admit.Unlimited
		}
		each, times := 1, f.wanted(w)
		if !limited { // it fits as often as it wants
			each, times = times, min(times, 1)
		}
		for range times {
			if f.walk.Next(one) != admit.Fit {
				break
			}
			f.uses(w, each)
			got(w)
		}
	}
}

// wanted returns how many times a waiter would take its slots now: once, or once for each step that its worker wants and has a
// place for. Demands of instances that are passed, and of workers whose places are not known, keep no slots.
func (f *filling) wanted(w *waiter) int {
	switch {
	case f.passed(w.by):
		return 0
	case w.Steps == 0:
		return 1 - f.offered[w.ref]
	}
	if f.inUse == nil {
		f.inUse = map[class]int{}
		for _, c := range f.claims {
			if r, _, err := c.full(); err == nil {
				f.inUse[classOf(c.by(), r.Pools, r.Priority)]++
			}
		}
	}
	return min(f.places[w.by], w.Steps-f.inUse[classOf(w.by, w.Pools, w.Priority)]-f.offered[w.ref])
}

// uses takes places of a worker.
func (f *filling) uses(w *waiter, n int) {
	if w.Steps > 0 {
		f.places[w.by] -= n
	}
}
