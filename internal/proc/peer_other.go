//go:build !linux

package proc

import (
	"net"
	"time"
)

// SharesPIDs and PeerSharesPIDs are false on this system, where processes can't be watched.
func SharesPIDs(int) bool                              { return false }
func PeerSharesPIDs(*net.UnixConn, time.Duration) bool { return false }

// Accepted is zero on this system.
func Accepted() time.Duration { return 0 }
