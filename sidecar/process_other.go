//go:build !linux

package sidecar

import (
	"errors"
	"syscall"
)

// errUnsupported tells that this system can't watch processes of others.
var errUnsupported = errors.New("processes can be watched on Linux only")

// process is a process that is watched: there are none on this system.
type process struct {
	id    processID
	owner uint32
}

func (*process) notify(func())               {}
func (*process) signal(syscall.Signal) error { return nil }
func (*process) close()                      {}

// watcher watches no processes.
type watcher struct{}

func newWatcher() (*watcher, error)               { return &watcher{}, nil }
func (*watcher) open(pid int) (*process, error)   { return nil, errUnsupported }
func (*watcher) find(processID) (*process, error) { return nil, errUnsupported }
func (*watcher) close() error                     { return nil }
