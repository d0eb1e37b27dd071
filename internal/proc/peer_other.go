//go:build !linux

package proc

import "net"

// SharesPIDs and PeerSharesPIDs are false on this system, where processes can't be watched.
func SharesPIDs(int) bool               { return false }
func PeerSharesPIDs(*net.UnixConn) bool { return false }
