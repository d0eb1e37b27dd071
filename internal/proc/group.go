//go:build unix

package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes of a shell.
const (
	ExitNotExecutable = 126 // the command cannot be run
	ExitNotFound      = 127 // there is no such command
	// ExitSignal is added to the number of the signal that ended a command.
	ExitSignal = 128
)

// StartError means that a command could not be started.
type StartError struct {
	// Code is a shell's exit code for it.
	Code int
	Err  error
}

// Error returns the text of the cause.
func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

func startError(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) { // for example an interpreter
		return &StartError{ExitNotFound, err}
	}
	return &StartError{ExitNotExecutable, err}
}

// Group is a child of this process that leads a process group of its own.
type Group struct {
	PID int

	status unix.WaitStatus
	reaped bool
	gone   chan struct{} // closed by Reap
}

// Start starts a command with an environment, open files, and [Attributes]. The command is
// killed if this process dies, where the system supports it. As with execvp(3), a script
// without an interpreter is run by the shell. The error is a [*StartError].
func Start(path string, argv, env []string, files []uintptr, attributes *syscall.SysProcAttr) (*Group, error) {
	g := &Group{gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that forked it ends: this one lives
		// as long as the child.
		runtime.LockOSThread()
		var err error
		attr := &syscall.ProcAttr{Env: env, Files: files, Sys: attributes}
		g.PID, err = syscall.ForkExec(path, argv, attr)
		if line, ok := ByShell(err, path, argv); ok {
			if pid, failed := syscall.ForkExec(line[0], line, attr); failed == nil {
				g.PID, err = pid, nil
			}
		}
		started <- err
		if err == nil {
			<-g.gone
		}
	}()
	if err := <-started; err != nil {
		return nil, startError(&fs.PathError{Op: "run", Path: path, Err: err})
	}
	return g, nil
}

// Wait waits until the child has stopped, and returns the signal that stopped it, or has
// ended: then the signal is 0. A child that has ended is not reaped where the system
// supports it, so that its number remains its own until [Group.Reap].
func (g *Group) Wait() (stopped unix.Signal) {
	if waitEnded(g.PID) {
		return 0
	}
	var s unix.WaitStatus
	if err := Retry(func() error { _, err := unix.Wait4(g.PID, &s, unix.WUNTRACED, nil); return err }); err != nil {
		return 0
	}
	if s.Stopped() {
		return s.StopSignal()
	}
	g.status, g.reaped = s, true
	return 0
}

// Ended reports whether the child has ended. On systems other than Linux it is false
// before [Group.Wait] has returned.
func (g *Group) Ended() bool { return g.reaped || hasEnded(g.PID) }

// Signal sends a signal to the whole group. It does nothing after [Group.Reap].
func (g *Group) Signal(s unix.Signal) {
	if !g.reaped {
		_ = unix.Kill(-g.PID, s) // the group may be empty
	}
}

// Terminate tells the group to stop. Processes that are stopped (SIGSTOP) are continued
// for it.
func (g *Group) Terminate() {
	g.Signal(unix.SIGTERM)
	g.Signal(unix.SIGCONT)
}

// Reap returns the status of a child that has ended. It must be called once.
func (g *Group) Reap() unix.WaitStatus {
	if !g.reaped {
		_ = Retry(func() error { _, err := unix.Wait4(g.PID, &g.status, 0, nil); return err })
		g.reaped = true
	}
	close(g.gone)
	return g.status
}

// Reaped reports whether the child was reaped.
func (g *Group) Reaped() bool { return g.reaped }

// ExitCode returns a shell's exit code for a status.
func ExitCode(s unix.WaitStatus) int {
	if s.Signaled() {
		return ExitSignal + int(s.Signal())
	}
	return s.ExitStatus()
}

// SignalName returns the name of a signal, such as SIGKILL.
func SignalName(s unix.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s)) // a realtime signal
}

// Retry calls a system call until it is not interrupted by a signal.
func Retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
