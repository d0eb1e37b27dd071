package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/text"
)

const (
	// stopGrace is how long the command may take to stop after SIGTERM, and for how long
	// processes that it leaves may keep its output open.
	stopGrace = 5 * time.Second
	// maxStderr bounds the end of stderr that is kept, in bytes.
	maxStderr = 4 << 10
)

// Command is a command that lists items.
type Command struct {
	Argv []string
	// Env is its whole environment.
	Env []string
	// Timeout bounds how long it runs.
	Timeout time.Duration
}

// List runs the command, and returns its output. If ctx ends, or the timeout, the
// command and all that it has started get SIGTERM, and SIGKILL 5 s later.
func (c *Command) List(ctx context.Context) ([]byte, error) {
	tooLate := fmt.Errorf("the list command did not end within %s", c.Timeout)
	limited, done := context.WithTimeoutCause(ctx, c.Timeout, tooLate)
	defer done()
	running, end := context.WithCancelCause(limited)
	defer end(nil)

	out := &bounded{most: MaxOutput, full: func() {
		end(fmt.Errorf("the list command wrote more than %d MiB", MaxOutput>>20))
	}}
	stderr := &tail{most: maxStderr}
	// The command is killed when this thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd, err := c.start(running, out, stderr)
	if err != nil {
		return nil, fmt.Errorf("the list command cannot be run: %w", err)
	}
	err = cmd.Wait()
	if running.Err() != nil || errors.Is(err, exec.ErrWaitDelay) {
		// The group may still have processes that it has started.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case running.Err() != nil:
		return nil, context.Cause(running)
	case errors.Is(err, exec.ErrWaitDelay):
		return nil, errors.New("the list command left a process that keeps its output open")
	case errors.As(err, &exit):
		return nil, fmt.Errorf("the list command ended with %s%s", exit, stderr.last())
	case err != nil:
		return nil, fmt.Errorf("the list command cannot be read: %w", err)
	}
	return out.kept.Bytes(), nil
}

// start starts the command; a script without an interpreter by the shell.
func (c *Command) start(ctx context.Context, out, stderr io.Writer) (*exec.Cmd, error) {
	path, err := proc.LookPath(c.Argv[0], c.Env)
	if err != nil {
		return nil, err
	}
	cmd := c.prepared(ctx, path, c.Argv, out, stderr)
	err = cmd.Start()
	if line, ok := proc.ByShell(err, path, c.Argv); ok {
		cmd = c.prepared(ctx, line[0], line, out, stderr)
		err = cmd.Start()
	}
	return cmd, err
}

func (c *Command) prepared(ctx context.Context, path string, argv []string, out, stderr io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.Env, cmd.Stdout, cmd.Stderr = argv, c.Env, out, stderr
	cmd.SysProcAttr, cmd.WaitDelay = proc.Attributes(), stopGrace
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	return cmd
}

// bounded keeps what is written, up to most bytes.
type bounded struct {
	kept bytes.Buffer // not embedded: its ReadFrom has no bound
	most int
	full func()
}

// Write never fails: full stops the command.
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

// last returns the last line that is not blank, after a colon.
func (t *tail) last() string {
	const most = 256
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "?")), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	if line == "" {
		return ""
	}
	return ": " + text.Cut(line, most)
}
