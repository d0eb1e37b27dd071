//go:build !linux

package claims

import (
	"errors"
	"syscall"
)

// errUnsupported tells that this system can't watch processes of others.
var errUnsupported = errors.New("processes can be watched on Linux only")

// Process is a process that is watched: there are none on this system.
type Process struct {
	id processID
}

// Owner, Notify and Close do nothing.
func (*Process) Owner() uint32               { return 0 }
func (*Process) Notify(func())               {}
func (*Process) signal(syscall.Signal) error { return nil }
func (*Process) Close()                      {}

// Watcher watches no processes.
type Watcher struct{}

// NewWatcher returns a watcher.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// Open refuses.
func (*Watcher) Open(pid int) (*Process, error)   { return nil, errUnsupported }
func (*Watcher) find(processID) (*Process, error) { return nil, errUnsupported }

// Close does nothing.
func (*Watcher) Close() error { return nil }
