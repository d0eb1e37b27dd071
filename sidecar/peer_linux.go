package sidecar

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerAt asks the kernel who opened a connection.
func peerAt(c *net.UnixConn) peer {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}
	}
	var p peer
	_ = raw.Control(func(fd uintptr) { // closed: nobody will ask
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = peer{known: true, uid: cred.Uid}
		}
	})
	return p
}
