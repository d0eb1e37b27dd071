package sidecar_test

import (
	"io"
	"testing"
	"time"

	"github.com/berthhq/berth/sidecar/api"
)

// What happens to a claim that carries a run is among the run's events, from the
// grant over the first renewal of its lease to the release.
func TestTheFirstRenewalOfAClaimIsAmongTheEventsOfItsRun(t *testing.T) {
	t.Parallel()
	d := newDock(t)
	d.submit(api.RunRequest{ID: "a"})
	d.pool("db", 1, leases(5*time.Second))
	d.claim(api.ClaimRequest{ID: "c", Pools: api.Slots{"db": 1}, RunID: "a", StepKey: "load", TTL: api.DurationOf(0)})
	var reported []string
	err := d.client.FollowRunEvents(t.Context(), "a", func(ev api.RunEvent) error {
		reported = append(reported, ev.Type)
		switch ev.Type {
		case "StepSlotRenewed":
			if ev.Metadata["claim"] != "c" || ev.Metadata["step"] != "load" || ev.Metadata["pools"] != "db" || ev.Reason != "" {
				t.Errorf("%+v", ev)
			}
			return d.client.Release(t.Context(), "c")
		case "StepSlotReleased":
			return io.EOF
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(reported) != 4 || reported[1] != "StepSlotClaimed" || reported[2] != "StepSlotRenewed" {
		t.Errorf("%v were reported", reported)
	}
}
