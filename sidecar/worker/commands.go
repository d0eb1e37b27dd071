package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/sidecar/worker/child"
)

// Commands is a [Runner] of commands. Each runs under a supervisor, which outlives the
// worker.
type Commands struct {
	// Self is the executable of berth, for supervisors.
	Self string
	// Env is the part of the worker's environment that commands get.
	Env []string
	// WorkDir is their working directory.
	WorkDir string
	// StopGrace is how long a command may take to stop after SIGTERM; less on a short
	// lease.
	StopGrace time.Duration
}

// Start starts a command.
func (c *Commands) Start(dir string, t *step.Taken, validUntil, grace time.Duration) (Job, error) {
	ch, err := child.Start(c.Self, dir, child.Command{
		Argv: t.Work.Command, Env: append(c.Env[:len(c.Env):len(c.Env)], environment(t)...), Dir: c.WorkDir,
		Stdin: t.Work.Input, StopGrace: min(c.StopGrace, grace), Timeout: time.Duration(t.Work.Timeout),
	}, validUntil)
	if err != nil {
		return nil, err
	}
	return &command{ch}, nil
}

// Open opens a command; nil if it was never started.
func (c *Commands) Open(dir string, _ *step.Taken) (Job, error) {
	ch, err := child.Open(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	// If the worker was killed before the supervisor started, there is only the folder,
	// and Done is closed at once.
	select {
	case <-ch.Done():
		if _, err := ch.Result(); errors.Is(err, child.ErrNotBegun) {
			return nil, ch.Remove()
		}
	case <-time.After(openWait):
	}
	return &command{ch}, nil
}

// openWait is how long Open waits for a command that has already ended.
const openWait = 50 * time.Millisecond

// environment returns the environment variables of an instance.
func environment(t *step.Taken) []string {
	in := trace.Parent{Traceparent: t.Ready.Traceparent, Tracestate: t.Ready.Tracestate}
	env := in.Environment(make([]string, 0, len(t.Work.Env)+10))
	for name, value := range t.Work.Env {
		env = append(env, name+"="+value)
	}
	return append(env,
		"BERTH_RUN_ID="+t.Run, "BERTH_STEP="+t.Step, "BERTH_INDEX="+strconv.Itoa(t.Index),
		"BERTH_ATTEMPT="+strconv.Itoa(t.Attempt), "BERTH_FENCE="+strconv.FormatInt(int64(t.Fence()), 10),
		"BERTH_INPUT="+string(t.Work.Input))
}

// command is the [Job] of a command.
type command struct{ *child.Child }

// Outcome returns how it has ended.
func (c *command) Outcome() step.Outcome {
	r, err := c.Result()
	switch {
	case err != nil:
		return step.Outcome{Status: step.Failed, ExitCode: -1, Error: err.Error()}
	case r.Error != "":
		return step.Outcome{Status: step.Failed, ExitCode: r.ExitCode, Error: r.Error, EndedAt: r.EndedAt}
	case r.ExitCode == 0 && r.Stopped == child.NotStopped:
		return step.Outcome{Status: step.Succeeded, EndedAt: r.EndedAt}
	}
	o := step.Outcome{Status: step.Failed, ExitCode: r.ExitCode, EndedAt: r.EndedAt}
	switch {
	case r.Stopped == child.ByTimeout:
		o.Error = "it ran longer than its timeout"
	case r.Stopped == child.ByExpiry:
		o.Error = "it was stopped: its worker could not renew its lease"
	case r.Stopped != child.NotStopped:
		o.Error = "it was stopped: " + r.Reason
	case r.Signal != "":
		o.Error = "it was ended by " + r.Signal
	default:
		o.Error = fmt.Sprintf("it has ended with exit code %d", r.ExitCode)
	}
	return o
}

// Output returns the end of its output.
func (c *command) Output(most int) []byte {
	text, _, err := endOfFile(c.File(), most)
	if err != nil {
		return nil // output that cannot be read is not shown
	}
	return text
}

// File returns the path of its output.
func (c *command) File() string { return c.Child.Output() }

// Stop stops it. If that fails, it is stopped at the end of its validity.
func (c *command) Stop(reason string) { _ = c.Child.Stop(reason) }

// Extend extends its validity.
func (c *command) Extend(until time.Duration) { _ = c.Child.Extend(until) }

// Close releases it.
func (c *command) Close() { _ = c.Child.Close() }

// Folder returns where a worker keeps the folders of its instances.
func Folder(stateDir, instance string) string { return filepath.Join(stateDir, instance, "steps") }

// Runner runs attempts at step instances.
type Runner interface {
	// Start starts an attempt, with a folder of its own, which exists. The attempt may
	// run until validUntil on the boot clock, unless that is extended, and may take no
	// more than grace to stop before.
	Start(dir string, t *step.Taken, validUntil, grace time.Duration) (Job, error)
	// Open returns the attempt that an earlier process has started in a folder; nil if
	// none was.
	Open(dir string, t *step.Taken) (Job, error)
}

// Filer is a [Job] whose output goes to a file, which can be kept.
type Filer interface {
	Job
	// Shift returns what must be added to an offset in the end of that file to get the
	// offset in the whole output: 0 unless the middle is left out.
	Shift() int64
	// File returns the absolute path of that file. It exists until the folder of the
	// attempt is removed.
	File() string
}

// Job is a started attempt.
type Job interface {
	// Done is closed when all its processes have ended.
	Done() <-chan struct{}
	// Outcome returns how it has ended, after Done.
	Outcome() step.Outcome
	// Output returns the end of its output so far, at most most bytes.
	Output(most int) []byte
	// Stop stops it, and kills it after its grace. It does not wait.
	Stop(reason string)
	// Extend sets the end of its validity on the boot clock.
	Extend(until time.Duration)
	// Close releases it without stopping it.
	Close()
}
