package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/sidecar/worker/child"
)

// Commands is the [Runner] of commands: each is a process under a supervisor, which
// outlives the worker.
type Commands struct {
	// Self is the file of berth, which supervisors run.
	Self string
	// Env is what commands have of the worker's environment.
	Env []string
	// WorkDir is where they run.
	WorkDir string
	// StopGrace is how long a command may take to stop when it is told to; less if the
	// lease that it hangs on is a short one.
	StopGrace time.Duration
}

// Start begins a command.
func (c *Commands) Start(dir string, t *step.Taken, trusted, grace time.Duration) (Job, error) {
	ch, err := child.Start(c.Self, dir, child.Command{
		Argv: t.Work.Command, Env: append(c.Env[:len(c.Env):len(c.Env)], environment(t)...), Dir: c.WorkDir,
		Stdin: t.Work.Input, StopGrace: min(c.StopGrace, grace), Timeout: time.Duration(t.Work.Timeout),
	}, trusted)
	if err != nil {
		return nil, err
	}
	return &command{ch}, nil
}

// Open finds a command again. One that was never begun is none.
func (c *Commands) Open(dir string, _ *step.Taken) (Job, error) {
	ch, err := child.Open(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	// A worker that was killed as it started the supervisor has left a folder and
	// nothing else, and that is seen at once.
	select {
	case <-ch.Done():
		if _, err := ch.Result(); errors.Is(err, child.ErrNotBegun) {
			return nil, ch.Remove()
		}
	case <-time.After(openLook):
	}
	return &command{ch}, nil
}

// openLook is how long a command that is found again may take to show that it has
// ended.
const openLook = 50 * time.Millisecond

// environment is what a command knows of its instance.
func environment(t *step.Taken) []string {
	env := make([]string, 0, len(t.Work.Env)+8)
	for name, value := range t.Work.Env {
		env = append(env, name+"="+value)
	}
	return append(env,
		"BERTH_RUN_ID="+t.Run, "BERTH_STEP="+t.Step, "BERTH_INDEX="+strconv.Itoa(t.Index),
		"BERTH_ATTEMPT="+strconv.Itoa(t.Attempt), "BERTH_FENCE="+strconv.FormatInt(t.Revision, 10),
		"BERTH_INPUT="+string(t.Work.Input))
}

// command is one that was started.
type command struct{ *child.Child }

// Outcome says how it has ended.
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
		o.Error = "it has run for longer than its timeout"
	case r.Stopped == child.ByTrust:
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

// Output is the end of what it has written.
func (c *command) Output(most int) []byte {
	text, _, err := endOfFile(c.File(), most)
	if err != nil {
		return nil // what can't be read is not shown
	}
	return text
}

// File is where all of that is.
func (c *command) File() string { return c.Child.Output() }

// Stop tells it to stop. One that can't be told ends with its trust.
func (c *command) Stop(reason string) { _ = c.Child.Stop(reason) }

// Trust lets it run on.
func (c *command) Trust(until time.Duration) { _ = c.Child.Trust(until) }

// Close lets go of it.
func (c *command) Close() { _ = c.Child.Close() }

// CleanEnv is an environment without what is berth's own: settings, and secrets among
// them.
func CleanEnv(env []string) []string {
	clean := make([]string, 0, len(env))
	for _, e := range env {
		if !strings.HasPrefix(e, "BERTH_") {
			clean = append(clean, e)
		}
	}
	return clean
}

// Folder is where a worker of an instance keeps its folders.
func Folder(stateDir, instance string) string { return filepath.Join(stateDir, instance, "steps") }
