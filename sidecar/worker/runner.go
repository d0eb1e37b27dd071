package worker

import (
	"time"

	"github.com/berthhq/berth/coordinator/step"
)

// Runner runs what instances are to do.
type Runner interface {
	// Start begins an attempt. The folder is its own, and is there. It may run until
	// a time on the boot clock, unless that is put off, and gets no more than a grace
	// to stop before.
	Start(dir string, t *step.Taken, trusted, grace time.Duration) (Job, error)
	// Open finds an attempt that an earlier process has started in a folder; nil if
	// none was.
	Open(dir string, t *step.Taken) (Job, error)
}

// Filer is a [Job] whose output goes to a file, so that all of it can be kept.
type Filer interface {
	Job
	// Shift is what is to be added to a place in the end of that file to get the place in
	// all that was written: 0, unless something is left out in the middle.
	Shift() int64
	// File is the path of that file, from the root. The file is there until the folder of
	// the attempt is removed.
	File() string
}

// Job is an attempt that was started.
type Job interface {
	// Done is closed when nothing of it runs any more.
	Done() <-chan struct{}
	// Outcome is how it has ended. It is to be asked after Done.
	Outcome() step.Outcome
	// Output is the end of what it has written so far, of so many bytes at most.
	Output(most int) []byte
	// Stop tells it to stop, and has it killed after its grace. It does not wait.
	Stop(reason string)
	// Trust lets it run until a time on the boot clock.
	Trust(until time.Duration)
	// Close lets go of it, without stopping it.
	Close()
}
