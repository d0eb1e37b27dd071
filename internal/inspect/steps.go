package inspect

import (
	"encoding/json"
	"time"

	"github.com/berthhq/berth/coordinator/step"
)

// Step is a step of a run as it is now.
type Step struct {
	Name        string     `json:"name"`
	Needs       []string   `json:"needs" nullable:"false" doc:"Names of the steps that must succeed first."`
	Count       int        `json:"count" doc:"How many instances it has."`
	Concurrency int        `json:"concurrency,omitempty" doc:"How many of them are in flight at a time; left out if there is no such window."`
	Queue       string     `json:"queue"`
	Task        string     `json:"task,omitempty"`
	TaskLimit   *int       `json:"task_limit,omitempty" doc:"As declared with the step. The limit of the pool task.NAME is what counts."`
	Pools       Slots      `json:"pools,omitempty" doc:"Slots that each instance claims."`
	External    bool       `json:"external,omitempty" doc:"For external executors, over HTTP."`
	Retries     int        `json:"retries,omitempty"`
	Backoff     Duration   `json:"backoff,omitzero"`
	Timeout     Duration   `json:"timeout,omitzero"`
	OnFailure   string     `json:"on_failure" enum:"fail,finish"`
	Counts      StepCounts `json:"counts"`
	NotBefore   time.Time  `json:"not_before,omitzero" doc:"None of its instances is published earlier."`
	StartedAt   time.Time  `json:"started_at,omitzero" doc:"When the first of its instances was started."`
	EndedAt     time.Time  `json:"ended_at,omitzero" doc:"When the last of them ended; left out while one has not."`
	BlockReason string     `json:"block_reason,omitempty" doc:"What its scheduled instances wait for, or else the requested ones; left out if it has neither."`
	BlockKind   string     `json:"block_kind,omitempty" doc:"The kind of that. Of scheduled instances: pool (slots, also of a task's limit), no_worker (no worker serves the queue), worker (workers have no free capacity), executor (an external executor). Of requested instances: run, needs, never, not_before, window, run_window, retry, coordinator. New kinds may be added."`
}

// StepCounts counts the instances of a step by status.
type StepCounts struct {
	Requested int `json:"requested" doc:"Waiting for their needs, a window, or a retry."`
	Scheduled int `json:"scheduled" doc:"Published: workers can take them."`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Canceled  int `json:"canceled" doc:"Including those that had not ended when their run ended."`
}

// StepHold is what some steps of a run wait for.
type StepHold struct {
	Steps       []string `json:"steps" nullable:"false" doc:"Names of the steps."`
	Instances   int      `json:"instances" doc:"How many of their instances wait for it."`
	BlockReason string   `json:"block_reason"`
	BlockKind   string   `json:"block_kind" doc:"As of a step."`
}

// StepList is the steps of a run.
type StepList struct {
	Items []Step `json:"items" nullable:"false"`
	// Unreadable are states that can't be read: they are in no count.
	Unreadable []Unreadable `json:"unreadable,omitempty" nullable:"false" doc:"States of instances that can't be read, and are in no count; at most 100."`
}

// StepsOf returns the records of the steps of a run.
func StepsOf(o *step.Overview) StepList {
	list := StepList{Items: make([]Step, len(o.Steps)), Unreadable: UnreadableOf(o.Bad)}
	for n, s := range o.Steps {
		list.Items[n] = StepOf(s)
	}
	return list
}

