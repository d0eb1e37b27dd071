package sidecar

import (
	"github.com/berthhq/berth/coordinator/step"
)

// StepsOf tells of the steps of a run.
func StepsOf(o *step.Overview) StepList {
	list := StepList{Items: make([]Step, len(o.Steps)), Unreadable: unreadablesOf(o.Bad)}
	for n, s := range o.Steps {
		list.Items[n] = stepOf(s)
	}
	return list
}

func stepOf(s step.Summary) Step {
	sh := s.Shape
	return Step{
		Name: sh.Name, Needs: s.Needs, Count: sh.Count, Concurrency: sh.Concurrency, Queue: sh.Queue, Task: sh.Task, TaskLimit: sh.TaskLimit,
		Pools: sh.Pools, External: sh.External, Retries: sh.Retries, Backoff: Duration(sh.Backoff),
		Timeout: Duration(sh.Timeout), OnFailure: string(sh.OnFailure),
		Counts: StepCounts{
			Requested: s.Counts[step.Requested], Scheduled: s.Counts[step.Scheduled], Running: s.Counts[step.Running],
			Succeeded: s.Counts[step.Succeeded], Failed: s.Counts[step.Failed], Canceled: s.Counts[step.Canceled],
		},
		NotBefore: sh.NotBefore.Time, StartedAt: s.StartedAt, EndedAt: s.EndedAt,
	}
}

// unreadablesOf names what can't be read, and not too much of it.
func unreadablesOf(bad []error) (all []Unreadable) {
	for _, err := range bad[:min(len(bad), maxUnreadable)] {
		all = append(all, unreadableOf(err))
	}
	return all
}

// StepInstanceOf tells of an instance of a step.
func StepInstanceOf(i *step.Instance) StepInstance {
	v := StepInstance{
		RunID: i.Run, Step: i.Step, Index: i.Index, Status: string(i.Status), Attempt: i.Attempt,
		ScheduledAt: i.ScheduledAt, StartedAt: i.StartedAt, EndedAt: i.EndedAt,
		ExitCode: i.ExitCode, Error: i.Error,
	}
	if e := i.Executor; e != nil {
		v.Executor = &Executor{Host: e.Host, Instance: e.Instance, Name: e.Name}
	}
	switch i.Status {
	case step.Requested:
		v.RetryAfter = Duration(i.Pause)
	case step.Running:
		v.Fence = i.Revision
	}
	return v
}

func stepWorkOf(d *step.Detail) StepWork {
	return StepWork{
		StepInstance: StepInstanceOf(&d.Instance), Queue: d.Shape.Queue, Task: d.Shape.Task, Pools: d.Shape.Pools,
		External: d.Work.External, Command: d.Work.Command, Env: d.Work.Env, Input: d.Work.Input,
		Timeout: Duration(d.Work.Timeout), Retries: d.Shape.Retries,
	}
}

// stepWorkOfTaken tells of an instance that somebody has.
func stepWorkOfTaken(t *step.Taken) StepWork {
	return StepWork{
		StepInstance: StepInstanceOf(&t.Instance), Queue: t.Ready.Queue, Task: t.Ready.Task, Pools: t.Ready.Pools,
		External: t.Work.External, Command: t.Work.Command, Env: t.Work.Env, Input: t.Work.Input,
		Timeout: Duration(t.Work.Timeout), Retries: t.Ready.Retries,
	}
}

func readyStepOf(p *step.Published) ReadyStep {
	return ReadyStep{
		RunID: p.Run, Step: p.Step, Index: p.Index, Priority: p.Priority, Attempt: p.Attempt, Task: p.Task,
		Pools: p.Pools, ScheduledAt: p.ScheduledAt,
	}
}
