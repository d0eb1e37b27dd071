package pool

import (
	"maps"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

// Holder identifies the owner of a claim.
type Holder struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// ClaimedBy is the identity that has made the claim, such as "user:alice".
	ClaimedBy string            `json:"claimed_by,omitempty"`
	Run       string            `json:"run,omitempty"`
	Step      string            `json:"step,omitempty"`
	PID       int               `json:"pid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Bind says in the words of the instance how it knows that the holder
	// lives, so that it still knows after a restart.
	Bind string `json:"bind,omitempty"`
}

func (h *Holder) validate() error {
	if err := validateLength("run_id", h.Run, MaxID); err != nil {
		return err
	}
	if err := validateLength("step_key", h.Step, MaxID); err != nil {
		return err
	}
	if len(h.ClaimedBy) > access.MaxIdentity {
		return problem.Field("claimed_by", "%q is %d bytes long: use at most %d", problem.Clip(h.ClaimedBy), len(h.ClaimedBy), access.MaxIdentity)
	}
	if h.PID < 0 {
		return problem.Field("pid", "%d is no process", h.PID)
	}
	if len(h.Labels) > MaxLabels {
		return problem.Field("labels", "%d labels are too many: use at most %d", len(h.Labels), MaxLabels)
	}
	return ValidateLabels(h.Labels)
}

// ValidateLabels refuses labels without a name, and labels that are too long.
func ValidateLabels(labels map[string]string) error {
	total := 0
	for _, k := range sortedKeys(labels) {
		if k == "" {
			return problem.Field("labels", "a label has no name")
		}
		if len(k) > MaxLabel {
			return problem.Field("labels", "the name %q has %d bytes: use at most %d", problem.Clip(k), len(k), MaxLabel)
		}
		if err := validateLength("labels."+problem.Clip(k), labels[k], MaxLabel); err != nil {
			return err
		}
		total += len(k) + len(labels[k])
	}
	if total > maxLabelBytes {
		return problem.Field("labels", "together they have %d bytes: use at most %d", total, maxLabelBytes)
	}
	return nil
}

// validateLines refuses texts that would garble the lists in which holders are shown.
func (h *Holder) validateLines() error {
	if err := ValidateLine("run_id", h.Run); err != nil {
		return err
	}
	if err := ValidateLine("step_key", h.Step); err != nil {
		return err
	}
	for _, k := range sortedKeys(h.Labels) {
		if err := ValidateLine("labels", k); err != nil {
			return err
		}
		if err := ValidateLine("labels."+k, h.Labels[k]); err != nil {
			return err
		}
	}
	return nil
}

func (h *Holder) sameAs(o *Holder) bool {
	texts := func(h *Holder) [4]string { return [4]string{h.ClaimedBy, h.Run, h.Step, h.Bind} }
	return texts(h) == texts(o) && h.PID == o.PID && maps.Equal(h.Labels, o.Labels)
}
