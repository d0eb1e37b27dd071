package step

// Status of a step instance.
type Status string

// The ways of an instance.
const (
	// Requested: it waits for what it needs, for its window, or for a retry.
	Requested Status = "requested"
	// Scheduled: it was published, and waits for a worker.
	Scheduled Status = "scheduled"
	// Running: a worker has it.
	Running Status = "running"
	// Succeeded, Failed and Canceled are its ends.
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
	Canceled  Status = "canceled"
)

// Statuses are all there are, in the order in which an instance has them.
var Statuses = []Status{Requested, Scheduled, Running, Succeeded, Failed, Canceled}

// InFlight tells whether an instance counts against the windows.
func (s Status) InFlight() bool { return s == Scheduled || s == Running }

// Ended tells whether nothing more will happen to an instance.
func (s Status) Ended() bool { return s == Succeeded || s == Failed || s == Canceled }
