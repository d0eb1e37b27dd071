//go:build unix && !solaris && !aix

package lease

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errLocked tells that another process has the lock.
var errLocked = errors.New("locked by another process")

// lockExclusively locks a file until it is closed. Child processes don't inherit
// it, since Go opens files to be closed on exec.
func lockExclusively(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return errLocked
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// unlock gives the lock up at once. Closing the file would do it too, but not while a
// child is being forked: until that has come to exec, it has the file as well.
func unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
