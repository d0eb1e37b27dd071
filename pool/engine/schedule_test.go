package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/store/storetest"
)

// found are schedules that have found faults.
var found = []uint64{503294, 3109674}

// Owners, dispatchers and successions of several instances keep their rules together: no number is held twice and no limit is
// exceeded, a claim has all of its slots or none, takes what it was offered or nobody waits for, and keeps its place; only who has
// the role offers, and nobody takes that from one that is well; and when nothing goes wrong any longer, each claim that fits is
// served, and nothing is left behind.
func TestBothMachinesKeepTheirRulesTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has no second goroutine")
	}
	t.Parallel()
	seen := map[string]int{}
	seeds, usual := storetest.Seeds(200)
	for _, seed := range slices.AppendSeq(slices.Clone(found), seeds) {
		w := schedule(seed, fault{})
		if len(w.errs) > 0 {
			t.Errorf("schedule %d: %s%s", seed, strings.Join(w.errs[:min(3, len(w.errs))], "\n"), w.dump())
			return
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	t.Log(seen)
	for _, what := range []string{
		"adopted", "by an advance offer", "by an offer", "by an offer in memory", "by itself", "direct", "forced", "passing", "restarts",
		"silent", "sleeps", "blocks", "of a whole pool",
	} {
		if usual && seen[what] == 0 {
			t.Errorf("no schedule has %s", what)
		}
	}
}
