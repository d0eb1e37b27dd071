package main

import (
	"cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/sidecar"
)

// What is printed of runs as JSON has the types of the HTTP API, as with pools.

// reasonOf says why a run is queued still, or why it ended as it did.
func reasonOf(r sidecar.Run) string {
	if r.Status == string(run.Queued) {
		return cmp.Or(r.BlockReason, "not looked at yet")
	}
	return r.Error
}

// queuedRun is a run with its place in the queue.
type queuedRun struct {
	sidecar.Run
	Position int `json:"position"`
}

func runWhyRecord(w *run.Why, holds []step.Hold) sidecar.RunWhy {
	record := sidecar.RunWhy{
		Run: sidecar.RunOf(w.Run), Position: w.Position, Line: w.Line,
		InTheWay: listOf(w.InTheWay, sidecar.RunOf).Items, Estimate: sidecar.Duration(w.Estimate),
		Steps: sidecar.StepHoldsOf(holds),
	}
	if record.Reason = reasonOf(record.Run); w.Run.Status != run.Queued {
		record.Reason = standText(w.Run) + sidecar.HoldsText(holds)
	}
	return record
}

// standText says how a run stands that is not queued.
func standText(r *run.Run) string {
	if r.Status.Ended() {
		return endText(r)
	}
	return progressText(r, "")
}

func runEventRecord(e run.LoggedEvent) sidecar.RunEvent {
	return sidecar.RunEvent{
		Type: string(e.Type), At: e.At, By: e.By, Reason: e.Reason, Metadata: e.Metadata, Revision: e.Revision,
	}
}

func limitsRecord(l run.Limits) sidecar.Limits {
	out := sidecar.Limits{MaxConcurrentRuns: l.MaxConcurrentRuns, Tags: []sidecar.TagLimit{}}
	for _, t := range l.Tags {
		out.Tags = append(out.Tags, sidecar.TagLimit(t))
	}
	return out
}
