//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one that is started again whenever it ends, as systemd does, until it is
// stopped.
type process struct {
	name, node string
	args       []string
	user       *syscall.Credential // as whom it runs, if not as this process
	env        []string
	log        string
	net        network

	mu      sync.Mutex // guards what follows
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
	wanted  bool
	changed chan struct{} // closed and replaced when wanted changes
	starts  int
	signals int // that may end cmd
	alone   int // how often it ended without one
}

// restartAfter is the pause before a process is started again.
const restartAfter = 200 * time.Millisecond

// keep runs the process whenever it is wanted, until ctx ends.
func (p *process) keep(ctx context.Context) {
	defer p.kill()
	for ctx.Err() == nil {
		p.mu.Lock()
		wanted, changed := p.wanted, p.changed
		p.mu.Unlock()
		if !wanted {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := p.start(); err != nil {
			fmt.Fprintf(os.Stderr, "campaign: start %s: %v\n", p.name, err)
		} else {
			select {
			case <-p.ended:
			case <-ctx.Done():
				p.kill()
				<-p.ended
				return
			}
		}
		pause(ctx, restartAfter)
	}
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: p.user}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted {
		return nil
	}
	if err := p.net.start(p.node, cmd); err != nil {
		return err
	}
	ended := make(chan struct{})
	p.cmd, p.ended = cmd, ended
	p.starts++
	p.signals = 0
	go func() {
		defer close(ended)
		_ = cmd.Wait() // however it has ended, it is started again
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.signals == 0 {
			p.alone++
		}
	}()
	return nil
}

// want has the process run, or not.
func (p *process) want(yes bool) {
	p.mu.Lock()
	p.wanted = yes
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if !yes {
		p.kill()
	}
}

func (p *process) kill() { p.signal(syscall.SIGKILL) }

// signal sends a signal to the process that runs, if there is one.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	select {
	case <-p.ended:
	default:
		if s != syscall.SIGSTOP && s != syscall.SIGCONT {
			p.signals++
		}
		_ = p.cmd.Process.Signal(s) // it may end just now
	}
}

// byItself returns how often the process has ended without a signal, since the last call.
func (p *process) byItself() (times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	times, p.alone = p.alone, 0
	return times
}

// pid is that of the process that was started last, or 0.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// gone waits until the process that runs has ended.
func (p *process) gone(ctx context.Context) {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// crashed returns the first line of a log that says that Go has ended the process.
func crashed(log io.Reader) (string, error) {
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return strings.TrimSpace(line), nil
		}
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
	}
}

// crashes says which processes Go has ended at some time.
func (ps *processes) crashes() (all []string) {
	for _, p := range ps.all {
		log, err := os.Open(p.log)
		if err != nil {
			continue // it was never started
		}
		line, err := crashed(log)
		log.Close()
		if err != nil {
			line = err.Error()
		}
		if line != "" {
			all = append(all, fmt.Sprintf("%s: %s: see %s", p.name, line, p.log))
		}
	}
	return all
}

// processes are all of a campaign.
type processes struct {
	all []*process
	ctx context.Context
	net network
	env []string
	wg  sync.WaitGroup
}

// add has a process kept from now on; it runs when it is wanted.
func (ps *processes) add(node, name, log string, args ...string) *process {
	p := &process{
		name: name, node: node, args: args, env: ps.env, log: log, net: ps.net, changed: make(chan struct{}),
	}
	ps.all = append(ps.all, p)
	ps.wg.Go(func() { p.keep(ps.ctx) })
	return p
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// until tries until it is done, or ctx ends.
func until(ctx context.Context, each time.Duration, try func() bool) bool {
	for !try() {
		if pause(ctx, each); ctx.Err() != nil {
			return false
		}
	}
	return true
}
