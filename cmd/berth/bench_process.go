package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// processStop is how long a process of the benchmark has to end by itself:
// longer than a sidecar gives holders to stop.
const processStop = 15 * time.Second

// process is this program, run once more for a part of the benchmark. It does
// not hear the terminal's signals, and dies with this process where the system
// can do that.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startProcess runs berth with other arguments, and returns the first line that
// it writes to its stdout; it may write no more there. Its stderr goes to log.
func startProcess(log io.Writer, env []string, arguments ...string) (*process, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program: %w", err)
	}
	p := &process{cmd: exec.Command(self, arguments...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr, p.cmd.SysProcAttr = env, log, childAttributes()
	out, in, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	defer out.Close()
	p.cmd.Stdout = in
	if err := errors.Join(p.start(), in.Close()); err != nil {
		return nil, "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, "", fmt.Errorf("%s ended before it was ready", p.cmd)
	}
	return p, strings.TrimSpace(line), nil
}

// start starts the process from a goroutine that keeps its thread to itself,
// since the signal of a parent's death is that of the thread which forked.
func (p *process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // what is missing then says more
			close(p.done)
		}
	}()
	return <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop asks the process to end, and ends it if it does not.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(processStop):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}
