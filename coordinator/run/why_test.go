package run

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// Only the runs that have slots of the pools that a run waits for block it.
func TestARunThatWaitsForPoolsBlamesThoseWhoHaveTheirSlots(t *testing.T) {
	running := func(id string, pools map[string]int) *Run {
		return &Run{ID: id, Record: Record{Status: Running, Spec: Spec{Tags: map[string]string{"t": "x"}, Pools: pools}}}
	}
	all := All{Runs: []*Run{
		running("db", map[string]int{"db": 1}), running("gpu", map[string]int{"disk": 1, "gpu": 1}),
		running("other", map[string]int{"disk": 1}), running("plain", nil),
		{ID: "waits", Record: Record{
			Status: Queued, Block: &Block{Kind: BlockPool},
			Spec: Spec{Tags: map[string]string{"t": "x"}, Pools: map[string]int{"db": 1, "gpu": 2}},
		}},
	}}
	w := all.Why("waits", nil, time.Unix(1000, 0))
	if len(w.InTheWay) != 2 || w.InTheWay[0].ID != "db" || w.InTheWay[1].ID != "gpu" {
		t.Errorf("in the way are %+v", w.InTheWay)
	}
}

// The numbers of a pool are those of now, not those that were noted.
func TestWhyHasTheNumbersOfPoolsAsTheyAre(t *testing.T) {
	all := All{Runs: []*Run{{ID: "waits", Created: 1, Record: Record{
		Status: Queued, Block: &Block{Kind: BlockPool, Text: "pool 'db' has too few free slots (4 slots, 3 wanted)"},
		Spec: Spec{Pools: map[string]int{"db": 3}},
	}}}}
	for used, want := range map[int]string{
		4: "pool 'db' full (4/4 slots)", 2: "pool 'db' has too few free slots (2/4 slots, 3 wanted)",
		1: "pool 'db' has too few free slots (4 slots, 3 wanted)", // there is capacity: what is noted
	} {
		space := pool.NewSpace(pool.Status{Name: "db", Spec: pool.Spec{Limit: 4}, Claimed: used})
		if got := all.Why("waits", space, time.Unix(1000, 0)).Run.Block.Text; got != want {
			t.Errorf("%d used: %q, want %q", used, got, want)
		}
	}
	if all.Runs[0].Block.Text != "pool 'db' has too few free slots (4 slots, 3 wanted)" {
		t.Error("the run itself was changed")
	}
}

// queuedBy returns a queued run that a limit blocks.
func queuedBy(id string, created int64, b Block) *Run {
	return &Run{ID: id, Created: created, Record: Record{Status: Queued, Block: &b, Spec: Spec{Tags: map[string]string{"env": "prod", "tenant": "a"}}}}
}

func TestOnlyRunsThatCountAgainstTheBlockingLimitAreInTheWay(t *testing.T) {
	running := func(id string, tags map[string]string) *Run {
		return &Run{ID: id, Record: Record{Status: Running, Spec: Spec{Tags: tags}}}
	}
	runs := []*Run{
		running("b", map[string]string{"env": "prod", "tenant": "b"}), running("c", map[string]string{"env": "test", "tenant": "a"}),
		running("d", map[string]string{"tenant": "a"}), running("e", nil),
	}
	for block, want := range map[Block][]string{
		TagLimitBlock("env", "prod", 1, 1):  {"b"},
		TagLimitBlock("env", "", 2, 2):      {"b", "c"},
		TagLimitBlock("tenant", "a", 2, 2):  {"c", "d"},
		RunLimitBlock(4, 4):                 {"b", "c", "d", "e"},
		PoolBlock("pool 'x' is closed"):     nil,
		{Kind: BlockTagLimit, Text: "none"}: nil,
	} {
		w := All{Runs: append(slices.Clone(runs), queuedBy("q", 1, block))}.Why("q", nil, time.Unix(1000, 0))
		var got []string
		for _, r := range w.InTheWay {
			got = append(got, r.ID)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %v are in the way, want %v", block.Text, got, want)
		}
	}
	// A run that the coordinator has not checked blames none.
	fresh := &Run{ID: "q", Created: 1, Record: Record{Status: Queued}}
	if w := (All{Runs: append(slices.Clone(runs), fresh)}).Why("q", nil, time.Unix(1000, 0)); len(w.InTheWay) > 0 {
		t.Errorf("%+v", w)
	}
}

func TestAnEstimateIsJudgedByEndedRunsOfTheSameName(t *testing.T) {
	now := time.Unix(10_000, 0)
	limit := RunLimitBlock(2, 2)
	ended := func(id, name string, took time.Duration) *Run {
		return &Run{ID: id, Record: Record{Status: Succeeded, Spec: Spec{Name: name}, StartedAt: now.Add(-took), EndedAt: now}}
	}
	running := func(id, name string, since time.Duration) *Run {
		r := &Run{ID: id, Record: Record{Status: Running, Spec: Spec{Name: name}}}
		if since >= 0 {
			r.StartedAt = now.Add(-since)
		}
		return r
	}
	history := []*Run{ended("e1", "load", 2*time.Minute), ended("e2", "load", 3*time.Minute), ended("e3", "load", 9*time.Minute), ended("e4", "quick", 2*time.Second)}
	for name, tc := range map[string]struct {
		running []*Run
		queued  int // runs before it that wait for the same
		want    Estimate
	}{
		"the first to end": {
			[]*Run{running("r1", "load", time.Minute), running("r2", "load", 2*time.Minute)}, 0,
			Estimate{time.Minute, "judged by the last 3 runs named 'load', of which half took less than 3m"},
		},
		"the second to end": {
			[]*Run{running("r1", "load", time.Minute), running("r2", "load", 2*time.Minute)}, 1,
			Estimate{2 * time.Minute, "judged by the last 3 runs named 'load', of which half took less than 3m"},
		},
		"names":          {[]*Run{running("r1", "load", time.Minute), running("r2", "quick", time.Second)}, 1, Estimate{2 * time.Minute, "judged by the last 4 runs of the same names"}},
		"not started":    {[]*Run{running("r1", "load", time.Minute), running("r2", "load", -1)}, 0, Estimate{}},
		"no history":     {[]*Run{running("r1", "load", time.Minute), running("r2", "", time.Minute)}, 0, Estimate{}},
		"overdue":        {[]*Run{running("r1", "load", 4*time.Minute)}, 0, Estimate{}},
		"too many ahead": {[]*Run{running("r1", "load", time.Minute)}, 1, Estimate{}},
	} {
		all := All{Runs: slices.Concat(history, tc.running)}
		for i := range tc.queued {
			all.Runs = append(all.Runs, queuedBy("a"+string(rune('0'+i)), int64(i+1), limit))
		}
		// A run ahead that waits for something else takes none of the places.
		all.Runs = append(all.Runs, queuedBy("b", 8, TagLimitBlock("env", "prod", 1, 1)), queuedBy("q", 9, limit))
		slices.SortFunc(all.Runs, func(a, b *Run) int { return strings.Compare(a.ID, b.ID) })
		if w := all.Why("q", nil, now); w.Estimate != tc.want {
			t.Errorf("%s: %+v, want %+v", name, w.Estimate, tc.want)
		}
	}
}
