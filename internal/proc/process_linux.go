package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/lease"
)

// Self returns the ID of this process.
func Self() (ID, error) {
	s, err := Read(os.Getpid())
	if err != nil {
		return ID{}, err
	}
	id, err := here()
	id.PID, id.Start = s.PID, s.Start
	return id, err
}

// Boot identifies the boot of the machine.
func Boot() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return parseBoot(boot), err
}

// here returns the boot and the pid namespace.
func here() (ID, error) {
	boot, err := Boot()
	if err != nil {
		return ID{}, err
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &namespace); err != nil {
		return ID{}, fmt.Errorf("the pid namespace: %w", err)
	}
	return ID{Boot: boot, Namespace: namespace.Ino, Init: os.Getpid() == 1}, nil
}

// Read returns the stat of a process. Its error is [ErrNoProcess] if there is none.
func Read(pid int) (Stat, error) {
	text, err := read(pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(text)
	s.Start = lease.BootTicks(s.Start)
	return s, err
}

func read(pid int, name string) ([]byte, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = ErrNoProcess
	}
	return text, err
}

// All returns the stats of all visible processes.
func All() ([]Stat, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	var all []Stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := Read(pid); err == nil { // else it has ended
			all = append(all, s)
		}
	}
	return all, nil
}

// Kill kills the process of s. It reports false if that process has ended, or is another
// user's.
func (s Stat) Kill() bool {
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	if now, err := Read(s.PID); err != nil || now.Start != s.Start || now.Ended() {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// Process is a process that is watched through a pidfd.
type Process struct {
	id    ID
	owner Owner

	// mu guards what follows.
	mu    sync.Mutex
	fd    int    // -1 once closed
	onEnd func() // called once, in its own goroutine
	ended bool
	by    *Watcher

	number int32 // the watcher's; set before the process is returned
}

// Open identifies a process and begins to watch it.
func (w *Watcher) Open(pid int) (*Process, error) {
	if err := checkProc(); err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // EINVAL: the pid of a thread
		return nil, ErrNoProcess
	case err != nil:
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	p := &Process{fd: fd, by: w, id: w.here}
	p.id.PID = pid
	if err := p.identify(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if err := w.add(p); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return p, nil
}

// Find begins to watch a process that was identified earlier. The error is
// [ErrNoProcess] if it has ended; with any other error it may live. The program that
// identified it must have ended.
func (w *Watcher) Find(id ID) (*Process, error) {
	switch {
	case id.Boot != w.here.Boot:
		return nil, fmt.Errorf("the machine was started again: %w", ErrNoProcess)
	case id.Namespace != w.here.Namespace && id.Init:
		return nil, fmt.Errorf("its pid namespace has ended: %w", ErrNoProcess)
	case id.Namespace != w.here.Namespace:
		return nil, ErrOtherNamespace
	}
	p, err := w.Open(id.PID)
	if err == nil && !p.id.Same(id) {
		p.Close()
		return nil, fmt.Errorf("its number is another process': %w", ErrNoProcess)
	}
	return p, err
}

// ID returns the identity of the process.
func (p *Process) ID() ID { return p.id }

// Owner returns the users of the process when it was opened.
func (p *Process) Owner() Owner { return p.owner }

// identify reads the start and the owner.
func (p *Process) identify() error {
	s, err := Read(p.id.PID)
	if err != nil && !errors.Is(err, ErrNoProcess) {
		return err
	}
	p.id.Start = s.Start
	if p.owner, err = p.readOwner(); err == nil && s.PID != p.id.PID {
		err = ErrNoProcess // it was there only the second time
	}
	return err
}

// readOwner reads the owner. What was read of the process before is this process' own
// too, since it still lives afterwards: otherwise the error is [ErrNoProcess].
func (p *Process) readOwner() (Owner, error) {
	status, err := read(p.id.PID, "status")
	if ended(p.fd) {
		return Owner{}, ErrNoProcess
	}
	if errors.Is(err, ErrNoProcess) { // it lives, so it is hidden
		err = ErrHidden
	}
	if err != nil {
		return Owner{}, err
	}
	return parseOwner(status)
}

// Notify has f called when the process ends, at once if it has. It replaces the f of an
// earlier call.
func (p *Process) Notify(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.onEnd = f; p.ended && f != nil {
		go f()
	}
}

// end records that the process has ended.
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

// Signal sends a signal for the user with a uid, who must still be allowed to send it: a
// process may become another user's. Root and the user of this program may send any signal
// that the kernel lets this program send. The error is then [ErrOtherUser]. It succeeds if
// the process has ended.
func (p *Process) Signal(sig unix.Signal, by uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 || p.ended {
		return nil
	}
	if by != 0 && by != uint32(os.Geteuid()) {
		// A process that becomes another user's after this check is signaled as by a
		// kill(2) of a moment ago.
		switch owner, err := p.readOwner(); {
		case errors.Is(err, ErrNoProcess):
			return nil
		case err != nil:
			return err
		case !owner.Allows(by):
			return fmt.Errorf("process %d was bound by user %d and is user %d's now: %w", p.id.PID, by, owner.Real, ErrOtherUser)
		}
	}
	switch err := unix.PidfdSendSignal(p.fd, sig, nil, 0); {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("this program may not signal process %d: %w", p.id.PID, ErrOtherUser)
	case err != nil && !errors.Is(err, unix.ESRCH):
		return fmt.Errorf("signal process %d: %w", p.id.PID, err)
	}
	return nil
}

// Close ends the watch. Nothing is called from then on. The process may be nil.
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
