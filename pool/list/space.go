package list

import (
	"strconv"
	"strings"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

// Space returns what the waiters leave of all pools, and what is offered to them.
func (s *State) Space(o Own) *pool.Space {
	statuses := s.Pools(o)
	f := &filling{State: s, index: make(map[string]int, len(statuses)), offered: s.offered(), places: map[instance]int{}}
	for i, p := range statuses {
		f.index[p.Name] = i
		f.capacities = append(f.capacities, admit.Capacity{Limit: p.Limit, Used: p.Claimed, Open: !p.Deleted && !p.Paused && p.Problem == ""})
	}
	queue := s.queueOf(o)
	f.take(queue)
	walk := admit.NewWalk(f.capacities)
	f.admit(walk, queue)
	space := pool.NewSpace(statuses...)
	reserved := walk.Reserved()
	for i, p := range statuses {
		space.Leave(p.Name, walk.Free()[i], reserved[i])
	}
	return space
}

// filling gives waiters the slots that they would get.
type filling struct {
	*State
	index      map[string]int // of each pool
	capacities []admit.Capacity
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

// admit lets waiters have slots in their order, as the dispatcher would.
func (f *filling) admit(walk *admit.Walk, queue []*waiter) {
	for _, w := range queue {
		if !walk.AnyFree() {
			return // nobody behind fits
		}
		one, limited := &admit.Waiter{Reserve: w.Reserve}, false
		for name, n := range w.Pools {
			one.Needs = append(one.Needs, admit.Need{Pool: f.index[name], N: n})
			limited = limited || f.capacities[f.index[name]].Limit != admit.Unlimited
		}
		times := max(0, f.wanted(w))
		if !limited {
			f.uses(w, times)
			continue
		}
		for range times {
			if walk.Next(one) != admit.Fit {
				break
			}
			f.uses(w, 1)
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
