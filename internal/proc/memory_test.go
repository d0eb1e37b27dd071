package proc

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsReturnedWhileThereIsLittleToDo(t *testing.T) {
	const returned, checked = 1 << 30, 2 << 30
	for name, c := range map[string]struct {
		now, checked uint64
		want         bool
	}{
		"a peak is over":    {checked + quietBytes - 1, checked, true},
		"much to do":        {checked + quietBytes, checked, false},
		"nothing was to do": {returned + spareBytes - 1, returned + spareBytes - 2, false},
		"little, for long":  {returned + spareBytes, returned + spareBytes - 1, true},
	} {
		if got := spare(c.now, c.checked, returned); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestABusyProcessWithASmallHeapCollectsLessOften(t *testing.T) {
	for name, c := range map[string]struct {
		allocated, live uint64
		want            int
	}{
		"little to do":      {busyBytes - 1, 4 << 20, 100},
		"a small heap":      {busyBytes, 4 << 20, 600},
		"a larger one":      {busyBytes, 16 << 20, 150},
		"a large one":       {busyBytes, freshBytes + 1, 100},
		"nothing collected": {busyBytes, 0, 2400},
	} {
		if got := percentFor(c.allocated, c.live); got != c.want {
			t.Errorf("%s: %d", name, got)
		}
	}
}

func TestMemoryOfAPeakIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := ReturnMemory()
		peak := make([][]byte, 64)
		for i := range peak {
			peak[i] = make([]byte, 1<<20)
		}
		runtime.KeepAlive(peak)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		peak = nil
		time.Sleep(3 * memoryEvery) // of the bubble
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if kept := after.HeapSys - after.HeapReleased; kept > before.HeapSys-before.HeapReleased-48<<20 {
			t.Errorf("%d MiB are kept of %d", kept>>20, (before.HeapSys-before.HeapReleased)>>20)
		}
		stop()
	})
}
