//go:build !linux

package server

import "net"

// peerAt knows no peers on this system.
func peerAt(*net.UnixConn) Peer { return Peer{} }

// wasReset does not know.
func wasReset(net.Conn) bool { return false }
