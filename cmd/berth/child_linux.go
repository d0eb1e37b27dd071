package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes give the child a group of its own, and have it killed when
// this process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// hasEnded waits until a child has stopped or ended, tells which, and leaves it
// to be waited for again.
func hasEnded(pid int) bool { return peek(pid, unix.WEXITED|unix.WSTOPPED) }

// endedNow tells whether a child has ended, whoever has heard of it already.
func endedNow(pid int) bool { return peek(pid, unix.WEXITED|unix.WNOHANG) }

func peek(pid, options int) bool {
	var info unix.Siginfo
	err := ignoringEINTR(func() error {
		return unix.Waitid(unix.P_PID, pid, &info, options|unix.WNOWAIT, nil)
	})
	return err == nil && info.Code >= cldExited && info.Code <= cldDumped
}

// What si_code says of a child that has ended: by itself, by a signal, by one
// with a core dump.
const (
	cldExited = 1
	cldDumped = 3
)

// parentOf returns the parent of a process, 0 if it is not known.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// pid (name) state parent …, where the name may hold anything
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	var state string
	parent := 0
	_, _ = fmt.Sscan(string(rest), &state, &parent)
	return parent
}
