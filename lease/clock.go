package lease

import (
	"sync/atomic"
	"time"
)

// Clock tells the time since some fixed point. It never goes back, is not set
// by anybody, and counts the time during which the machine was suspended.
type Clock interface {
	Now() time.Duration
}

// BootClock returns the machine's clock: CLOCK_BOOTTIME on Linux, and what is
// closest to it elsewhere. On systems other than Linux and macOS it may stop
// still while the machine is suspended.
//
// A reading is up to [ReadingAge] old by [time.Now], which stands still while the machine is
// suspended. So a process may notice a suspend that much late, as if it had been suspended just
// after it read the clock. The margin of a [Window] covers it. All parts of a process share their
// readings, also synctest bubbles.
func BootClock() Clock { return bootClock{} }

type bootClock struct{}

// ReadingAge is how long a reading of [BootClock] is used: reading the clock is a system call,
// which takes 25 times as long as [time.Now], and every claim needs some.
const ReadingAge = time.Millisecond

// reading is a time of the clock. When is from before it was read.
type reading struct {
	when time.Time
	at   time.Duration
}

var last atomic.Pointer[reading]

// Now returns the last reading, or reads the clock.
func (bootClock) Now() time.Duration {
	now := time.Now()
	for {
		before := last.Load()
		if before != nil {
			if age := now.Sub(before.when); age >= 0 && age < ReadingAge {
				return before.at
			}
		}
		r := &reading{now, readBootClock()}
		if last.CompareAndSwap(before, r) { // else an older reading could follow a newer one
			return r.at
		}
	}
}
