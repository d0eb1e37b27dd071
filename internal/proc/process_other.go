//go:build !linux

package proc

import (
	"errors"
	"syscall"
)

var errUnsupported = errors.New("processes can be watched on Linux only")

// Boot is refused on this system.
func Boot() (string, error) { return "", errUnsupported }

// Read is refused on this system.
func Read(int) (Stat, error) { return Stat{}, errUnsupported }

// Process is a process that is watched: there are none on this system.
type Process struct{ id ID }

// ID returns the zero ID.
func (p *Process) ID() ID { return p.id }

// Owner, Notify, Signal and Close do nothing.
func (*Process) Owner() Owner                        { return Owner{} }
func (*Process) Notify(func())                       {}
func (*Process) Signal(syscall.Signal, uint32) error { return nil }
func (*Process) Close()                              {}

// Watcher watches no processes.
type Watcher struct{}

// NewWatcher returns a watcher.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// Open and Find are refused.
func (*Watcher) Open(int) (*Process, error) { return nil, errUnsupported }
func (*Watcher) Find(ID) (*Process, error)  { return nil, errUnsupported }

// Close does nothing.
func (*Watcher) Close() error { return nil }
