//go:build !linux

package child

import (
	"errors"
	"fmt"
	"time"
)

var errUnsupported = fmt.Errorf("commands of steps need Linux: %w", errors.ErrUnsupported)

// Child is a command as its worker sees it: there are none on this system.
type Child struct{}

// Start is refused on this system.
func Start(self, dir string, c Command, validUntil time.Duration) (*Child, error) {
	return nil, errUnsupported
}

// Open is refused on this system.
func Open(dir string) (*Child, error) { return nil, errUnsupported }

// Supervise is refused on this system.
func Supervise(dir string) error { return errUnsupported }

// Dir returns "".
func (*Child) Dir() string { return "" }

// Output returns "".
func (*Child) Output() string { return "" }

// Shift returns 0.
func (*Child) Shift() int64 { return 0 }

// Done is never closed.
func (*Child) Done() <-chan struct{} { return nil }

// Result is refused.
func (*Child) Result() (Result, error) { return Result{}, errUnsupported }

// Stop is refused.
func (*Child) Stop(reason string) error { return errUnsupported }

// Extend is refused.
func (*Child) Extend(until time.Duration) error { return errUnsupported }

// Remove is refused.
func (*Child) Remove() error { return errUnsupported }

// Close does nothing.
func (*Child) Close() error { return nil }
