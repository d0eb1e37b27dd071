package run

import (
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// Status of a run.
type Status string

// The ways of a run.
const (
	// Storing: its steps are being written, and it is in no queue yet.
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

// Statuses are all there are, in the order in which a run has them.
var Statuses = []Status{Storing, Queued, NotStarted, Running, Succeeded, Failed, Canceled}

// InProgress tells whether a run counts against the limits.
func (s Status) InProgress() bool { return s == NotStarted || s == Running }

// Ended tells whether nothing more will happen to a run.
func (s Status) Ended() bool { return s == Succeeded || s == Failed || s == Canceled }

// ParseStatus reads a status.
func ParseStatus(text string) (Status, error) {
	if s := Status(text); slices.Contains(Statuses, s) {
		return s, nil
	}
	names := make([]string, len(Statuses))
	for i, s := range Statuses {
		names[i] = string(s)
	}
	return "", problem.Field("status", "%q is none: allowed are %s", text, strings.Join(names, ", "))
}
