package run

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// Status is that of a run.
type Status string

// The statuses.
const (
	// Storing: its steps are being written, and it is not queued yet.
	Storing Status = "storing"
	// Queued: it waits to be admitted.
	Queued Status = "queued"
	// NotStarted: it was admitted, and waits for an executor.
	NotStarted Status = "not_started"
	// Running: an executor has started it.
	Running Status = "running"
	// Succeeded, Failed and Canceled are its ends.
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
	Canceled  Status = "canceled"
)

// Statuses are all statuses, in the order in which a run has them.
var Statuses = []Status{Storing, Queued, NotStarted, Running, Succeeded, Failed, Canceled}

// InProgress reports whether a run counts against the limits.
func (s Status) InProgress() bool { return s == NotStarted || s == Running }

// Ended reports whether a run has ended.
func (s Status) Ended() bool { return s == Succeeded || s == Failed || s == Canceled }

// ParseStatus parses a status.
func ParseStatus(text string) (Status, error) {
	if s := Status(text); slices.Contains(Statuses, s) {
		return s, nil
	}
	names := make([]string, len(Statuses))
	for i, s := range Statuses {
		names[i] = string(s)
	}
	return "", problem.Field("status", "%q is not a status: use %s", text, strings.Join(names, ", "))
}

// BlockKind is the kind of what blocks a run.
type BlockKind string

// The kinds.
const (
	BlockRunLimit BlockKind = "run_limit" // max_concurrent_runs
	BlockTagLimit BlockKind = "tag_limit"
	BlockPool     BlockKind = "pool" // slots that it needs
	// BlockNotBefore is never recorded: it follows from the run.
	BlockNotBefore BlockKind = "not_before"
)

// Block is why a run is still queued.
type Block struct {
	Kind BlockKind `json:"kind"`
	// Text is for people: "global run limit (10/10)".
	Text string `json:"text"`
	// Tag is what a [BlockTagLimit] limits: KEY=VALUE, or KEY for all values together.
	Tag string `json:"tag,omitempty"`
}

// RunLimitBlock returns the block by max_concurrent_runs.
func RunLimitBlock(used, limit int) Block {
	return Block{Kind: BlockRunLimit, Text: fmt.Sprintf("global run limit (%d/%d)", used, limit)}
}

// PoolBlock returns the block by pools, with a text of [pool.Space.Why].
func PoolBlock(why string) Block { return Block{Kind: BlockPool, Text: why} }

// TagLimitBlock returns the block by a tag limit. value is the run's own, or empty if the
// limit applies to all values together.
func TagLimitBlock(key, value string, used, limit int) Block {
	if value != "" {
		key += "=" + value
	}
	return Block{Kind: BlockTagLimit, Text: fmt.Sprintf("tag limit: %s (%d/%d)", key, used, limit), Tag: key}
}

// MaxDelay bounds [Spec.Delay].
const MaxDelay = 365 * 24 * time.Hour

// timeForm describes times in errors.
const timeForm = "time with its zone, such as 2026-11-22T15:00:00Z or 2026-11-22T16:00:00+01:00"

// Instant is a time in RFC 3339 with a precision of milliseconds.
type Instant struct{ time.Time }

// InstantOf returns a time as an Instant.
func InstantOf(t time.Time) Instant { return Instant{stampOf(t)} }

// ParseInstant parses a time. Its error is a problem of the field.
func ParseInstant(field, text string) (Instant, error) {
	t, err := time.Parse(time.RFC3339, text)
	if year := t.UTC().Year(); err != nil || year < 1 || year > 9999 {
		return Instant{}, problem.Field(field, "%q is not a %s", problem.Clip(text), timeForm)
	}
	return InstantOf(t), nil
}

// UnmarshalJSON parses the time. Package json adds the field to its error.
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

// TypeName describes an Instant in errors about values of another type.
func (Instant) TypeName() string { return timeForm }

// Until describes the time relative to now: not before 2026-11-22T15:00:00Z (in 9m58s). If
// now is zero, it returns the time only.
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

// Deferred reports whether a run is queued but has no place in the queue, since it is not
// due yet, or the coordinator has not processed it yet.
func (r *Run) Deferred() bool {
	return r.Status == Queued && !r.NotBefore.IsZero() && r.Joined == 0
}

// Place returns the revision that orders the queue: that of the submission, or that of the
// last run that was submitted before the run was due.
func (r *Run) Place() int64 { return max(r.Created, r.Joined) }

// JoinedAt returns when a run joined the queue, or will.
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
