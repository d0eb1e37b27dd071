package sidecar

import (
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// RunOf is a run as the API shows it.
func RunOf(r *run.Run) Run {
	v := Run{
		ID: r.ID, Name: r.Name, Status: string(r.Status), Tags: r.Tags, Labels: r.Labels, Owner: r.Owner,
		Priority: r.Priority, Retries: r.Retries, Pools: r.Pools, NotBefore: r.NotBefore.Time, Delay: Duration(r.Delay),
		Steps: r.Steps, MaxConcurrentSteps: r.MaxConcurrentSteps, MaxStepsPerTick: r.MaxStepsPerTick,
		QueuedAt: r.QueuedAt, AdmittedAt: r.AdmittedAt, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
		Attempt: r.Attempt, Lost: r.Lost, Error: r.Error,
	}
	if b := r.BlockAt(time.Now()); b != nil {
		v.BlockReason, v.BlockKind = b.Text, string(b.Kind)
	}
	if e := r.Executor; e != nil {
		v.Executor = &Executor{Host: e.Host, Instance: e.Instance, Name: e.Name}
	}
	if r.Status.InProgress() {
		v.Claim = r.Claim
	}
	if r.Status == run.Running && r.Steps == 0 {
		v.Fence = r.Revision
	}
	return v
}

func runWhyOf(w run.Why, holds []step.Hold) RunWhy {
	why := RunWhy{
		Run: RunOf(w.Run), Reason: standing(w.Run),
		Position: w.Position, Line: w.Line, Estimate: Duration(w.Estimate.Truncate(time.Millisecond)),
	}
	for _, r := range w.InTheWay {
		why.InTheWay = append(why.InTheWay, RunOf(r))
	}
	why.Steps = StepHoldsOf(holds)
	why.Reason += HoldsText(holds)
	return why
}

// maxHolds bounds what a reason tells of what is in the way of steps.
const maxHolds = 3

// HoldsText says what is in the way of steps, behind how their run stands; it is empty if
// nothing is.
func HoldsText(holds []step.Hold) string {
	if len(holds) == 0 {
		return ""
	}
	var all []string
	for _, h := range holds[:min(len(holds), maxHolds)] {
		all = append(all, h.String())
	}
	text := "; what waits of " + strings.Join(all, "; of ")
	if more := len(holds) - maxHolds; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// standing says what a run waits for, or how it stands.
func standing(r *run.Run) string {
	switch {
	case r.Status == run.Queued:
		if b := r.BlockAt(time.Now()); b != nil {
			return b.Text
		}
		return "the coordinator has not come to it yet"
	case r.Status == run.Storing:
		return "it is being stored, and in no queue yet"
	case r.Status == run.NotStarted && r.Steps > 0:
		return "it was admitted, and its steps are about to start"
	case r.Status == run.Running && r.Steps > 0:
		return "its steps are in progress"
	case r.Status == run.NotStarted:
		return "it was admitted, and waits for an executor to start it"
	case r.Status == run.Running && r.Executor != nil:
		if r.Executor == nil {
			return "workers run its steps"
		}
		return fmt.Sprintf("it runs on host '%s'", r.Executor.Host)
	case r.Error != "":
		return fmt.Sprintf("it has ended: %s, %s", r.Status, r.Error)
	}
	return fmt.Sprintf("it has ended: %s", r.Status)
}
