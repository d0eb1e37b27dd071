package pool

import (
	"github.com/berthhq/berth/pool/admit"
)

// Space returns the space of all pools. Waiters of an instance that does not answer count until
// their lease ends: only instances that watch the pools know of it.
func (r *Reader) Space() *Space { return r.space(own{}) }

// space returns what the waiters leave of all pools.
func (r *Reader) space(o own) *Space {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view
	s := NewSpace(v.statuses()...)
	queue := v.queue(o)
	waiting := make([]*admit.Waiter, len(queue))
	for i, q := range queue {
		waiting[i] = &admit.Waiter{Needs: v.poolNeeds(q.Pools), Reserve: q.Reserve, Yielded: q.passed}
	}
	capacities := v.capacities()
	d := admit.Admit(capacities, waiting)
	for name, r := range s.pools {
		p := v.pools[name]
		r.open = capacities[p.number].Open && r.limit != Closed
		s.pools[name] = r
		s.Leave(name, d.Free[p.number], d.Reserved[p.number])
	}
	return s
}