// StepOf returns the record of a step.
func StepOf(s step.Summary) Step {
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

// StepsWaitingOf is [StepsOf] with what the steps wait for.
func StepsWaitingOf(o *step.Overview, waits []*step.Wait) StepList {
	list := StepsOf(o)
	for n, w := range waits {
		if w != nil {
			list.Items[n].BlockReason, list.Items[n].BlockKind = w.Text, string(w.Kind)
		}
	}
	return list
}

// StepHoldsOf returns the records of what steps wait for.
func StepHoldsOf(holds []step.Hold) (all []StepHold) {
	for _, h := range holds {
		all = append(all, StepHold{Steps: h.Steps, Instances: h.Count, BlockReason: h.Text, BlockKind: string(h.Kind)})
	}
	return all
}

// StepInstance is one instance of a step as it is now.
type StepInstance struct {
	RunID  string `json:"run_id"`
	Step   string `json:"step"`
	Index  int    `json:"index"`
	Status string `json:"status" enum:"requested,scheduled,running,succeeded,failed,canceled"`

	Attempt  int       `json:"attempt,omitempty" doc:"Counts the starts."`
	Executor *Executor `json:"executor,omitempty" doc:"The current or last executor."`

	ScheduledAt time.Time `json:"scheduled_at,omitzero" doc:"When it was last published."`
	StartedAt   time.Time `json:"started_at,omitzero" doc:"When its last attempt started."`
	EndedAt     time.Time `json:"ended_at,omitzero" doc:"When its last attempt ended."`
	RetryAfter  Duration  `json:"retry_after,omitzero" doc:"How long after the end it is tried again."`

	ExitCode int    `json:"exit_code,omitempty" doc:"Of the last attempt; left out if 0."`
	Error    string `json:"error,omitempty" doc:"Why the last attempt failed."`
	// Fence is the fencing token of the current attempt: a finish must name it.
	Fence int64 `json:"fence,omitempty" doc:"The fencing token of the current attempt: larger for every later attempt."`
}

// StepInstanceOf returns the record of a step instance.
func StepInstanceOf(i *step.Instance) StepInstance {
	v := StepInstance{
		RunID: i.Run, Step: i.Step, Index: i.Index, Status: string(i.Status), Attempt: i.Attempt,
		ScheduledAt: i.ScheduledAt, StartedAt: i.StartedAt, EndedAt: i.EndedAt,
		ExitCode: i.ExitCode, Error: i.Error, Executor: executorOf(i.Executor),
	}
	switch i.Status {
	case step.Requested:
		v.RetryAfter = Duration(i.Pause)
	case step.Running:
		v.Fence = int64(i.Fence())
	}
	return v
}

// NoOutputText says why nothing is kept of the output of a step instance that does not wait.
func NoOutputText(d *step.Detail) string {
	switch {
	case d.Status == step.Running && d.Shape.External:
		return "it is running, and its executor hands its output in at the end"
	case d.Status == step.Running:
		return "it is running, and its worker has not reported any"
	case d.Attempt == 0 && (d.Status == step.Scheduled || d.Status == step.Requested):
		return "it has not started"
	case d.Status == step.Canceled && d.StartedAt.IsZero():
		return "it was canceled before it started"
	case d.Shape.External:
		return "its executor has handed in none, or that was longer ago than output is kept (run_retention)"
	}
	return NoOutputKept
}

// NoOutputKept says why nothing is kept of the output of something that ended.
const NoOutputKept = "it has written nothing, or that was longer ago than output is kept (run_retention)"

// OutputNote says which attempt of a step instance its output is of; empty if that is the
// last one, which has ended.
func OutputNote(i *step.Instance, of step.Standing) string {
	switch of {
	case step.SoFar:
		return "so far"
	case step.OfEarlier:
		return "this is of an earlier attempt"
	case step.OfLost:
		return "this is of an attempt that was lost"
	}
	if !i.Status.Ended() {
		return "it is tried again"
	}
	return ""
}

// StepInstanceList is a page of instances.
type StepInstanceList struct {
	Items      []StepInstance `json:"items" nullable:"false"`
	Next       string         `json:"next,omitempty" doc:"Where the next page begins, if there is more: give it as the query parameter cursor."`
	Unreadable []Unreadable   `json:"unreadable,omitempty" nullable:"false" doc:"States on this page that can't be read; at most 100."`
}

// StepWork is a step instance with its work.
type StepWork struct {
	StepInstance
	Queue    string            `json:"queue"`
	Task     string            `json:"task,omitempty"`
	Pools    Slots             `json:"pools,omitempty" doc:"Slots that it claims."`
	External bool              `json:"external,omitempty" doc:"For external executors, over HTTP."`
	Command  []string          `json:"command,omitempty" nullable:"false"`
	Env      map[string]string `json:"env,omitempty"`
	Input    json.RawMessage   `json:"input,omitempty" doc:"Any JSON value."`
	Timeout  Duration          `json:"timeout,omitzero" doc:"Of one attempt."`
	Retries  int               `json:"retries,omitempty" doc:"Attempts that may follow the first."`

	BlockReason string `json:"block_reason,omitempty" doc:"What it waits for while it is scheduled."`
	BlockKind   string `json:"block_kind,omitempty" doc:"As of a step."`
}

// StepWorkOf returns the record of an instance with its work.
func StepWorkOf(d *step.Detail) StepWork {
	return StepWork{
		StepInstance: StepInstanceOf(&d.Instance), Queue: d.Shape.Queue, Task: d.Shape.Task, Pools: d.Shape.Pools,
		External: d.Work.External, Command: d.Work.Command, Env: d.Work.Env, Input: d.Work.Input,
		Timeout: Duration(d.Work.Timeout), Retries: d.Shape.Retries,
	}
}

// TakenWorkOf returns the record of an instance that was taken, with its work.
func TakenWorkOf(t *step.Taken) StepWork {
	return StepWork{
		StepInstance: StepInstanceOf(&t.Instance), Queue: t.Ready.Queue, Task: t.Ready.Task, Pools: t.Ready.Pools,
		External: t.Work.External, Command: t.Work.Command, Env: t.Work.Env, Input: t.Work.Input,
		Timeout: Duration(t.Work.Timeout), Retries: t.Ready.Retries,
	}
}

// ReadyStep is a step instance that an external executor can take.
type ReadyStep struct {
	RunID       string    `json:"run_id"`
	Step        string    `json:"step"`
	Index       int       `json:"index"`
	Priority    int       `json:"priority,omitempty" doc:"The priority of its run."`
	Attempt     int       `json:"attempt,omitempty" doc:"Counts the earlier starts."`
	Task        string    `json:"task,omitempty"`
	Pools       Slots     `json:"pools,omitempty" doc:"Slots that it claims."`
	ScheduledAt time.Time `json:"scheduled_at" doc:"When it was published."`
}

// ReadyStepOf returns the record of a published instance.
func ReadyStepOf(p *step.Published) ReadyStep {
	return ReadyStep{
		RunID: p.Run, Step: p.Step, Index: p.Index, Priority: p.Priority, Attempt: p.Attempt, Task: p.Task,
		Pools: p.Pools, ScheduledAt: p.ScheduledAt,
	}
}

// ReadyList is the step instances that external executors can take.
type ReadyList struct {
	Items      []ReadyStep  `json:"items" nullable:"false"`
	Unreadable []Unreadable `json:"unreadable,omitempty" nullable:"false" doc:"Entries of the queue that can't be read; at most 100."`
}
