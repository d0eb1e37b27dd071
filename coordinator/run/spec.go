package run

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Bounds of what can be submitted.
const (
	// MaxTags and MaxLabels are how many a run can carry.
	MaxTags, MaxLabels = 32, 32
	// MaxText bounds names, and keys and values of tags and labels, in bytes.
	MaxText = 128
	// MaxWhy bounds why a run was canceled or has failed, in bytes.
	MaxWhy = 4096
	// maxSpec bounds all of it as it is written, in bytes: plenty for texts that need
	// no escapes.
	maxSpec = 32 << 10
	// MaxSteps bounds the bounds on step instances.
	MaxSteps = 1_000_000
	// MaxRetries bounds how often a run is queued again.
	MaxRetries = 100
)

// Spec is what is submitted: all of a run that never changes.
type Spec struct {
	// Name is for people; many runs can have the same.
	Name string `json:"name,omitempty"`
	// Tags are what limits are about.
	Tags map[string]string `json:"tags,omitempty"`
	// Labels are for people and programs; no limit looks at them.
	Labels map[string]string `json:"labels,omitempty"`
	// Owner is who it belongs to, in any words.
	Owner string `json:"owner,omitempty"`
	// Priority from [pool.MinPriority] to [pool.MaxPriority]; higher goes first.
	Priority int `json:"priority,omitempty"`
	// Retries is how often the run is queued again after its executor was lost.
	Retries int `json:"retries,omitempty"`
	// NotBefore is when it joins the queue; zero is at once. Delay is how long that is after
	// the submission, if it was asked for so: whoever writes the record turns it into a time,
	// by its own clock. Asking again for the same delay is asking for the same.
	NotBefore Instant       `json:"not_before,omitzero"`
	Delay     time.Duration `json:"delay,omitempty"`
	// Pools are the slots that it needs as a whole: it is admitted together with
	// them, and holds them until it ends.
	Pools map[string]int `json:"pools,omitempty"`

	// MaxConcurrentSteps bounds the step instances in flight, and MaxStepsPerTick those
	// that one tick publishes; 0 is no bound.
	MaxConcurrentSteps int `json:"max_concurrent_steps,omitempty"`
	MaxStepsPerTick    int `json:"max_steps_per_tick,omitempty"`
	// Steps is how many step instances it has, and Digest tells its steps from others:
	// both are set when steps are submitted with it. A run without steps has an executor
	// of its own.
	Steps  int    `json:"steps,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// ValidateID refuses what can't be the id of a run: the same as for claims.
func ValidateID(id string) error {
	if pool.ValidateID(id) != nil {
		return problem.Field("id", "%q is no id of a run: allowed are 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(id), pool.MaxText)
	}
	return nil
}

// Validate refuses what can't be submitted, and names the field.
func (s *Spec) Validate() error {
	if err := validateText("name", s.Name); err != nil {
		return err
	}
	if err := validateText("owner", s.Owner); err != nil {
		return err
	}
	if s.Priority < pool.MinPriority || s.Priority > pool.MaxPriority {
		return problem.Field("priority", "%d is out of range: allowed are %d to %d", s.Priority, pool.MinPriority, pool.MaxPriority)
	}
	if s.Retries < 0 || s.Retries > MaxRetries {
		return problem.Field("retries", "%d is out of range: allowed are 0 to %d", s.Retries, MaxRetries)
	}
	if s.Delay < 0 || s.Delay > MaxDelay {
		return problem.Field("delay", "%s is out of range: allowed are 0s (none) to %s", s.Delay, MaxDelay)
	}
	for field, bound := range map[string]int{"max_concurrent_steps": s.MaxConcurrentSteps, "max_steps_per_tick": s.MaxStepsPerTick} {
		if bound < 0 || bound > MaxSteps {
			return problem.Field(field, "%d is out of range: allowed are 1 to %d, and 0 (no bound)", bound, MaxSteps)
		}
	}
	if s.Steps > 0 && len(s.Pools) > 0 {
		return problem.Field("pools", "a run with steps can't hold slots as a whole: name the pools with its steps")
	}
	if len(s.Pools) > 0 {
		if err := pool.ValidateSlots(s.Pools); err != nil {
			return err
		}
	}
	if len(s.Tags) > MaxTags {
		return problem.Field("tags", "%d tags are too many: allowed are %d", len(s.Tags), MaxTags)
	}
	if size := len(store.Encode(s)); size > maxSpec {
		return problem.New(problem.Invalid, "names, tags and labels are %d bytes long as JSON: allowed are %d", size, maxSpec)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Tags)) {
		if err := ValidateTag(key, s.Tags[key]); err != nil {
			return err
		}
	}
	if len(s.Labels) > MaxLabels {
		return problem.Field("labels", "%d labels are too many: allowed are %d", len(s.Labels), MaxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		if key == "" {
			return problem.Field("labels", "a label has no name")
		}
		for _, text := range []string{key, s.Labels[key]} {
			if err := validateText("labels."+problem.Clip(key), text); err != nil {
				return err
			}
		}
	}
	return nil
}

// ValidateNew is [Spec.Validate] for what is submitted now: besides, it refuses what has
// no meaning. Records that were written before may have it.
func (s *Spec) ValidateNew() error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := s.validateLines(); err != nil {
		return err
	}
	switch {
	case s.Delay > 0 && !s.NotBefore.IsZero():
		return problem.Field("delay", "it is given beside not_before: allowed is one of the two")
	case s.Steps > 0 && s.Retries > 0:
		return problem.Field("retries", "a run with steps is not tried again as a whole: its steps have retries of their own")
	case s.Steps == 0 && s.MaxConcurrentSteps != 0:
		return problem.Field("max_concurrent_steps", "it bounds steps, and the run has none")
	case s.Steps == 0 && s.MaxStepsPerTick != 0:
		return problem.Field("max_steps_per_tick", "it bounds steps, and the run has none")
	}
	return nil
}

// validateLines refuses texts that would garble the lists in which runs are shown.
func (s *Spec) validateLines() error {
	if err := pool.ValidateLine("name", s.Name); err != nil {
		return err
	}
	if err := pool.ValidateLine("owner", s.Owner); err != nil {
		return err
	}
	for what, pairs := range map[string]map[string]string{"tags": s.Tags, "labels": s.Labels} {
		for _, key := range slices.Sorted(maps.Keys(pairs)) {
			if err := pool.ValidateLine(what, key); err != nil {
				return err
			}
			if err := pool.ValidateLine(what+"."+problem.Clip(key), pairs[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ValidateTag refuses what can't be a tag. A key has no '=', so that tags and
// limits can be written as KEY=VALUE; a value is not '*', which stands for each.
func ValidateTag(key, value string) error {
	field := "tags." + problem.Clip(key)
	switch {
	case key == "":
		return problem.Field("tags", "a tag has no key")
	case strings.ContainsRune(key, '='):
		return problem.Field(field, "a key can't have a '='")
	case value == "":
		return problem.Field(field, "a tag needs a value")
	case value == "*":
		return problem.Field(field, "'*' is no value: in limits it stands for each value")
	}
	for _, text := range []string{key, value} {
		if err := validateText(field, text); err != nil {
			return err
		}
	}
	return nil
}

// validateText refuses what does not fit into a line of a list.
func validateText(field, s string) error {
	switch {
	case len(s) > MaxText:
		return problem.Field(field, "%q is %d bytes long: allowed are %d", problem.Clip(s), len(s), MaxText)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return problem.Field(field, "%q has characters that can't be shown: allowed is text of one line", problem.Clip(s))
	}
	return nil
}

// validateWhy refuses a reason that is no page of text.
func validateWhy(field, why string) error {
	if len(why) > MaxWhy {
		return problem.Field(field, "it is %d bytes long: allowed are %d", len(why), MaxWhy)
	}
	return nil
}

// sameAs tells whether two submissions ask for the same.
func (s *Spec) sameAs(o *Spec) bool {
	return s.Name == o.Name && s.Owner == o.Owner && s.Priority == o.Priority && s.Retries == o.Retries &&
		s.MaxConcurrentSteps == o.MaxConcurrentSteps && s.MaxStepsPerTick == o.MaxStepsPerTick &&
		s.Steps == o.Steps && s.Digest == o.Digest && s.Delay == o.Delay &&
		(s.Delay > 0 || s.NotBefore.Equal(o.NotBefore.Time)) &&
		maps.Equal(s.Tags, o.Tags) && maps.Equal(s.Pools, o.Pools) && maps.Equal(s.Labels, o.Labels)
}
