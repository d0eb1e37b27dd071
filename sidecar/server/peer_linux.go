package server

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerAt asks the kernel who opened a connection.
func peerAt(c *net.UnixConn) Peer {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}
	}
	var p Peer
	_ = raw.Control(func(fd uintptr) { // closed: it is not needed
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = Peer{Known: true, UID: cred.Uid}
		}
	})
	return p
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
