package run

import (
	"testing"
	"time"
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
	w := all.Why("waits", Limits{Tags: []TagLimit{{Key: "t", Limit: 9}}}, time.Unix(1000, 0))
	if len(w.InTheWay) != 2 || w.InTheWay[0].ID != "db" || w.InTheWay[1].ID != "gpu" {
		t.Errorf("in the way are %+v", w.InTheWay)
	}
}
