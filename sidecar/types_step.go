package sidecar

import (
	"encoding/json"
	"time"
)

// Step is a step of a run as it is now.
type Step struct {
	Name        string     `json:"name"`
	Needs       []string   `json:"needs" nullable:"false" doc:"Names of the steps that must have succeeded before."`
	Count       int        `json:"count" doc:"How many instances it has."`
	Concurrency int        `json:"concurrency,omitempty" doc:"How many of them are in flight at a time at most; left out if there is no such window."`
	Queue       string     `json:"queue"`
	Task        string     `json:"task,omitempty"`
	TaskLimit   *int       `json:"task_limit,omitempty" doc:"Of the task, as it was declared with the step. What holds is the limit of the pool."`
	Pools       Slots      `json:"pools,omitempty" doc:"Slots that each instance takes."`
	External    bool       `json:"external,omitempty" doc:"It is for executors over HTTP."`
	Retries     int        `json:"retries,omitempty"`
	Backoff     Duration   `json:"backoff,omitzero"`
	Timeout     Duration   `json:"timeout,omitzero"`
	OnFailure   string     `json:"on_failure" enum:"fail,finish"`
	Counts      StepCounts `json:"counts"`
	NotBefore   time.Time  `json:"not_before,omitzero" doc:"None of its instances goes before."`
	StartedAt   time.Time  `json:"started_at,omitzero" doc:"When the first of its instances was started."`
	EndedAt     time.Time  `json:"ended_at,omitzero" doc:"When the last of them has ended; left out while one has not."`
	BlockReason string     `json:"block_reason,omitempty" doc:"What its scheduled instances wait for, or else the requested ones; left out if none is either."`
	BlockKind   string     `json:"block_kind,omitempty" doc:"What kind of thing that is. Of scheduled ones: pool (slots, also of a task's limit), no_worker (none takes from the queue), worker (a place), executor (somebody who takes it over HTTP). Of requested ones: run, needs, never, not_before, window, run_window, retry, coordinator. There may be others later."`
}

// StepHold is what is in the way of some steps of a run.
type StepHold struct {
	Steps       []string `json:"steps" nullable:"false" doc:"Names of the steps."`
	Instances   int      `json:"instances" doc:"How many instances of them wait for it."`
	BlockReason string   `json:"block_reason"`
	BlockKind   string   `json:"block_kind" doc:"As that of a step."`
}

// StepCounts counts the instances of a step by status.
type StepCounts struct {
	Requested int `json:"requested" doc:"They wait for what they need, for the window, or for a retry."`
	Scheduled int `json:"scheduled" doc:"They can be taken."`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Canceled  int `json:"canceled" doc:"Those included that had not ended when their run did."`
}

// StepList are the steps of a run.
type StepList struct {
	Items []Step `json:"items" nullable:"false"`
	// Unreadable are states that nobody can read: they are in no count.
	Unreadable []Unreadable `json:"unreadable,omitempty" nullable:"false" doc:"States of instances that can't be read, and are in no count; at most 100."`
}

// StepInstance is one instance of a step as it is now.
type StepInstance struct {
	RunID  string `json:"run_id"`
	Step   string `json:"step"`
	Index  int    `json:"index"`
	Status string `json:"status" enum:"requested,scheduled,running,succeeded,failed,canceled"`

	Attempt  int       `json:"attempt,omitempty" doc:"Counts the starts."`
	Executor *Executor `json:"executor,omitempty" doc:"Who has it now, or had it last."`

	ScheduledAt time.Time `json:"scheduled_at,omitzero" doc:"When it could last be taken."`
	StartedAt   time.Time `json:"started_at,omitzero" doc:"When its last attempt was started."`
	EndedAt     time.Time `json:"ended_at,omitzero" doc:"When its last attempt has ended."`
	RetryAfter  Duration  `json:"retry_after,omitzero" doc:"How long after that it is tried again."`

	ExitCode int    `json:"exit_code,omitempty" doc:"Of the last attempt; left out if it is 0."`
	Error    string `json:"error,omitempty" doc:"Why the last attempt has failed."`
	// Fence of the attempt while it is running: whoever finishes it must name it.
	Fence int64 `json:"fence,omitempty" doc:"Of the attempt that runs now. Larger for every later one."`
}

