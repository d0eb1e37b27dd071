package sidecar

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/run"
)

func runOf(r *run.Run) Run {
	v := Run{
		ID: r.ID, Name: r.Name, Status: string(r.Status), Tags: r.Tags, Labels: r.Labels, Owner: r.Owner,
		Priority: r.Priority, Retries: r.Retries,
		QueuedAt: r.QueuedAt, AdmittedAt: r.AdmittedAt, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
		Attempt: r.Attempt, Lost: r.Lost, Error: r.Error,
	}
	if r.Block != nil {
		v.BlockReason, v.BlockKind = r.Block.Text, string(r.Block.Kind)
	}
	if e := r.Executor; e != nil {
		v.Executor = &Executor{Host: e.Host, Instance: e.Instance, Name: e.Name}
	}
	if r.Status == run.Running {
		v.Fence = r.Revision
	}
	return v
}

func runWhyOf(w run.Why) RunWhy {
	why := RunWhy{
		Run: runOf(w.Run), Reason: standing(w.Run),
		Position: w.Position, Line: w.Line, Estimate: Duration(w.Estimate.Truncate(time.Millisecond)),
	}
	for _, r := range w.InTheWay {
		why.InTheWay = append(why.InTheWay, runOf(r))
	}
	return why
}

// standing says what a run waits for, or how it stands.
func standing(r *run.Run) string {
	switch {
	case r.Status == run.Queued && r.Block != nil:
		return r.Block.Text
	case r.Status == run.Queued:
		return "the coordinator has not come to it yet"
	case r.Status == run.NotStarted:
		return "it was admitted, and waits for an executor to start it"
	case r.Status == run.Running && r.Executor != nil:
		return fmt.Sprintf("it runs on host '%s'", r.Executor.Host)
	case r.Error != "":
		return fmt.Sprintf("it has ended: %s, %s", r.Status, r.Error)
	}
	return fmt.Sprintf("it has ended: %s", r.Status)
}
