package sidecar

import "github.com/berthhq/berth/internal/problem"

// renew takes that a holder lives, and how that is to be known from now on: by
// the process, if there is one.
func (hs *holders) renew(id string, r RenewRequest, proc *process) (h *holder, err error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h, err = hs.held(id)
	if err == nil && !h.is(r.Fence) {
		err = problem.New(problem.ClaimLost, "claim %q is lost: its id stands for a later claim", id)
	}
	if err == nil {
		err = hs.rebind(h, r, proc)
	}
	if err == nil || problem.CodeOf(err) == problem.StateUnwritable {
		hs.extend(h) // its holder lives, whatever else becomes of the renewal
		h.heard, h.unheardAt = true, 0
	}
	if err != nil {
		proc.close()
		return nil, err
	}
	return h, nil
}

// rebind changes a binding, if the renewal changes it. What can't be kept is refused:
// a later server would go by what was in force before, and so does this one.
func (hs *holders) rebind(h *holder, r RenewRequest, proc *process) error {
	bind, err := h.bind.renewed(r)
	if err != nil {
		return err
	}
	if proc != nil {
		bind.proc = proc.id
	}
	if bind == h.bind {
		proc.close()
		return nil
	}
	if err := hs.save(h, bind); err != nil {
		return problem.New(problem.StateUnwritable, "what claim %q is bound to stays as it was: %w", h.claim.ID, err)
	}
	h.bind = bind
	if proc != nil {
		h.proc.close()
		h.proc, h.killAt = proc, 0
		proc.notify(func() { hs.processEnded(h, proc) })
	}
	return nil
}
