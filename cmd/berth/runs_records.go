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

// queuedRun is a run with its place in the queue; 0 is none.
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

// limitsRecord is what limits are printed as: as in the file of export, with what is
// used of them.
type limitsRecord struct {
	exportedLimits
	Used usedRecord `json:"used"`
}

// usedRecord is what is used of limits, by their names in [exportedLimits]. Fullest is the
// value that Tags has the use of, where each value has a limit of its own.
type usedRecord struct {
	exportedLimits
	Fullest map[string]string `json:"fullest,omitempty"`
}

func limitsRecordOf(l run.Limits, used []usedLimit) limitsRecord {
	r := limitsRecord{exportedLimits: exportLimits(l)}
	r.Used.Tags, r.Used.Fullest = map[string]int{}, map[string]string{}
	for _, u := range used {
		if u.name == maxRuns {
			r.Used.MaxConcurrentRuns = u.used
			continue
		}
		r.Used.Tags[u.name] = u.used
		if u.value != "" {
			r.Used.Fullest[u.name] = u.value
		}
	}
	return r
}
