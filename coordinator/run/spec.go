package run

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Bounds of a [Spec].
const (
	// MaxTags and MaxLabels bound the tags and labels of a run.
	MaxTags, MaxLabels = 32, 32
	// MaxText bounds names, and keys and values of tags, in bytes. Labels and ids are those of
	// claims.
	MaxText = 128
	// MaxID bounds ids, in bytes.
	MaxID = pool.MaxID
	// MaxWhy bounds why a run was canceled or has failed, in bytes.
	MaxWhy = 4096
	// maxSpec bounds the encoded spec, in bytes.
	maxSpec = 32 << 10
	// MaxSteps bounds MaxConcurrentSteps and MaxStepsPerTick.
	MaxSteps = 1_000_000
	// maxTraceparent and maxTracestate bound the trace context, in bytes.
	maxTraceparent, maxTracestate = 64, 512
	// MaxRetries bounds how often a run is queued again.
	MaxRetries = 100
)

// Spec is the submitted part of a run, which never changes.
type Spec struct {
	// Name is for people; it need not be unique.
	Name string `json:"name,omitempty"`
	// Tags are what limits apply to.
	Tags map[string]string `json:"tags,omitempty"`
	// Labels are for people and programs; limits do not apply to them.
	Labels map[string]string `json:"labels,omitempty"`
	// Owner is a free text.
	Owner string `json:"owner,omitempty"`
	// SubmittedBy is the identity that submitted the run, such as "user:alice": see package
	// access. It never comes from what was submitted.
	SubmittedBy string `json:"submitted_by,omitempty"`
	// Traceparent and Tracestate are the trace context of the submission, as W3C defines it, to
	// which the spans of its steps belong. Submissions that differ in them only are the same.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	// Priority is from [pool.MinPriority] to [pool.MaxPriority]; higher is first.
	Priority int `json:"priority,omitempty"`
	// Retries is how often the run is queued again after its executor was lost.
	Retries int `json:"retries,omitempty"`
	// NotBefore is when it joins the queue; zero is at once. Delay is that time relative to
	// the submission, by the clock of the process that writes the record. Submissions with
	// the same delay are the same.
	NotBefore Instant       `json:"not_before,omitzero"`
	Delay     time.Duration `json:"delay,omitempty"`
	// Pools are the slots of a run without steps: it is admitted together with them, and
	// holds them until it ends.
	Pools map[string]int `json:"pools,omitempty"`

	// MaxConcurrentSteps bounds the step instances in flight, and MaxStepsPerTick those
	// that one tick publishes; 0 is no bound.
	MaxConcurrentSteps int `json:"max_concurrent_steps,omitempty"`
	MaxStepsPerTick    int `json:"max_steps_per_tick,omitempty"`
	// Steps is the number of step instances, and Digest identifies the steps: both are set
	// by the submission of steps. A run without steps has one executor.
	Steps  int    `json:"steps,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// ValidateID returns a problem if id cannot be that of a run. Ids of claims have the same
// form.
func ValidateID(id string) error {
	err := pool.ValidateID(id)
	if err != nil && len(id) <= pool.MaxID {
		return problem.Field("id", "%q is not a run id: use 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(id), pool.MaxID)
	}
	return err
}

// Validate returns a problem that names the field if the spec is not valid.
func (s *Spec) Validate() error {
	if err := validateText("name", s.Name); err != nil {
		return err
	}
	if err := validateText("owner", s.Owner); err != nil {
		return err
	}
	if len(s.SubmittedBy) > access.MaxIdentity {
		return problem.Field("submitted_by", "%q is %d bytes long: use at most %d", problem.Clip(s.SubmittedBy), len(s.SubmittedBy), access.MaxIdentity)
	}
	if len(s.Traceparent) > maxTraceparent {
		return problem.Field("traceparent", "it is %d bytes long: use at most %d", len(s.Traceparent), maxTraceparent)
	}
	if len(s.Tracestate) > maxTracestate {
		return problem.Field("tracestate", "it is %d bytes long: use at most %d", len(s.Tracestate), maxTracestate)
	}
	if s.Priority < pool.MinPriority || s.Priority > pool.MaxPriority {
		return problem.Field("priority", "%d is out of range: use %d to %d", s.Priority, pool.MinPriority, pool.MaxPriority)
	}
	if s.Retries < 0 || s.Retries > MaxRetries {
		return problem.Field("retries", "%d is out of range: use 0 to %d", s.Retries, MaxRetries)
	}
	if s.Delay < 0 || s.Delay > MaxDelay {
		return problem.Field("delay", "%s is out of range: use 0s (none) to %s", s.Delay, MaxDelay)
	}
	for field, bound := range map[string]int{"max_concurrent_steps": s.MaxConcurrentSteps, "max_steps_per_tick": s.MaxStepsPerTick} {
		if bound < 0 || bound > MaxSteps {
			return problem.Field(field, "%d is out of range: use 1 to %d, and 0 (no bound)", bound, MaxSteps)
		}
	}
	if s.Steps > 0 && len(s.Pools) > 0 {
		return problem.Field("pools", "a run with steps cannot hold slots itself: its steps have pools")
	}
	if len(s.Pools) > 0 {
		if err := pool.ValidateSlots(s.Pools); err != nil {
			return err
		}
	}
	if len(s.Tags) > MaxTags {
		return problem.Field("tags", "%d tags are too many: use at most %d", len(s.Tags), MaxTags)
	}
	plain := *s
	plain.Traceparent, plain.Tracestate = "", ""
	if size := len(store.Encode(plain)); size > maxSpec {
		return problem.New(problem.Invalid, "names, tags and labels are %d bytes long as JSON: use at most %d", size, maxSpec)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Tags)) {
		if err := ValidateTag(key, s.Tags[key]); err != nil {
			return err
		}
	}
	if len(s.Labels) > MaxLabels {
		return problem.Field("labels", "%d labels are too many: use at most %d", len(s.Labels), MaxLabels)
	}
	if err := pool.ValidateLabels(s.Labels); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		for _, text := range []string{key, s.Labels[key]} {
			if err := validateLine("labels."+problem.Clip(key), text); err != nil {
				return err
			}
		}
	}
	return nil
}

// ValidateNew is [Spec.Validate] for a new submission. It is stricter than for existing
// records.
func (s *Spec) ValidateNew() error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := s.validateLines(); err != nil {
		return err
	}
	switch {
	case s.Delay > 0 && !s.NotBefore.IsZero():
		return problem.Field("delay", "delay and not_before cannot be used together")
	case s.Steps > 0 && s.Retries > 0:
		return problem.Field("retries", "a run with steps has no retries: its steps have")
	case s.Steps == 0 && s.MaxConcurrentSteps != 0:
		return problem.Field("max_concurrent_steps", "the run has no steps")
	case s.Steps == 0 && s.MaxStepsPerTick != 0:
		return problem.Field("max_steps_per_tick", "the run has no steps")
	}
	return nil
}

// validateLines returns a problem for texts that would break the lists of runs.
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

// ValidateTag returns a problem if a tag is not valid. A key has no '=', so that tags and
// limits can be written as KEY=VALUE; a value is not '*', which means each value.
func ValidateTag(key, value string) error {
	field := "tags." + problem.Clip(key)
	switch {
	case key == "":
		return problem.Field("tags", "a tag has no key")
	case strings.ContainsRune(key, '='):
		return problem.Field(field, "a key cannot contain '='")
	case value == "":
		return problem.Field(field, "a tag needs a value")
	case value == "*":
		return problem.Field(field, "'*' is not allowed: in limits it means each value")
	}
	for _, text := range []string{key, value} {
		if err := validateText(field, text); err != nil {
			return err
		}
	}
	return nil
}

// validateText returns a problem if s is too long or not one printable line.
func validateText(field, s string) error {
	if len(s) > MaxText {
		return problem.Field(field, "it has %d bytes: use at most %d", len(s), MaxText)
	}
	return validateLine(field, s)
}

// validateLine returns a problem if s is not one printable line.
func validateLine(field, s string) error {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return problem.Field(field, "%q has characters that cannot be printed: use one line of text", problem.Clip(s))
	}
	return nil
}

// validateWhy returns a problem if a reason is too long.
func validateWhy(field, why string) error {
	if len(why) > MaxWhy {
		return problem.Field(field, "it is %d bytes long: use at most %d", len(why), MaxWhy)
	}
	return nil
}

// sameAs reports whether two submissions are the same, by the same submitter.
func (s *Spec) sameAs(o *Spec) bool { return s.SubmittedBy == o.SubmittedBy && s.asks(o) }

// asks reports whether two submissions ask for the same.
func (s *Spec) asks(o *Spec) bool {
	return s.Name == o.Name && s.Owner == o.Owner && s.Priority == o.Priority && s.Retries == o.Retries &&
		s.MaxConcurrentSteps == o.MaxConcurrentSteps && s.MaxStepsPerTick == o.MaxStepsPerTick &&
		s.Steps == o.Steps && s.Digest == o.Digest && s.Delay == o.Delay &&
		(s.Delay > 0 || s.NotBefore.Equal(o.NotBefore.Time)) &&
		maps.Equal(s.Tags, o.Tags) && maps.Equal(s.Pools, o.Pools) && maps.Equal(s.Labels, o.Labels)
}
