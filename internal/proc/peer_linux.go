package proc

import (
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/lease"
)

// SharesPIDs reports whether a process is known to be in the pid namespace of this one, so that a
// number means the same process to both. 0 is the number of processes that this one can't see. It is
// false if /proc can't be read, hides the process, or is that of another pid namespace.
func SharesPIDs(pid int) bool {
	if pid == 0 || checkProc() != nil {
		return false
	}
	theirs, err := read(pid, "status")
	if err != nil {
		return false
	}
	own, err := read(os.Getpid(), "status")
	if err != nil {
		return false
	}
	// A process with a number here is in this namespace, or in one within it.
	if nested := len(parseNamespaces(own)); nested > 0 {
		return len(parseNamespaces(theirs)) == nested
	}
	var a, b unix.Stat_t // a system that does not report the numbers
	name := "/proc/" + strconv.Itoa(pid) + "/ns/pid"
	return unix.Stat(name, &a) == nil && unix.Stat("/proc/self/ns/pid", &b) == nil && a.Ino == b.Ino
}

// checkProc returns [ErrOtherProc] if the numbers in /proc are not those of this process' own pid
// namespace.
func checkProc() error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return ErrOtherProc
	}
	return nil
}

// PeerSharesPIDs is [SharesPIDs] for the process that opened the other end of a unix socket, or
// listens there. If that process has ended, its number may be another's by now, so it is false.
// Opened is when the connection was accepted; zero on the side that has opened it.
func PeerSharesPIDs(c *net.UnixConn, opened time.Duration) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	shares := false
	_ = raw.Control(func(fd uintptr) { // closed: it is not needed
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return
		}
		pid := int(cred.Pid)
		switch pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); {
		case err == nil:
			shares = SharesPIDs(pid) && !ended(pidfd)
			_ = unix.Close(pidfd) // nothing was written to it
		case errors.Is(err, unix.ENOPROTOOPT): // Linux before 6.5
			shares = SharesPIDs(pid) && startedBefore(pid, opened)
		}
	})
	return shares
}

// startedBefore reports whether a process was started before a time of [lease.BootClock]; 0 is any.
func startedBefore(pid int, at time.Duration) bool {
	s, err := Read(pid)
	return err == nil && (at == 0 || s.Start <= uint64(at/ClockTick)+1)
}

// Accepted is the time of a connection that was accepted just now, for [PeerSharesPIDs].
func Accepted() time.Duration { return lease.BootClock().Now() }

// ended reports whether the process of a pidfd has ended.
func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n := 0
	err := Retry(func() (err error) { n, err = unix.Poll(fds, 0); return err })
	return err != nil || n > 0
}
