package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

// startLeader starts the command, which leads its process group. It writes to out, the
// descriptor of a pipe. Its error is a [*proc.StartError].
func startLeader(c Command, stdin string, out int) (*proc.Group, error) {
	if err := os.Chdir(c.Dir); err != nil {
		return nil, &proc.StartError{Code: proc.ExitNotExecutable, Err: fmt.Errorf("dir: %w", err)}
	}
	path, err := proc.LookPath(c.Argv[0], c.Env)
	if err != nil {
		return nil, err
	}
	in, err := os.Open(stdin)
	if err != nil {
		return nil, &proc.StartError{Code: proc.ExitNotExecutable, Err: err}
	}
	defer in.Close()
	return proc.Start(path, c.Argv, c.Env, []uintptr{in.Fd(), uintptr(out), uintptr(out)}, proc.Attributes())
}

// adopt makes this process adopt orphans, so that all that the command starts are
// descendants of this process.
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// reapAll reaps the children that have ended, and reports whether others are left.
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

// reapOrphans reaps the adopted children that have ended, while the leader lives.
func reapOrphans(l *proc.Group) {
	for _, p := range children() {
		if p.PID != l.PID && p.Ended() {
			_ = proc.Retry(func() error { _, err := unix.Wait4(p.PID, nil, unix.WNOHANG, nil); return err })
		}
	}
}

// killChildren kills the children of this process, which then adopts their children. It
// reports whether it could kill one: programs of other users cannot be killed.
func killChildren() bool {
	some := false
	for _, p := range children() { // only this goroutine reaps them
		some = p.Ended() || unix.Kill(p.PID, unix.SIGKILL) == nil || some
	}
	return some
}

// signalOutside sends a signal to the children of this process that have left its session.
func signalOutside(s unix.Signal) {
	for _, p := range children() { // only this goroutine reaps them
		if p.Session != os.Getpid() {
			_ = unix.Kill(p.PID, s) // it may be another user's
		}
	}
}

// stdinOf returns the file that a command reads.
func stdinOf(dir string, has bool) string {
	if has {
		return filepath.Join(dir, stdinName)
	}
	return os.DevNull
}

// controlFD is the descriptor of the control pipe in a supervisor.
const controlFD = 3

// takeControl takes the control pipe that Start passes. A user who runs "berth supervise"
// has none, so a folder never has two supervisors.
func takeControl(dir string) (*os.File, error) {
	var given, want unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, controlName), &want); err != nil {
		return nil, fmt.Errorf("%s is not the folder of a command: %w", dir, err)
	}
	if err := unix.Fstat(controlFD, &given); err != nil || given.Dev != want.Dev || given.Ino != want.Ino {
		return nil, errors.New("only a worker can start this, for each command that it runs")
	}
	unix.CloseOnExec(controlFD)
	if err := unix.SetNonblock(controlFD, true); err != nil { // for Go's poller
		return nil, err
	}
	return os.NewFile(controlFD, controlName), nil
}

// closeInherited closes all other descriptors that are not closed on exec. Those that Go
// opens are; the process that started the worker may have left others open.
func closeInherited() error {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < controlFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd) // it is not this process' file
		}
	}
	return nil
}
