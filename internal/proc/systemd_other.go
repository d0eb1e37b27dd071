//go:build !linux

package proc

import "os"

// States of a service, for systemd.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
)

// Notify does nothing: there is no systemd.
func Notify(string) error { return nil }

// ServesAll reports whether this process is root's.
func ServesAll() bool { return os.Geteuid() == 0 }

// IsJournal reports false: there is no journal.
func IsJournal(*os.File) bool { return false }
