//go:build unix

package main

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// jobInterrupts interrupts its process group as exec does, while all its threads are busy.
func jobInterrupts([]string) error {
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT)
	var running atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for running.Add(1); ; {
				running.Load()
			}
		}()
	}
	for running.Load() == 0 {
		runtime.Gosched()
	}
	interruptGroup()
	os.Exit(interruptsReturned)
	return nil
}

const interruptsReturned = 130

// A script stops with the command that Ctrl-C has ended only if exec ends by the signal, too: a shell
// goes on after an exit code.
func TestExecEndsByTheInterruptThatItPassesOn(t *testing.T) {
	t.Parallel()
	d := &desk{t: t, env: os.Environ()}
	for range 50 {
		cmd := d.self("job", "interrupts")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err := cmd.Run()
		if s := cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != unix.SIGINT {
			t.Fatalf("it ended with %v: %s", err, cmd.ProcessState)
		}
	}
}
