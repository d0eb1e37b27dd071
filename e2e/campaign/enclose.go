//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// enclose runs the campaign in namespaces of its own for processes and mounts: when it
// ends, however it does, the kernel ends all that it has started.
func enclose(args []string) (int, error) {
	if err := permitted(); err != nil {
		return 0, err
	}
	cmd := itself(append([]string{"init"}, args...), true)
	defer passOnSignals(cmd)()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_ = cmd.Wait() // the exit code tells
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, nil
	}
	return 1, nil // a signal has ended it
}

// passOnSignals has a process that is about to start get a signal when this one ends. What
// it returns ends that.
func passOnSignals(cmd *exec.Cmd) (stop func()) {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for s := range ends {
			if cmd.Process != nil {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	return func() { signal.Stop(ends); close(ends) }
}

// permitted tries out what enclose and its network need.
func permitted() error {
	cmd := itself([]string{"inside", "try"}, true)
	out := &limited{}
	cmd.Stderr = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// itself is this program in namespaces of its own. Who is not root becomes so in a
// namespace of users.
func itself(args []string, own bool) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if !own {
		return cmd
	}
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// inside is this program in namespaces of its own. The first process of a namespace takes
// in those whose parents have died, and does nothing else; its child is the campaign.
func inside(role string, args []string) int {
	if role == "inside" && len(args) > 0 && args[0] != "try" {
		o, err := parse(args)
		if err != nil {
			fmt.Fprintln(os.Stderr, "campaign:", err)
			return 2
		}
		return fight(o)
	}
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
	)
	if role == "inside" { // a try
		if err == nil {
			var n *switched
			if n, err = newSwitched([]string{"try"}, 0); err == nil {
				n.close()
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	child := itself(append([]string{"inside"}, args...), false)
	defer passOnSignals(child)()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case err != nil && !errors.Is(err, syscall.EINTR):
			return 1
		case pid == child.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == child.Process.Pid && status.Signaled():
			return 1
		}
	}
}

// sweep ends the processes that others have left to this one.
func sweep() {
	for {
		tasks, _ := filepath.Glob("/proc/self/task/*/children")
		var pids []string
		for _, path := range tasks {
			text, _ := os.ReadFile(path)
			pids = append(pids, strings.Fields(string(text))...)
		}
		if len(pids) == 0 {
			return
		}
		for _, text := range pids {
			var pid int
			if _, err := fmt.Sscan(text, &pid); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				_, _ = syscall.Wait4(pid, nil, 0, nil)
			}
		}
	}
}
