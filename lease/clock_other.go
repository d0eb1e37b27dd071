//go:build !linux && !darwin

package lease

import "time"

var processStart = time.Now()

// readBootClock reads Go's monotonic clock.
func readBootClock() time.Duration { return time.Since(processStart) }
