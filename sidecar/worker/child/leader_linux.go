package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// leader is the command's own process: the first of its group.
type leader struct {
	pid    int
	status unix.WaitStatus
	reaped bool
}

// startError is why a command could not be started, with a shell's exit code.
type startError struct {
	code int
	error
}

// startLeader starts the command. It writes to out, the descriptor of a pipe. It is
// killed when this process dies.
func startLeader(c Command, stdin string, out int) (*leader, error) {
	if err := os.Chdir(c.Dir); err != nil {
		return nil, &startError{exitNotExecutable, fmt.Errorf("dir: %w", err)}
	}
	path, err := find(c)
	if err != nil {
		return nil, err
	}
	in, err := os.Open(stdin)
	if err != nil {
		return nil, &startError{exitNotExecutable, err}
	}
	defer in.Close()
	pid, err := forkForever(path, c.Argv, &syscall.ProcAttr{
		Env: c.Env, Files: []uintptr{in.Fd(), uintptr(out), uintptr(out)},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		code := exitNotExecutable
		if errors.Is(err, fs.ErrNotExist) { // or its interpreter is
			code = exitNotFound
		}
		return nil, &startError{code, &fs.PathError{Op: "run", Path: path, Err: err}}
	}
	return &leader{pid: pid}, nil
}

// find looks for the file as a shell does.
func find(c Command) (string, error) {
	// exec.LookPath knows only the PATH of this process, which has none else.
	if err := os.Setenv("PATH", lookup(c.Env, "PATH")); err != nil {
		return "", &startError{exitNotExecutable, err}
	}
	path, err := exec.LookPath(c.Argv[0])
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // PATH says ".", and means it
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &startError{exitNotFound, err}
	}
	return "", &startError{exitNotExecutable, err}
}

// forkForever starts a process from a thread that lives as long as this process:
// the signal of a parent's death is that of the thread which forked.
func forkForever(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	forked := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		pid, err = syscall.ForkExec(path, argv, attr)
		close(forked)
		select {}
	}()
	<-forked
	return pid, err
}

// hasEnded tells whether the leader has ended. It is not reaped by that: until it
// is, its number, and its group's, are nobody else's.
func (l *leader) hasEnded() bool {
	if l.reaped {
		return true
	}
	var info unix.Siginfo
	err := ignoringEINTR(func() error {
		return unix.Waitid(unix.P_PID, l.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return err == nil && info.Signo != 0
}

// signal sends a signal to the whole group. That there is none any more is no error.
func (l *leader) signal(s unix.Signal) {
	if !l.reaped {
		_ = unix.Kill(-l.pid, s)
	}
}

// terminate tells the group to stop. What is stopped already could not act on that.
func (l *leader) terminate() {
	l.signal(unix.SIGTERM)
	l.signal(unix.SIGCONT)
}

// reap takes the status of a leader that has ended. The group is out of reach then.
func (l *leader) reap() {
	_ = ignoringEINTR(func() error { _, err := unix.Wait4(l.pid, &l.status, 0, nil); return err })
	l.reaped = true
}

// exit tells how it has ended, as a shell would.
func (l *leader) exit() (code int, signal string) {
	if l.status.Signaled() {
		s := l.status.Signal()
		if signal = unix.SignalName(s); signal == "" { // a realtime signal
			signal = fmt.Sprintf("SIG%d", int(s))
		}
		return exitSignal + int(s), signal
	}
	return l.status.ExitStatus(), ""
}

// Orphans of the command's are adopted by this process, once it has said so. So
// whatever the command has started is a child of this process, or below one.

// adopt has this process get the orphans.
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// reapAll reaps who has ended, and tells whether any children are left.
func reapAll() (left bool) {
	for {
		pid := 0
		err := ignoringEINTR(func() (err error) { pid, err = unix.Wait4(-1, nil, unix.WNOHANG, nil); return err })
		if err != nil || pid == 0 {
			return err == nil
		}
	}
}

// children returns the children of this process.
func children() []stat {
	all, _ := processes()
	var own []stat
	for _, p := range all {
		if p.parent == os.Getpid() {
			own = append(own, p)
		}
	}
	return own
}

// reapOrphans reaps the adopted that have ended, while the leader lives.
func reapOrphans(l *leader) {
	for _, p := range children() {
		if p.pid != l.pid && p.ended() {
			_ = ignoringEINTR(func() error { _, err := unix.Wait4(p.pid, nil, unix.WNOHANG, nil); return err })
		}
	}
}

// killChildren kills the children of this process; theirs become its own by that.
// It tells whether there was one that could be killed: not so programs that run as
// another user.
func killChildren() bool {
	some := false
	for _, p := range children() { // they can't be reaped by anybody else meanwhile
		some = p.ended() || unix.Kill(p.pid, unix.SIGKILL) == nil || some
	}
	return some
}

// signalOutside sends a signal to the children of this process that have left its session.
func signalOutside(s unix.Signal) {
	for _, p := range children() { // they can't be reaped by anybody else meanwhile
		if p.session != os.Getpid() {
			_ = unix.Kill(p.pid, s) // it may be another user's
		}
	}
}

// stdinOf is the file that a command reads.
func stdinOf(dir string, has bool) string {
	if has {
		return filepath.Join(dir, stdinName)
	}
	return os.DevNull
}
