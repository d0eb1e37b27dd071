package list

import (
	"strings"

	"github.com/berthhq/berth/pool"
)

// Claims returns all claims that hold slots, the oldest first, and all that wait, in the order of the wait queue.
func (s *State) Claims() ([]pool.HolderStatus, []pool.WaiterStatus) {
	all := make([]holder, 0, len(s.claims))
	for _, c := range s.claims {
		all = append(all, holder{c.status(), c})
	}
	return oldestFirst(all), s.waiters("", s.waitQueue())
}

// holders returns the claims that hold slots of a pool, the oldest first.
func (s *State) holders(name string) []pool.HolderStatus {
	p := s.pools[name]
	if p == nil {
		return nil
	}
	held := map[*claim]int{}
	for _, is := range p.slots {
		held[is.claim] += is.n
	}
	all := make([]holder, 0, len(held))
	for c, n := range held {
		h := c.status()
		h.Slots = n
		all = append(all, holder{h, c})
	}
	return oldestFirst(all)
}

// waiters returns the waiters of a queue in order; with a pool, only those that wait for it. A position counts those that
// wait for one of the same pools.
func (s *State) waiters(name string, queue []*waiter) (all []pool.WaiterStatus) {
	places := positions{byPools: map[string]int{}}
	for _, q := range queue {
		w := q.status()
		if name != "" {
			if w.Slots = w.Pools[name]; w.Slots == 0 {
				continue
			}
		}
		if _, w.Reason = s.blocked(q); w.Reason == "" {
			w.Reason = "waiting its turn"
		}
		if w.Position = len(all) + 1; name == "" {
			w.Position = places.next(w.Pools)
		}
		all = append(all, w)
	}
	return all
}

// positions counts waiters by the pools that they wait for.
type positions struct {
	earlier []earlier
	byPools map[string]int // index in earlier
}

type earlier struct {
	pools map[string]int
	n     int
}

// next returns the position of the next waiter among those that wait for one of its pools.
func (p *positions) next(pools map[string]int) int {
	position := 1
	for _, e := range p.earlier {
		if overlap(e.pools, pools) {
			position += e.n
		}
	}
	names := strings.Join(sortedNames(pools), ",")
	at, known := p.byPools[names]
	if !known {
		at = len(p.earlier)
		p.byPools[names], p.earlier = at, append(p.earlier, earlier{pools: pools})
	}
	p.earlier[at].n++
	return position
}

// overlap reports whether two claims have a pool in common.
func overlap(a, b map[string]int) bool {
	for name := range a {
		if _, ok := b[name]; ok {
			return true
		}
	}
	return false
}