// StepInstanceList is a page of instances.
type StepInstanceList struct {
	Items      []StepInstance `json:"items" nullable:"false"`
	Next       string         `json:"next,omitempty" doc:"Where the next page begins, if there is more: give it as the query parameter after."`
	Unreadable []Unreadable   `json:"unreadable,omitempty" nullable:"false" doc:"States on this page that can't be read; at most 100."`
}

// StepWork is an instance with what it is to do.
type StepWork struct {
	StepInstance
	Queue    string            `json:"queue"`
	Task     string            `json:"task,omitempty"`
	Pools    Slots             `json:"pools,omitempty" doc:"Slots that it takes."`
	External bool              `json:"external,omitempty" doc:"It is for executors over HTTP."`
	Command  []string          `json:"command,omitempty" nullable:"false"`
	Env      map[string]string `json:"env,omitempty"`
	Input    json.RawMessage   `json:"input,omitempty" doc:"Any JSON value."`
	Timeout  Duration          `json:"timeout,omitzero" doc:"Of one attempt."`
	Retries  int               `json:"retries,omitempty" doc:"Attempts that may follow the first."`

	BlockReason string `json:"block_reason,omitempty" doc:"What it waits for while it is scheduled."`
	BlockKind   string `json:"block_kind,omitempty" doc:"As that of a step."`
}

// ReadyStep is a step instance that an executor can take.
type ReadyStep struct {
	RunID       string    `json:"run_id"`
	Step        string    `json:"step"`
	Index       int       `json:"index"`
	Priority    int       `json:"priority,omitempty" doc:"That of its run."`
	Attempt     int       `json:"attempt,omitempty" doc:"Counts the starts before."`
	Task        string    `json:"task,omitempty"`
	Pools       Slots     `json:"pools,omitempty" doc:"Slots that it takes."`
	ScheduledAt time.Time `json:"scheduled_at" doc:"Since when it can be taken."`
}

// ReadyList are step instances that executors can take.
type ReadyList struct {
	Items      []ReadyStep  `json:"items" nullable:"false"`
	Unreadable []Unreadable `json:"unreadable,omitempty" nullable:"false" doc:"Entries of the queue that can't be read; at most 100."`
}

// StepTake says who takes a step instance.
type StepTake struct {
	Executor string    `json:"executor,omitempty" maxLength:"128" doc:"Tells executors of one host apart: asking again with the same one finds the same attempt. Made up if left out."`
	TTL      *Duration `json:"ttl,omitempty" doc:"The instance is lost unless its executor says within this time that it lives, 5s to 24h; 0s is untimed. 1m if left out."`
	Wait     *Duration `json:"wait,omitempty" doc:"How long to wait for the slots that it takes; 0s not at all. As the sidecar's settings say if left out."`
}

// StepHeartbeat says that the executor of an attempt lives.
type StepHeartbeat struct {
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"Of the attempt: take has answered it."`
}

// StepFinish ends the attempt of a step instance.
type StepFinish struct {
	Fence    int64  `json:"fence,omitempty" minimum:"1" doc:"Of the attempt: take has answered it."`
	Status   string `json:"status,omitempty" enum:"succeeded,failed,canceled" doc:"One that has failed may be tried again; canceled is for one that was stopped because its run had ended."`
	ExitCode int    `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty" doc:"Why it failed. Cut at 4096 bytes."`
	Output   string `json:"output,omitempty" doc:"What it has written. The last 16 KiB are kept."`
}

// StepRetry has a step instance tried again that has failed or was canceled.
type StepRetry struct {
	Reason string `json:"reason,omitempty" doc:"Told with the event. Cut at 4096 bytes."`
}

// TakenStep is a step instance as its executor sees it.
type TakenStep struct {
	StepWork
	Trusted
	TTL Duration `json:"ttl" doc:"Within which a heartbeat must come; 0s if none needs to."`
}
