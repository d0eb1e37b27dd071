package run

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// MaxDelay bounds a delay.
const MaxDelay = 365 * 24 * time.Hour

// timeForm is what users are told of times.
const timeForm = "time with its zone, such as 2026-11-22T15:00:00Z or 2026-11-22T16:00:00+01:00"

// Instant is a point in time as users write it: in RFC 3339, to the millisecond.
type Instant struct{ time.Time }

// InstantOf returns a time in the precision of an Instant.
func InstantOf(t time.Time) Instant { return Instant{stampOf(t)} }

// ParseInstant reads a time. Its error is a problem of the field.
func ParseInstant(field, text string) (Instant, error) {
	t, err := time.Parse(time.RFC3339, text)
	if year := t.UTC().Year(); err != nil || year < 1 || year > 9999 {
		return Instant{}, problem.Field(field, "%q is not a %s", problem.Clip(text), timeForm)
	}
	return InstantOf(t), nil
}

// UnmarshalJSON reads the time. Its error is one to which package json adds the field.
func (i *Instant) UnmarshalJSON(data []byte) error {
	var text string
	if string(data) == "null" {
		return nil
	}
	if json.Unmarshal(data, &text) == nil && data[0] == '"' {
		if t, err := ParseInstant("", text); err == nil {
			*i = t
			return nil
		}
	}
	return &json.UnmarshalTypeError{Value: problem.Clip(string(data)), Type: reflect.TypeFor[Instant]()}
}

// TypeName says what an Instant takes, for errors about values of another type.
func (Instant) TypeName() string { return timeForm }

// Until says how long it is until then, as of now: not before 2026-11-22T15:00:00Z (in
// 9m58s). If now is zero, it says the time only.
func (i Instant) Until(now time.Time) string {
	text := "not before " + i.UTC().Format(time.RFC3339)
	if now.IsZero() {
		return text
	}
	if left := i.Sub(now); left > 0 {
		return text + " (in " + max(left.Round(time.Second), time.Second).String() + ")"
	}
	return text + " (now due)"
}

// Deferred reports whether a run is queued and its time has not come, or the coordinator
// has not seen that it has. It is in no place of the queue yet.
func (r *Run) Deferred() bool {
	return r.Status == Queued && !r.NotBefore.IsZero() && r.Joined == 0
}

// Place is the revision that counts in the order of the queue: that of the submission, or
// that of the last run that was submitted before its time came.
func (r *Run) Place() int64 { return max(r.Created, r.Joined) }

// JoinedAt is when a run joined the queue, or will.
func (r *Run) JoinedAt() time.Time {
	if r.NotBefore.After(r.QueuedAt) {
		return r.NotBefore.Time
	}
	return r.QueuedAt
}

// BlockAt returns why a run is still queued, as of now; nil if that is not known.
func (r *Run) BlockAt(now time.Time) *Block {
	if r.Deferred() {
		return &Block{Kind: BlockNotBefore, Text: r.NotBefore.Until(now)}
	}
	return r.Block
}
