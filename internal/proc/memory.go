package proc

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// memoryEvery is how often to check whether memory is to be returned.
	memoryEvery = 5 * time.Second
	// quietBytes is how much a process allocates at most in that time while it has little to
	// do: renewals and watches of thousands of claims take less.
	quietBytes = 4 << 20
	// spareBytes is how much must have been allocated since memory was returned last for it
	// to be worth a garbage collection, which takes some 10 ms of CPU for a heap of 30 MiB.
	spareBytes = 8 << 20
	// busyBytes is how much a process that is busy allocates at least in memoryEvery: some
	// hundred claims a second over HTTP.
	busyBytes = 16 << 20
	// freshBytes is how much a busy process allocates at least between two garbage collections.
	// By default it is as much as lives, which is 5 MB in a sidecar with few claims: collections
	// took 8 % of its CPU time then, and requests were slower.
	freshBytes = 24 << 20
	// usualPercent is the default of GOGC.
	usualPercent = 100
)

// spare reports whether memory is to be returned, by how many bytes the process has allocated in all:
// now, at the last check, and when memory was returned last. It is if there was little to do since
// the check, and much before.
func spare(now, checked, returned uint64) bool {
	return now-checked < quietBytes && now-returned >= spareBytes
}

// percentFor returns the GOGC of a process that has allocated some bytes since the last check, of a
// heap of which some bytes live.
func percentFor(allocated, live uint64) int {
	if allocated < busyBytes {
		return usualPercent
	}
	return max(usualPercent, int(freshBytes*usualPercent/max(live, 1<<20)))
}

// ReturnMemory returns unused memory to the system whenever this process has little to do, until stop
// is called. Go itself keeps about twice what lives, and takes many minutes to give up what a peak
// has needed. While the process is busy and its heap is small, garbage is collected less often,
// unless GOGC is set.
func ReturnMemory() (stop func()) {
	done := make(chan struct{})
	var task sync.WaitGroup
	task.Go(func() {
		tick := time.NewTicker(memoryEvery)
		defer tick.Stop()
		percent := debug.SetGCPercent(usualPercent)
		debug.SetGCPercent(percent)
		tune := percent == usualPercent
		defer func() { debug.SetGCPercent(percent) }()
		checked, _ := heap()
		for returned := uint64(0); ; {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			now, live := heap()
			if tune {
				debug.SetGCPercent(percentFor(now-checked, live))
			}
			if spare(now, checked, returned) {
				debug.FreeOSMemory()
				returned = now
			}
			checked = now
		}
	})
	return func() { close(done); task.Wait() }
}

// heap returns how many bytes this process has allocated in all, and how many of them the last
// garbage collection found alive.
func heap() (allocated, live uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}
