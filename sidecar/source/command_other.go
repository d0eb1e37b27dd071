//go:build unix && !linux

package source

import "syscall"

// attributes give the command a group of its own. This system can't have it killed when
// this process dies.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func holdThread() (release func()) { return func() {} }
