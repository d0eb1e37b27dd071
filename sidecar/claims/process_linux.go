package claims

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/lease"
)

// Process is a process that is watched. It is named by a pidfd, so it is this
// very process for ever.
type Process struct {
	id    processID
	owner uint32

	// mu guards what follows.
	mu    sync.Mutex
	fd    int    // -1 once closed
	onEnd func() // called once, from a goroutine of its own
	ended bool
	by    *Watcher

	number int32 // the watcher's; set before anybody else knows the process
}

// Open looks at a process and begins to watch it.
func (w *Watcher) Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // EINVAL: the pid of a thread
		return nil, ErrNoProcess
	case err != nil:
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	p := &Process{fd: fd, by: w, id: processID{pid: pid, boot: w.boot, space: w.space}}
	if err := p.look(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if err := w.add(p); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return p, nil
}

// find begins to watch a process that an earlier watcher knew. That it is gone is
// ErrNoProcess; with another error it may live.
func (w *Watcher) find(id processID) (*Process, error) {
	switch {
	case id.boot != w.boot:
		return nil, fmt.Errorf("the machine was started again: %w", ErrNoProcess)
	case id.space != w.space:
		return nil, errOtherSpace
	}
	p, err := w.Open(id.pid)
	if err == nil && !p.id.is(id) {
		p.Close()
		return nil, fmt.Errorf("its number is another process': %w", ErrNoProcess)
	}
	return p, err
}

// Owner is the user that the process belongs to.
func (p *Process) Owner() uint32 { return p.owner }

// look reads when the process was started, and by whom. That it lives
// afterwards shows that what was read is its own.
func (p *Process) look() error {
	read := func(name string) ([]byte, error) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.id.pid, name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			err = ErrNoProcess
		}
		return data, err
	}
	stat, err := read("stat")
	if err != nil {
		return err
	}
	start, err := parseStart(stat)
	if err != nil {
		return err
	}
	p.id.start = lease.BootTicks(start)
	status, err := read("status")
	if err != nil {
		return err
	}
	if p.owner, err = parseUID(status); err != nil {
		return err
	}
	if hasEnded(p.fd) {
		return ErrNoProcess
	}
	return nil
}

// hasEnded tells whether the process of a pidfd has ended.
func hasEnded(fd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || n > 0
		}
	}
}

// Notify has f called when the process ends, at once if it has. It replaces
// what was to be called.
func (p *Process) Notify(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.onEnd = f; p.ended && f != nil {
		go f()
	}
}

// end takes that the process has ended.
func (p *Process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.fd < 0 {
		return
	}
	p.ended = true
	if p.onEnd != nil {
		go p.onEnd()
	}
}

// signal sends a signal. That the process is gone is no error.
func (p *Process) signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 || p.ended {
		return nil
	}
	if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.id.pid, err)
	}
	return nil
}

// Close ends the watch. Nothing is called from then on.
func (p *Process) Close() {
	if p == nil {
		return
	}
	p.by.remove(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onEnd = nil
	if p.fd >= 0 {
		_ = unix.Close(p.fd) // nothing was written to it
		p.fd = -1
	}
}
