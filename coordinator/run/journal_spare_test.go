package run

import (
	"fmt"
	"testing"
)

func TestSparesAreCountedByRunAndForNotTooMany(t *testing.T) {
	j := &Journal{}
	for i := range sparePerRun {
		if !j.Spare("a") {
			t.Fatalf("there is no room for event %d", i)
		}
	}
	if j.Spare("a") || !j.Spare("b") {
		t.Error("the bound is not that of each run")
	}
	for i := range 3 * spareRuns {
		if !j.Spare(fmt.Sprint("r", i)) {
			t.Fatalf("run %d has no room", i)
		}
	}
	if n := len(j.spares.used); n > spareRuns {
		t.Errorf("%d runs are counted, allowed are %d", n, spareRuns)
	}
}
