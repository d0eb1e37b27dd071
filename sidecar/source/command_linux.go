package source

import (
	"runtime"
	"syscall"
)

// attributes give the command a group of its own, and have it killed when this process
// dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// holdThread keeps the thread that starts a command: its end, too, would have the
// command killed.
func holdThread() (release func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
