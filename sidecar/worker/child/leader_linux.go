package child

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

// startLeader starts the command, which leads its process group. It writes to out, the
// descriptor of a pipe. Its error is a [*proc.StartError].
func startLeader(c Command, stdin string, out int) (*proc.Group, error) {
	if err := os.Chdir(c.Dir); err != nil {
		return nil, &proc.StartError{Code: proc.ExitNotExecutable, Err: fmt.Errorf("dir: %w", err)}
	}
	// LookPath reads the PATH of this process, which has no other use for it.
	if err := os.Setenv("PATH", lookup(c.Env, "PATH")); err != nil {
		return nil, &proc.StartError{Code: proc.ExitNotExecutable, Err: err}
	}
	path, err := proc.LookPath(c.Argv[0])
	if err != nil {
		return nil, err
	}
	in, err := os.Open(stdin)
	if err != nil {
		return nil, &proc.StartError{Code: proc.ExitNotExecutable, Err: err}
	}
	defer in.Close()
	return proc.Start(path, c.Argv, c.Env, []uintptr{in.Fd(), uintptr(out), uintptr(out)})
}

// Orphans of the command's are adopted by this process, once it has said so. So
// whatever the command has started is a child of this process, or below one.

// adopt has this process get the orphans.
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// reapAll reaps who has ended, and tells whether any children are left.
func reapAll() (left bool) {
	for {
		pid := 0
		err := proc.Retry(func() (err error) { pid, err = unix.Wait4(-1, nil, unix.WNOHANG, nil); return err })
		if err != nil || pid == 0 {
			return err == nil
		}
	}
}

// children returns the children of this process.
func children() []proc.Stat {
	all, _ := proc.All()
	var own []proc.Stat
	for _, p := range all {
		if p.Parent == os.Getpid() {
			own = append(own, p)
		}
	}
	return own
}

// reapOrphans reaps the adopted that have ended, while the leader lives.
func reapOrphans(l *proc.Group) {
	for _, p := range children() {
		if p.PID != l.PID && p.Ended() {
			_ = proc.Retry(func() error { _, err := unix.Wait4(p.PID, nil, unix.WNOHANG, nil); return err })
		}
	}
}

// killChildren kills the children of this process; theirs become its own by that.
// It tells whether there was one that could be killed: not so programs that run as
// another user.
func killChildren() bool {
	some := false
	for _, p := range children() { // they can't be reaped by anybody else meanwhile
		some = p.Ended() || unix.Kill(p.PID, unix.SIGKILL) == nil || some
	}
	return some
}

// signalOutside sends a signal to the children of this process that have left its session.
func signalOutside(s unix.Signal) {
	for _, p := range children() { // they can't be reaped by anybody else meanwhile
		if p.Session != os.Getpid() {
			_ = unix.Kill(p.PID, s) // it may be another user's
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
