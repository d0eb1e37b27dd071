//go:build !linux && !darwin

package lease

import "time"

var processStart = time.Now()

// Now reads Go's monotonic clock.
func (bootClock) Now() time.Duration { return time.Since(processStart) }
