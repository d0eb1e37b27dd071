package pool

import (
	"context"
	"maps"
	"slices"

	"github.com/berthhq/berth/pool/admit"
)

// Prospects reports of each request whether the slots that it asks for are free for it: whether
// it would be granted now, after those before it in the list, if its [Place] were free. A
// request whose claim waits already keeps its place in the wait queue. Slots of claims that are
// being released together with other writes count as free. Of pools that this instance does not
// know yet, the answer is true for a new request: only the request itself finds out.
func (e *Engine) Prospects(ctx context.Context, asked []*Request) ([]bool, error) {
	return query(ctx, e, func(c *core) []bool { return c.prospects(asked) })
}

// prospects is [Engine.Prospects].
func (c *core) prospects(asked []*Request) []bool {
	free := make([]bool, len(asked))
	candidates := slices.Clone(c.all())
	index := map[*admit.Waiter]int{}
	for i, r := range asked {
		e := c.entries[r.ID]
		switch {
		case e == nil || e.state == releasing:
			if !c.knows(r.Slots) {
				free[i] = true
				continue
			}
			e = c.prospective(r)
			candidates = append(candidates, candidate{order: e.order, e: e})
		case e.state != queued || c.defers(e):
			continue // it is being granted, or another claim waits for the same thing
		}
		switch c.entryRoute(e) {
		case routeQueue:
			e.waiting.Yielded = true // another instance grants it, when it has waited
		case routeUnknown:
			free[i], e.waiting.Yielded = e.unjudged, true
		default:
			e.waiting.Mine, e.waiting.Yielded = true, !c.ready(e) || c.defers(e)
			index[e.waiting] = i
		}
	}
	capacities := c.freeing()
	left := admit.FreeSlots(capacities)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(index)), func(w *admit.Waiter) bool { return admit.Fits(left, w) }) {
		return free // whichever is first
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.order.Compare(b.order) })
	waiting := make([]*admit.Waiter, len(candidates))
	for i, cd := range candidates {
		waiting[i] = cd.waiting()
	}
	for _, i := range admit.Admit(capacities, waiting).Grants {
		if n, ok := index[waiting[i]]; ok {
			free[n] = true
		}
	}
	return free
}

// prospective makes an entry of a request as it would be in the wait queue, if it came now.
func (c *core) prospective(r *Request) *entry {
	own := *r
	e := newEntry(&own, c.host, c.instance)
	e.order.Since = e.since(c.seen)
	if kept, ok := c.places[r.ID]; ok {
		e.order.Since, e.reserve = kept.since, kept.reserve
	}
	e.waiting = &admit.Waiter{Needs: c.view.poolNeeds(own.Slots)}
	return e
}

// knows reports whether the state of pools is known.
func (c *core) knows(slots map[string]int) bool {
	for name := range slots {
		if p := c.view.pools[name]; p == nil || p.unseen {
			return false
		}
	}
	return true
}

// freeing returns the capacities of the pools, without the claims that are being released
// together with other writes.
func (c *core) freeing() []admit.Capacity {
	capacities := c.view.capacities()
	for _, e := range c.entries {
		if e.state != releasing || e.combined == nil {
			continue
		}
		for _, s := range e.slots {
			if held, ok := c.view.slot(s.ref); ok && held.claim.id == e.req.ID {
				capacities[c.view.pool(s.ref.pool).number].Used -= held.n
			}
		}
	}
	return capacities
}
