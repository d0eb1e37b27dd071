//go:build !linux

package child

import (
	"errors"
	"fmt"
	"time"
)

var errUnsupported = fmt.Errorf("commands of steps can be supervised on Linux only: %w", errors.ErrUnsupported)

// Child is a command as its worker sees it: there are none on this system.
type Child struct{}

// Start is refused on this system.
func Start(self, dir string, c Command, trustedUntil time.Duration) (*Child, error) {
	return nil, errUnsupported
}

// Open is refused on this system.
func Open(dir string) (*Child, error) { return nil, errUnsupported }

// Supervise is refused on this system.
func Supervise(dir string) error { return errUnsupported }

// Dir is the child's folder.
func (*Child) Dir() string { return "" }

// Output is the path of the command's output.
func (*Child) Output() string { return "" }

// Shift is 0.
func (*Child) Shift() int64 { return 0 }

// Done is never closed.
func (*Child) Done() <-chan struct{} { return nil }

// Result is not known.
func (*Child) Result() (Result, error) { return Result{}, errUnsupported }

// Stop is refused.
func (*Child) Stop(reason string) error { return errUnsupported }

// Trust is refused.
func (*Child) Trust(until time.Duration) error { return errUnsupported }

// Remove is refused.
func (*Child) Remove() error { return errUnsupported }

// Close does nothing.
func (*Child) Close() error { return nil }
