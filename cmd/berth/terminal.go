//go:build unix

package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

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
