package lease

import "time"

// Clock tells the time since some fixed point. It never goes back, is not set
// by anybody, and counts the time during which the machine was suspended.
type Clock interface {
	Now() time.Duration
}

// BootClock returns the machine's clock: CLOCK_BOOTTIME on Linux, and what is
// closest to it elsewhere. On systems other than Linux and macOS it may stop
// still while the machine is suspended.
func BootClock() Clock { return bootClock{} }

type bootClock struct{}
