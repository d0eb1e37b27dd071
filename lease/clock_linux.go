package lease

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now reads CLOCK_BOOTTIME, which every Linux that Go runs on has.
func (bootClock) Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("lease: the clock can't be read: %v", err))
	}
	return time.Duration(t.Nano())
}
