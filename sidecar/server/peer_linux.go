package server

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is how many groups of a user count: Linux allows no more.
const maxGroups = 65536

// peerAt asks the kernel who opened a connection.
func peerAt(c *net.UnixConn) Peer {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}
	}
	var p Peer
	_ = raw.Control(func(fd uintptr) { // closed: it is not needed
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = Peer{Known: true, PID: int(cred.Pid), UID: cred.Uid, GIDs: append(groupsAt(int(fd)), cred.Gid)}
		}
	})
	return p
}

// groupsAt returns the further groups of the process that opened a connection; none if the
// kernel does not say.
func groupsAt(fd int) []uint32 {
	for size := 64; size <= maxGroups; size *= 4 {
		gids := make([]uint32, size)
		n := uint32(4 * size)
		_, _, err := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&n)), 0)
		if err == 0 {
			return gids[:n/4]
		}
		if err != unix.ERANGE {
			return nil
		}
	}
	return nil
}

// wasReset reports whether a connection has been reset since the last call.
func wasReset(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	reset := false
	_ = raw.Control(func(fd uintptr) { // closed: it was asked before
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		reset = err == nil && code != 0
	})
	return reset
}
