package main

import (
	"cmp"
	"time"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/sidecar"
)

// What is printed of runs as JSON has the types of the HTTP API, as with pools. Of
// the coordinator there are none.

func runRecord(r *run.Run) sidecar.Run {
	out := sidecar.Run{
		ID: r.ID, Name: r.Name, Status: string(r.Status), Tags: r.Tags, Labels: r.Labels, Owner: r.Owner,
		Priority: r.Priority, Retries: r.Retries,
		QueuedAt: r.QueuedAt, AdmittedAt: r.AdmittedAt, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
		Attempt: r.Attempt, Lost: r.Lost, Executor: (*sidecar.Executor)(r.Executor), Error: r.Error,
	}
	if r.Block != nil {
		out.BlockReason, out.BlockKind = r.Block.Text, string(r.Block.Kind)
	}
	if r.Status == run.Running {
		out.Fence = r.Revision
	}
	return out
}

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

func runWhyRecord(w *run.Why) sidecar.RunWhy {
	record := sidecar.RunWhy{
		Run: runRecord(w.Run), Position: w.Position, Line: w.Line,
		InTheWay: listOf(w.InTheWay, runRecord).Items, Estimate: sidecar.Duration(w.Estimate),
	}
	if record.Reason = reasonOf(record.Run); w.Run.Status != run.Queued {
		record.Reason = standText(w.Run)
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

// coordinatorRecord is who leads, and who would.
type coordinatorRecord struct {
	Leader *candidateRecord  `json:"leader"` // null if nobody leads
	Others []candidateRecord `json:"others"`
}

// candidateRecord is a candidate for the coordinator's part.
type candidateRecord struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`
	// Term grows from leader to leader.
	Term int64       `json:"term"`
	Tick *tickRecord `json:"tick,omitempty"` // its last one
}

type tickRecord struct {
	At         time.Time        `json:"at"`
	Took       sidecar.Duration `json:"took"`
	Number     int64            `json:"number"`
	Queued     int              `json:"queued"`
	InProgress int              `json:"in_progress"`
	Admitted   int              `json:"admitted"`
	Lost       int              `json:"lost"`
	Blocked    int              `json:"blocked"`
}

func coordinatorOf(all []coordinator.Candidate) coordinatorRecord {
	out := coordinatorRecord{Others: []candidateRecord{}}
	for i, c := range all {
		r := candidateRecord{Host: c.Host, Instance: c.Instance, Version: c.Version, Since: c.Since, Term: c.Term}
		if t := c.Tick; t != nil {
			r.Tick = &tickRecord{
				At: t.At, Took: sidecar.Duration(t.Took), Number: t.Number, Queued: t.Queued,
				InProgress: t.Progress, Admitted: t.Admitted, Lost: t.Lost, Blocked: t.Blocked,
			}
		}
		if i == 0 {
			out.Leader = &r
			continue
		}
		out.Others = append(out.Others, r)
	}
	return out
}
