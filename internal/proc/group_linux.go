package proc

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Attributes give a child its own process group, and have it killed when the thread that
// started it ends.
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitEnded waits until a child has stopped or ended, and reports whether it has ended.
// The child can be waited for again.
func waitEnded(pid int) bool { return peek(pid, unix.WEXITED|unix.WSTOPPED) }

func hasEnded(pid int) bool { return peek(pid, unix.WEXITED|unix.WNOHANG) }

func peek(pid, options int) bool {
	// The values of si_code for a child that has ended: by itself, by a signal, and with
	// a core dump.
	const exited, dumped = 1, 3
	var info unix.Siginfo
	err := Retry(func() error {
		return unix.Waitid(unix.P_PID, pid, &info, options|unix.WNOWAIT, nil)
	})
	return err == nil && info.Code >= exited && info.Code <= dumped
}
