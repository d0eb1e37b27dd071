package run

import (
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// Who has slots of the pools that a run waits for is in its way, and nobody else.
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
	w := all.Why("waits", Limits{Tags: []TagLimit{{Key: "t", Limit: 9}}}, nil, time.Unix(1000, 0))
	if len(w.InTheWay) != 2 || w.InTheWay[0].ID != "db" || w.InTheWay[1].ID != "gpu" {
		t.Errorf("in the way are %+v", w.InTheWay)
	}
}

// The numbers of a pool are those of now, not those that were noted.
func TestWhyHasTheNumbersOfPoolsAsTheyAre(t *testing.T) {
	all := All{Runs: []*Run{{ID: "waits", Created: 1, Record: Record{
		Status: Queued, Block: &Block{BlockPool, "pool 'db' has too little room (4 slots, 3 wanted)"},
		Spec: Spec{Pools: map[string]int{"db": 3}},
	}}}}
	for used, want := range map[int]string{
		4: "pool 'db' full (4/4 slots)", 2: "pool 'db' has too little room (2/4 slots, 3 wanted)",
		1: "pool 'db' has too little room (4 slots, 3 wanted)", // there is room: what is noted
	} {
		space := pool.NewSpace(pool.Status{Name: "db", Spec: pool.Spec{Limit: 4}, Claimed: used})
		if got := all.Why("waits", Limits{}, space, time.Unix(1000, 0)).Run.Block.Text; got != want {
			t.Errorf("%d used: %q, want %q", used, got, want)
		}
	}
	if all.Runs[0].Block.Text != "pool 'db' has too little room (4 slots, 3 wanted)" {
		t.Error("the run itself was changed")
	}
}
