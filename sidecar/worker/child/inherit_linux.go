package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// controlFD is the descriptor that a supervisor has its pipe at.
const controlFD = 3

// takeControl takes over the pipe that Start has left open. Whoever calls
// "berth supervise" by hand has none: two supervisors of one folder there are not.
func takeControl(dir string) (*os.File, error) {
	var given, want unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, controlName), &want); err != nil {
		return nil, fmt.Errorf("%s is no folder of a worker's: %w", dir, err)
	}
	if err := unix.Fstat(controlFD, &given); err != nil || given.Dev != want.Dev || given.Ino != want.Ino {
		return nil, errors.New("a worker starts this by itself, for each command that it runs")
	}
	unix.CloseOnExec(controlFD)
	if err := unix.SetNonblock(controlFD, true); err != nil { // for Go's poller to take it
		return nil, err
	}
	return os.NewFile(controlFD, controlName), nil
}

// closeInherited closes what else the worker has left open, by mistake, as whoever
// started the worker may have: all that is not closed on exec, as everything is that
// Go has opened.
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
			_ = unix.Close(fd) // nothing of ours was written to it
		}
	}
	return nil
}
