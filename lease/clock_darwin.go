package lease

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// readBootClock reads CLOCK_MONOTONIC, which on macOS goes on while the machine sleeps.
func readBootClock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("lease: the clock can't be read: %v", err))
	}
	return time.Duration(t.Nano())
}
