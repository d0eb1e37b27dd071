package proc

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsReturnedWhileThereIsLittleToDo(t *testing.T) {
	a := allocations{returned: 1 << 30, before: 2 << 30}
	for name, c := range map[string]struct {
		a    allocations
		now  uint64
		want bool
	}{
		"a peak is over":    {a, a.before + quietBytes - 1, true},
		"much to do":        {a, a.before + quietBytes, false},
		"nothing was to do": {allocations{1 << 30, 1<<30 + spareBytes - 2}, 1<<30 + spareBytes - 1, false},
		"little, for long":  {allocations{1 << 30, 1<<30 + spareBytes - 1}, 1<<30 + spareBytes, true},
	} {
		if got := c.a.spare(c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
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
