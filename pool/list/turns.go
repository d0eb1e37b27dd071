package list

import (
	"strings"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/admit"
	"github.com/berthhq/berth/pool/wire"
)

// Turns says which claims may take slots now, in the order of all that wait. It does not know of offers unless the state has
// them: a demand keeps the slots for which it has its turn.
type Turns struct {
	walk    *admit.Walk
	index   map[string]int // of each pool
	free    []int          // before the first claim
	own     []wire.DemandRef
	waiting map[string]int // demands, by pool
	others  map[string]int // those of other instances
}

// Part is a state of some pools, which [Part.Add] names.
type Part struct{ *State }

// NewPart returns a state of no pool, at a revision.
func NewPart(keys store.Keys, revision int64) Part {
	return Part{newOf(keys, revision)}
}

// Add records that all of a pool is put, but for what [Part.LeaveOut] says.
func (p Part) Add(pool string) { p.include(pool) }

// LeaveOut records that some slot keys of a pool are not put, and whether some of its demands are not.
func (p Part) LeaveOut(pool string, keys int, demands bool) {
	p.State.pool(pool).unread(keys)
	p.stop(demands)
}

// Named returns the pools that demands name and that were not added, by name.
func (p Part) Named() []string {
	names := map[string]bool{}
	for _, d := range p.demands {
		if d.First != "" {
			names[d.First] = true
			continue
		}
		for name := range d.List[0].Pools { // all of a key have the same
			names[name] = true
		}
	}
	return p.unread(names)
}

// Demands returns how many demands of a pool were put: a key that can't be read, or that refers to another one, is one.
func (p Part) Demands(pool string) (n int) {
	for name, d := range p.demands {
		if name.Pool == pool {
			n += max(1, len(d.List))
		}
	}
	for key := range p.bad {
		if strings.HasPrefix(key, p.keys.DemandsAll(pool)) {
			n++
		}
	}
	return n
}

// Others reports of a claim that is one of several for the same whether another instance has one of them.
func (p Part) Others(host, instanceName string) func(*pool.Request) bool {
	all := map[work]bool{}
	for _, w := range p.waiting() {
		if of, sole := w.work(); sole && w.by != (instance{host, instanceName}) {
			all[of] = true
		}
	}
	return func(r *pool.Request) bool { return all[work{r.Holder.Run, r.Holder.Step, r.Holder.Bind}] }
}

// Turns returns whose turn it is, with the demands of an instance as its own: those that it knows to be over do not count. A pool that
// was not added has free slots for every claim. Slots are kept for no demand that has ended or is incomplete.
func (p Part) Turns(host, instanceName string, over func(wire.DemandRef) bool) *Turns {
	queue := p.waiting()
	f := p.fill(queue, nil)
	t := &Turns{walk: f.walk, index: f.index, free: admit.FreeSlots(f.capacities), waiting: map[string]int{}, others: map[string]int{}}
	mine := instance{host, instanceName}
	for _, w := range queue {
		if !f.wants(w) || w.by == mine && over(w.ref) {
			continue
		}
		for name := range w.Pools {
			if t.waiting[name]++; w.by != mine {
				t.others[name]++
			}
		}
		if t.walk.Next(f.waiterOf(w)) == admit.Fit && w.by == mine {
			t.own = append(t.own, w.ref)
		}
	}
	return t
}

// Own returns the demands of the instance whose turn it is, in order.
func (t *Turns) Own() []wire.DemandRef { return t.own }

// Waiting returns how many demands wait for a pool.
func (t *Turns) Waiting(pool string) int { return t.waiting[pool] }

// Others returns how many of these belong to other instances.
func (t *Turns) Others(pool string) int { return t.others[pool] }

// Next reports whether a claim may take slots behind all that wait, and behind those for which Next was true before.
func (t *Turns) Next(needs map[string]int) bool {
	one := &admit.Waiter{}
	for name, n := range needs {
		i, ok := t.index[name]
		if !ok {
			return false
		}
		one.Needs = append(one.Needs, admit.Need{Pool: i, N: n})
	}
	return t.walk.Next(one) == admit.Fit
}

// Short returns a pool in which a claim would not fit if nobody waited, empty if there is none.
func (t *Turns) Short(needs map[string]int) string {
	for _, name := range sortedNames(needs) {
		if i, ok := t.index[name]; !ok || t.free[i] < needs[name] {
			return name
		}
	}
	return ""
}
