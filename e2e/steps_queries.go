package e2e

// Status is that of a run, empty if there is none.
func (h *StepHistory) Status(run string) string { return h.run(run).status }

// Count is how many instances of a step have a status; of all steps if it is "".
func (h *StepHistory) Count(run, step, status string) int {
	n := 0
	for _, i := range h.run(run).seen {
		if (step == "" || i.ID.Step == step) && i.Status == status {
			n++
		}
	}
	return n
}

// Peak is the most instances of a step that were in flight at a time; of the whole run
// if it is "".
func (h *StepHistory) Peak(run, step string) int {
	r := h.run(run)
	for _, s := range r.steps {
		if s.Name == step {
			return s.peak
		}
	}
	return r.peak
}

// Instances are those of a run that were ever published.
func (h *StepHistory) Instances(run string) []*StepSeen {
	var all []*StepSeen
	for _, i := range h.run(run).seen {
		all = append(all, i)
	}
	return all
}

// Ended tells whether a run has come to its end.
func (h *StepHistory) Ended(run string) bool { return ended(h.Status(run)) }

// ended reports whether the status of a run, or of an instance, is a final one.
func ended(status string) bool {
	return status == "succeeded" || status == "failed" || status == "canceled"
}
