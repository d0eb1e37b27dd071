package proc

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher waits for the end of many processes in one goroutine: their pidfds are in an
// epoll instance, for which Go's poller waits.
type Watcher struct {
	here ID       // the boot and the pid namespace
	file *os.File // the epoll instance
	fd   int
	done chan struct{}

	// mu guards what follows.
	mu     sync.Mutex
	procs  map[int32]*Process // by a number of our own: numbers of files are used again
	next   int32
	closed bool
}

// NewWatcher starts a watcher, which runs until it is closed.
func NewWatcher() (*Watcher, error) {
	id, err := here()
	if err != nil {
		return nil, err
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for Go's poller to take it
		return nil, errors.Join(err, unix.Close(fd))
	}
	w := &Watcher{
		here: id, fd: fd, file: os.NewFile(uintptr(fd), "epoll"),
		done: make(chan struct{}), procs: map[int32]*Process{},
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	go func() {
		defer close(w.done)
		for conn.Read(w.wait) == nil { //nolint:revive // the work is in the condition
		}
	}()
	return w, nil
}

// wait notifies the processes that have ended, and reports whether there were any.
func (w *Watcher) wait(fd uintptr) bool {
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(int(fd), events[:], 0)
	if errors.Is(err, unix.EINTR) {
		return true // try again
	}
	for _, e := range events[:max(n, 0)] {
		w.mu.Lock()
		p := w.procs[e.Fd]
		w.mu.Unlock()
		if p != nil {
			p.end()
		}
	}
	return n > 0
}

// add begins to watch a process. Its end is notified once.
func (w *Watcher) add(p *Process) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	for w.next++; w.procs[w.next] != nil; w.next++ { //nolint:revive // finds the next free number
	}
	p.number = w.next
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: p.number}
	if err := unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, p.fd, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	w.procs[p.number] = p
	return nil
}

// remove ends the watch of a process whose pidfd is still open.
func (w *Watcher) remove(p *Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.procs[p.number] != p {
		return
	}
	delete(w.procs, p.number)
	if !w.closed {
		_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, p.fd, nil) // closing it does the same
	}
}

// Close ends the watcher. Its processes must be closed as well.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.file.Close()
	<-w.done
	return err
}
