package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/text"
)

const (
	// stopGrace is how long the command gets between TERM and KILL, and how long what it
	// has left behind may hold on to its output.
	stopGrace = 5 * time.Second
	// maxSaid bounds what is kept of what it writes to stderr: the end of it.
	maxSaid = 4 << 10
)

// Command lists by running a command.
type Command struct {
	Argv []string
	// Env is all of its environment, and Dir where it runs.
	Env []string
	Dir string
	// Timeout bounds it.
	Timeout time.Duration
}

// List runs the command to its end, and returns what it has written to stdout. When ctx
// ends, or its time is up, it is told to stop, with all that it has started, and killed
// if it does not.
func (c *Command) List(ctx context.Context) ([]byte, error) {
	tooLate := fmt.Errorf("the list command has not ended within %s", c.Timeout)
	limited, done := context.WithTimeoutCause(ctx, c.Timeout, tooLate)
	defer done()
	running, end := context.WithCancelCause(limited)
	defer end(nil)

	out := &bounded{most: MaxOutput, full: func() {
		end(fmt.Errorf("the list command has written more than %d MiB", MaxOutput>>20))
	}}
	said := &tail{most: maxSaid}
	cmd := exec.CommandContext(running, c.Argv[0], c.Argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.Env, c.Dir, out, said
	cmd.SysProcAttr, cmd.WaitDelay = proc.Attributes(), stopGrace
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	// The command is killed when this thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the list command can't be run: %w", err)
	}
	err := cmd.Wait()
	if running.Err() != nil || errors.Is(err, exec.ErrWaitDelay) {
		// What it has started is in its group still; if there is nothing, nothing is hit.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case running.Err() != nil:
		return nil, context.Cause(running)
	case errors.Is(err, exec.ErrWaitDelay):
		return nil, errors.New("the list command has left something behind that holds on to its output")
	case errors.As(err, &exit):
		return nil, fmt.Errorf("the list command has ended with %s%s", exit, said.last())
	case err != nil:
		return nil, fmt.Errorf("the list command can't be read: %w", err)
	}
	return out.kept.Bytes(), nil
}

// bounded keeps what is written, up to so many bytes.
type bounded struct {
	kept bytes.Buffer // not embedded: what it reads by itself has no bound
	most int
	full func()
}

// Write never fails: the command is stopped for what is too long, not by it.
func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > b.most {
		b.full()
		return len(p), nil
	}
	return b.kept.Write(p)
}

// tail keeps the end of what is written.
type tail struct {
	kept []byte
	most int
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// last is the last line that says something, behind a colon.
func (t *tail) last() string {
	const most = 256
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "?")), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	if line == "" {
		return ""
	}
	return ": " + text.Cut(line, most)
}
