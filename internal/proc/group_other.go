//go:build unix && !linux

package proc

import "syscall"

// Attributes give a child its own process group. This system cannot have it killed when
// its parent dies.
func Attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func waitEnded(int) bool { return false }
func hasEnded(int) bool  { return false }
