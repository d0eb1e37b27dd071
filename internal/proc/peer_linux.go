package proc

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// SharesPIDs reports whether a process and this one are in one pid namespace, so that a number
// means the same process to both. 0 is the number of processes that this one can't see. A process
// whose status is hidden from this user counts as one of this namespace.
func SharesPIDs(pid int) bool {
	if pid == 0 {
		return false
	}
	theirs, err := read(pid, "status")
	if err != nil {
		return true
	}
	own, err := read(os.Getpid(), "status")
	return err != nil || len(parseNamespaces(theirs)) == len(parseNamespaces(own))
}

// PeerSharesPIDs is SharesPIDs for the process that listens at a unix socket.
func PeerSharesPIDs(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // closed: it is not needed
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return SharesPIDs(pid)
}
