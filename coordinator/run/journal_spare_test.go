package run

import (
	"fmt"
	"testing"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

func TestSparesAreCountedByRunAndForNotTooMany(t *testing.T) {
	j := &Journal{}
	for i := range sparePerRun {
		if !j.Spare("a") {
			t.Fatalf("there is no space for event %d", i)
		}
	}
	if j.Spare("a") || !j.Spare("b") {
		t.Error("the bound is not that of each run")
	}
	for i := range 3 * spareRuns {
		if !j.Spare(fmt.Sprint("r", i)) {
			t.Fatalf("run %d has no space", i)
		}
	}
	if n := len(j.spares.used); n > spareRuns {
		t.Errorf("%d runs are counted, allowed are %d", n, spareRuns)
	}
}

func TestNoLeaseCarriesMoreThan300Events(t *testing.T) {
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer b.Close()
	j := NewJournal(b, store.NewKeys(store.DefaultPrefix), "one/test", 0)
	events := map[int64]int{}
	for i := range 1000 {
		op, err := j.Op(t.Context(), fmt.Sprint("r", i), Event{Type: RunQueued})
		if err != nil {
			t.Fatal(err)
		}
		events[op.GetRequestPut().Lease]++
	}
	for id, n := range events {
		if n > 300 {
			t.Errorf("lease %x carries %d events, allowed are 300", id, n)
		}
	}
}
