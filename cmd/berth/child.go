//go:build unix

package main

import (
	"errors"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"os"
	"os/signal"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	workerchild "github.com/berthhq/berth/sidecar/worker/child"
)

// command is a command line whose file was found.
type command struct {
	path string
	argv []string
}

// findCommand finds the file of a command.
func findCommand(argv []string) (command, error) {
	path, err := proc.LookPath(argv[0], os.Environ())
	return command{path, argv}, startStatus(err)
}

// startStatus gives an error of a start its exit code.
func startStatus(err error) error {
	var start *proc.StartError
	if errors.As(err, &start) {
		return &statusError{start.Code, start.Err}
	}
	return err
}

// child is a running command.
type child struct {
	*proc.Group
	// events receives the signals that stop it, and 0 when it has ended. It is not
	// buffered.
	events chan unix.Signal
}

// startChild starts a command with this process' files, and in the foreground of the
// terminal if exec is there. The child is killed if this process dies, where the system can
// do that.
func startChild(cmd command, env []string, term *terminal) (*child, error) {
	attributes := proc.Attributes()
	if term.has() && !inPipeline() {
		// Before the command begins: it would be stopped if it asked for the terminal first.
		attributes.Foreground, attributes.Ctty = true, term.fd
	}
	group, err := proc.Start(cmd.path, cmd.argv, env, []uintptr{0, 1, 2}, attributes)
	// Taking the terminal back from the background, or writing to it, would stop exec
	// otherwise. Set only now: the child would have inherited it.
	signal.Ignore(unix.SIGTTOU)
	if err != nil {
		if attributes.Foreground {
			term.put(term.own)
		}
		return nil, startStatus(err)
	}
	c := &child{group, make(chan unix.Signal)}
	go func() {
		for stopped := unix.Signal(-1); stopped != 0; {
			stopped = c.Wait()
			c.events <- stopped
		}
	}()
	return c, nil
}

// superviseCommand is the command that a worker starts for each command of a step. It is
// not for users.
func superviseCommand() *cli.Command {
	return &cli.Command{
		Name:      workerchild.Verb,
		Hidden:    true,
		Usage:     "run the command of a step; workers start this themselves",
		ArgsUsage: "DIR",
		Action: handle(func(r *request) error { return workerchild.Supervise(r.args[0]) },
			argument{name: "the folder that a worker made for a command"}),
	}
}

// guard is a [proc.Guard] of a claim's command, which knows why it stops the command.
type guard struct {
	proc.Guard
	why error // nil while the command may run
}

// errNotRenewed is why a command is stopped whose claim is not renewed.
var errNotRenewed = problem.New(problem.ClaimLost, "the claim could not be renewed in time")

// check takes for how long the claim is still valid, how long its holder may take to stop,
// and why the claim has ended, if it has. It returns what to do now.
func (g *guard) check(now, left, grace time.Duration, ended error) proc.Order {
	switch {
	case g.why != nil:
	case ended != nil:
		// What was known at the last check still holds: renewals only add to it.
		g.why = ended
		g.Stop(now)
	case left == 0 && now < g.Until:
		// It has ended before its time, for a reason that is known in a moment: its etcd cluster was
		// replaced. The command gets its time to stop then.
	default:
		g.Until, g.Grace = now+left, grace
		if left <= grace {
			g.why = errNotRenewed
		}
	}
	return g.Check(now)
}

// terminal is the controlling terminal of exec. Of the process groups that share
// it, one is in the foreground: it may read, and gets the signals of Ctrl-C and
// Ctrl-Z. exec lends that place to its child, so that the child gets each of
// them once, and takes the terminal again when the child stops or ends.
//
// A nil terminal is none: its methods do nothing.
type terminal struct {
	fd  int
	own int // the group of exec
}

// openTerminal returns the controlling terminal, nil if there is none. Where there is no
// /dev/tty, it is one of the standard files.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for file := 0; err != nil && file <= 2; file++ {
		if _, err = unix.IoctlGetInt(file, unix.TIOCGPGRP); err == nil { // not of any other terminal
			fd, err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
		}
	}
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, own: unix.Getpgrp()}
}

// has reports whether exec's own group is in the foreground.
func (t *terminal) has() bool { return t != nil && t.foreground() == t.own }

// lend puts the group of the child into the foreground if exec's own group is there. It
// reports whether the child is there now.
func (t *terminal) lend(child int) bool {
	if t.has() {
		return t.put(child)
	}
	return t != nil && t.foreground() == child
}

// takeBack puts exec's own group into the foreground if the child still is there. It reports
// whether that was so.
func (t *terminal) takeBack(child int) bool {
	if t == nil || t.foreground() != child {
		return false
	}
	t.put(t.own)
	return true
}

// put puts a group into the foreground, and reports whether it could.
func (t *terminal) put(group int) bool {
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) == nil
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

// inPipeline reports whether a file of this process is a pipe. Another program of
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

// groupIsOrphaned reports whether no shell watches over exec's process group: the
// first ancestor outside of the group belongs to another session. The system
// stops no such group by the keyboard, since no shell could continue it.
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
		stat, err := proc.Read(p)
		if err != nil {
			return true
		}
		p = stat.Parent
	}
	mine, err := unix.Getsid(0)
	return err != nil || session != mine
}
