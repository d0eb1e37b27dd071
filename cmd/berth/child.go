//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"os"
	"os/signal"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	workerchild "github.com/berthhq/berth/sidecar/worker/child"
)

// Exit codes of a command that can't be run, as shells have them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	// exitSignal is added to the number of the signal that ended a command.
	exitSignal = 128
)

// command is a command line whose file was found.
type command struct {
	path string
	argv []string
}

// findCommand looks for the file as a shell does. Its errors have a shell's exit
// codes.
func findCommand(argv []string) (command, error) {
	path, err := exec.LookPath(argv[0])
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // PATH says ".", and means it
		return command{path, argv}, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return command{}, &statusError{exitNotFound, err}
	}
	return command{}, &statusError{exitNotExecutable, err}
}

// child is a running command, in a process group of its own.
type child struct {
	pid int
	// events is told of stops, and at last of the end. It is not buffered.
	events chan childEvent
	gone   chan struct{} // closed when it is reaped

	status unix.WaitStatus
	reaped bool
}

// childEvent is something that happened to a child.
type childEvent struct {
	ended   bool
	stopped unix.Signal // unless it has ended
}

// startChild starts a command with this process' files. The child is killed if
// this process dies, where the system can do that.
func startChild(cmd command, env []string) (*child, error) {
	c := &child{events: make(chan childEvent), gone: make(chan struct{})}
	started := make(chan error)
	go c.live(cmd, env, started)
	if err := <-started; err != nil {
		code := exitNotExecutable
		if errors.Is(err, fs.ErrNotExist) { // or its interpreter is
			code = exitNotFound
		}
		return nil, &statusError{code, &fs.PathError{Op: "run", Path: cmd.path, Err: err}}
	}
	return c, nil
}

// live is the child's goroutine. It keeps its thread to itself, since the
// signal of a parent's death is that of the thread which forked: with it, the
// thread ends.
func (c *child) live(cmd command, env []string, started chan<- error) {
	runtime.LockOSThread()
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: childAttributes()}
	var err error
	c.pid, err = syscall.ForkExec(cmd.path, cmd.argv, attr)
	started <- err
	if err != nil {
		return
	}
	for {
		e := c.wait()
		c.events <- e
		if e.ended {
			<-c.gone
			return
		}
	}
}

// wait waits until the child has stopped or ended. One that has ended is not
// reaped if that can be helped: until it is, its number is nobody else's.
func (c *child) wait() childEvent {
	if hasEnded(c.pid) {
		return childEvent{ended: true}
	}
	var s unix.WaitStatus
	if err := ignoringEINTR(func() error { _, err := unix.Wait4(c.pid, &s, unix.WUNTRACED, nil); return err }); err != nil {
		return childEvent{ended: true}
	}
	if s.Stopped() {
		return childEvent{stopped: s.StopSignal()}
	}
	c.status, c.reaped = s, true
	return childEvent{ended: true}
}

// signal sends a signal to the child's whole group. That it has none any more
// is no error.
func (c *child) signal(s unix.Signal) { _ = unix.Kill(-c.pid, s) }

// reap takes the status of a child that has ended.
func (c *child) reap() unix.WaitStatus {
	if !c.reaped {
		_ = ignoringEINTR(func() error { _, err := unix.Wait4(c.pid, &c.status, 0, nil); return err })
		c.reaped = true
	}
	close(c.gone)
	return c.status
}

