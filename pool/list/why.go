package list

import (
	"slices"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// Why explains one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is a ClaimNotFound problem.
func (s *State) Why(named string) (pool.Why, error) {
	by, id := split(named)
	why := pool.Why{Claim: id}
	var held []holder
	for _, c := range s.heldAs(by, id) {
		held = append(held, holder{c.status(), c})
	}
	if len(held) > 0 {
		why.All = oldestFirst(held)
		mine := slices.IndexFunc(why.All, func(h pool.HolderStatus) bool { return s.own.is(instance{h.Host, h.Instance}) })
		why.Held = &why.All[max(0, mine)]
		return why, nil
	}
	queue := s.waitQueue()
	for i, w := range queue {
		if w.Claim != id || by != (instance{}) && w.by != by {
			continue
		}
		status := w.status()
		why.Waiter, why.Reason = &status, s.reason(queue, i)
		status.Position, status.Reason = why.Reason.Position, why.Reason.Text
		return why, nil
	}
	return pool.Why{}, problem.New(problem.ClaimNotFound, "no claim %q is held or waits", named)
}
