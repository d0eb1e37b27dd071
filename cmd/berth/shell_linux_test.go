package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

// jobShell LOG FG COMMAND… is a shell with job control, as far as one command
// needs it: it runs the command in the foreground of its terminal, and writes to
// LOG what happens to it, one line each. When the command is stopped, it waits
// for a file FG<n>, n counting from 1, and puts it into the foreground again.
func jobShell(a []string) error {
	return runShell(a, &syscall.SysProcAttr{Foreground: true, Ctty: 0})
}

// jobBackground LOG FG COMMAND… is the same with a command that begins in the background.
func jobBackground(a []string) error { return runShell(a, &syscall.SysProcAttr{Setpgid: true}) }

func runShell(a []string, attributes *syscall.SysProcAttr) error {
	cmd := exec.Command(a[2], a[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes
	if err := cmd.Start(); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGTTOU) // only now: the command would inherit it
	var log []string
	for stops := 0; ; {
		var s unix.WaitStatus
		if err := proc.Retry(func() error { _, err := unix.Wait4(cmd.Process.Pid, &s, unix.WUNTRACED, nil); return err }); err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, unix.Getpgrp()); err != nil {
			return err
		}
		log = append(log, shellWord(s))
		if err := writeWhole(a[0], strings.Join(log, "\n")+"\n"); err != nil || !s.Stopped() {
			return err
		}
		stops++
		fg := fmt.Sprint(a[1], stops)
		if err := waitUntil("no "+fg, func() bool { return exists(fg) }); err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, cmd.Process.Pid); err != nil {
			return err
		}
		if err := unix.Kill(-cmd.Process.Pid, unix.SIGCONT); err != nil {
			return err
		}
	}
}

func shellWord(s unix.WaitStatus) string {
	switch {
	case s.Stopped():
		return "stopped"
	case s.Signaled():
		return s.Signal().String()
	}
	return fmt.Sprint("exited ", s.ExitStatus())
}
