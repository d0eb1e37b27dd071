package list

import (
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is a ClaimNotFound problem.
func (s *State) Why(named string, o Own) (pool.Why, error) {
	by, id := split(named)
	why := pool.Why{Claim: id}
	for _, c := range s.heldAs(by, id) {
		h := c.status()
		why.All = append(why.All, h)
		if why.Held == nil || o.is(c.by()) {
			why.Held = &h
		}
	}
	if why.Held != nil {
		return why, nil
	}
	queue := s.queueOf(o)
	for i, w := range queue {
		if w.Claim != id || by != (instance{}) && w.by != by {
			continue
		}
		status := w.status()
		why.Waiter, why.Reason = &status, s.reason(queue, i, o)
		status.Position, status.Reason = why.Reason.Position, why.Reason.Text
		return why, nil
	}
	return pool.Why{}, problem.New(problem.ClaimNotFound, "no claim %q is held or waits", named)
}
