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
)

// spare reports whether memory is to be returned, by how many bytes the process has allocated in all:
// now, at the last check, and when memory was returned last. It is if there was little to do since
// the check, and much before.
func spare(now, checked, returned uint64) bool {
	return now-checked < quietBytes && now-returned >= spareBytes
}

// ReturnMemory returns unused memory to the system whenever this process has little to do, until stop
// is called. Go itself keeps about twice what lives, and takes many minutes to give up what a peak
// has needed.
func ReturnMemory() (stop func()) {
	done := make(chan struct{})
	var task sync.WaitGroup
	task.Go(func() {
		tick := time.NewTicker(memoryEvery)
		defer tick.Stop()
		for checked, returned := allocated(), uint64(0); ; {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			now := allocated()
			if spare(now, checked, returned) {
				debug.FreeOSMemory()
				returned = now
			}
			checked = now
		}
	})
	return func() { close(done); task.Wait() }
}

// allocated is how many bytes of the heap this process has allocated in all.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
