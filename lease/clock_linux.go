package lease

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readBootClock reads CLOCK_BOOTTIME, which every Linux that Go runs on has. It is the machine's
// own, whatever the time namespace of this process adds to it: what one process writes
// down, another may read that is in another one.
func readBootClock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("lease: the clock can't be read: %v", err))
	}
	return time.Duration(t.Nano()) - bootOffset()
}

// clockTick is the unit of times in /proc/<pid>/stat: USER_HZ is 100 wherever Go runs.
const clockTick = 10 * time.Millisecond

// BootTicks returns when a process was started, in clock ticks since the machine's boot,
// from the ticks that /proc/<pid>/stat reports to this process. Those depend on the time
// namespace of the reader, so the results of two readers in different ones may differ by
// one.
func BootTicks(reported uint64) uint64 { return bootTicks(reported, bootOffset()) }

func bootTicks(reported uint64, offset time.Duration) uint64 {
	return uint64(max(0, int64(reported)-int64(offset/clockTick)))
}

// bootOffset is what the time namespace of this process adds to times since the boot. It
// stays the same for as long as the process lives.
var bootOffset = sync.OnceValue(func() time.Duration {
	// The file is about the namespace that children get, which is another one only while
	// a process prepares it.
	own, _ := os.Readlink("/proc/self/ns/time")
	if next, err := os.Readlink("/proc/self/ns/time_for_children"); err != nil || own != next {
		return 0
	}
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	return parseBootOffset(string(text))
})

// parseBootOffset reads lines of text such as "boottime 86400 0": a clock, seconds, and
// nanoseconds.
func parseBootOffset(text string) time.Duration {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "boottime" {
			continue
		}
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		nanos, errNanos := strconv.ParseInt(fields[2], 10, 64)
		if err == nil && errNanos == nil {
			return time.Duration(seconds)*time.Second + time.Duration(nanos)
		}
	}
	return 0
}