// exitCode is what a shell makes of a status.
func exitCode(s unix.WaitStatus) int {
	if s.Signaled() {
		return exitSignal + int(s.Signal())
	}
	return s.ExitStatus()
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// superviseCommand is what a worker starts beside each command that it runs. It is
// no command for people, and does nothing for them.
func superviseCommand() *cli.Command {
	return &cli.Command{
		Name:      workerchild.Verb,
		Hidden:    true,
		Usage:     "run the command of a step beside a worker, which starts this by itself",
		ArgsUsage: "DIR",
		Action: handle(func(r *request) error { return workerchild.Supervise(r.args[0]) },
			argument{name: "the folder that a worker has made for a command"}),
	}
}

// guard decides when a child must be told to stop and when it must be killed,
// so that it is gone before the lease of its claim can end. It is to be asked
// at least every [lookEvery]; the margin of a trust window pays for that.
//
// It keeps no clock: times are those of a clock that counts through suspend.
type guard struct {
	why    error         // why the child has to stop; nil while it may run
	killAt time.Duration // when it must be killed, once it has to stop

	// Trust lasts at least until then, and its holder gets this long to stop:
	// from the last look at a claim that was held.
	until, grace time.Duration
}

// lookEvery is how often the clock is looked at.
const lookEvery = grace.Look

// order is what a guard wants done.
type order int

const (
	carryOn order = iota
	terminate
	kill
)

// errTrustRunsOut is why a child has to stop whose claim is not renewed.
var errTrustRunsOut = problem.New(problem.ClaimLost, "the claim could not be renewed in time")

// look takes what is known of the claim now: how long it can still be trusted,
// how long its holder may take to stop, and why it has ended, if it has.
func (g *guard) look(now, left, grace time.Duration, ended error) order {
	switch {
	case g.why != nil:
		if now < g.killAt {
			return carryOn // it was told
		}
		return kill
	case ended != nil:
		// What was known at the last look still holds: renewals only add to it.
		g.stop(ended, min(now+g.grace, g.until))
	case left <= grace:
		g.stop(errTrustRunsOut, now+left)
	default:
		g.until, g.grace = now+left, grace
		return carryOn
	}
	if now >= g.killAt {
		return kill
	}
	return terminate
}

func (g *guard) stop(why error, killAt time.Duration) { g.why, g.killAt = why, killAt }

// terminal is the controlling terminal of exec. Of the process groups that share
// it, one is in the foreground: it may read, and gets the signals of Ctrl-C and
// Ctrl-Z. exec lends that place to its child, so that the child gets each of
// them once, and takes it back when the child stops or ends.
//
// A nil terminal is none: nothing is lent, and nobody suspends anything.
type terminal struct {
	fd   int
	own  int // the group of exec
	lent int // the group that has the place, 0 if exec has
}

// openTerminal returns the controlling terminal, nil if there is none.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, own: unix.Getpgrp()}
}

// lend puts a group into the foreground if exec's own group is there.
func (t *terminal) lend(group int) bool {
	if t == nil || t.foreground() != t.own {
		return false
	}
	// Taking the place back from the background would stop exec otherwise. Set
	// only now: the child would have inherited it.
	signal.Ignore(unix.SIGTTOU)
	if unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) != nil {
		return false
	}
	t.lent = group
	return true
}

// takeBack puts exec's own group into the foreground if the borrower still is
// there. It tells whether that was so.
func (t *terminal) takeBack() bool {
	if t == nil || t.lent == 0 {
		return false
	}
	had := t.foreground() == t.lent
	if had {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.own)
	}
	t.lent = 0
	return had
}

// foreground returns the group in the foreground, 0 if there is none.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func (t *terminal) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}

// inPipeline tells whether a file of this process is a pipe. Another program of
// the pipeline may need the terminal then, so the child begins in the
// background, and gets the place when it asks for it.
func inPipeline() bool {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if info, err := f.Stat(); err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
			return true
		}
	}
	return false
}

// groupIsOrphaned tells whether no shell watches over exec's process group: the
// first ancestor outside of the group belongs to another session. The system
// stops no such group by the keyboard, since nobody could continue it.
func groupIsOrphaned() bool {
	own, session := unix.Getpgrp(), 0
	p := os.Getppid()
	for p > 1 {
		group, err := unix.Getpgid(p)
		if err != nil {
			return true
		}
		if group != own {
			session, _ = unix.Getsid(p)
			break
		}
		p = parentOf(p)
	}
	mine, err := unix.Getsid(0)
	return err != nil || session != mine
}
