package api

import (
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
)

// RunRequest submits a run.
type RunRequest struct {
	ID       string            `json:"id,omitempty" maxLength:"256" doc:"The same request with the same id finds the same run. Generated if left out."`
	Name     string            `json:"name,omitempty" maxLength:"128" doc:"For people; many runs can have the same."`
	Tags     map[string]string `json:"tags,omitempty" maxProperties:"32" doc:"Limits are by tag. A key has no '=', a value is not '*'."`
	Labels   map[string]string `json:"labels,omitempty" maxProperties:"32" doc:"Further facts; no limit uses them. A key and a value have at most 512 bytes each, all of them 8192."`
	Owner    string            `json:"owner,omitempty" maxLength:"128" doc:"Who it belongs to, as free text."`
	Priority int               `json:"priority,omitempty" minimum:"-1000" maximum:"1000" doc:"Higher goes first."`
	Retries  int               `json:"retries,omitempty" minimum:"0" maximum:"100" doc:"How often the run is queued again after its executor was lost."`

	NotBefore run.Instant `json:"not_before,omitzero" doc:"When it joins the queue, as if it were submitted then; at once if left out."`
	Delay     Duration    `json:"delay,omitzero" doc:"How long after the submission it joins the queue, by the clock of the sidecar that is asked: instead of not_before."`

	Pools Slots `json:"pools,omitempty" doc:"Slots that it needs as a whole: it is admitted together with them, and holds them until it ends. A run with steps has none."`

	Steps              RunSteps `json:"steps,omitempty" nullable:"false" maxItems:"1000" doc:"What it consists of. Workers, and executors over HTTP, do it; the run has no executor of its own then."`
	MaxConcurrentSteps int      `json:"max_concurrent_steps,omitempty" minimum:"0" maximum:"1000000" doc:"How many instances of its steps are in flight at a time; 0 is no bound."`
	MaxStepsPerTick    int      `json:"max_steps_per_tick,omitempty" minimum:"0" maximum:"1000000" doc:"How many of them one tick of the coordinator lets go; 0 is no bound."`
}

// RunCancel cancels a run.
type RunCancel struct {
	Reason     string `json:"reason,omitempty" doc:"Kept with the run. Cut at 4096 bytes."`
	QueuedOnly bool   `json:"queued_only,omitempty" doc:"Refuses with run_not_queued if the run has left the queue."`
}

// RunRetry retries a run that has failed or was canceled, or some of its step instances.
type RunRetry struct {
	Steps  []string `json:"steps,omitzero" nullable:"false" minItems:"1" maxItems:"100" doc:"What to retry, and nothing else: names of steps, of which every instance is retried that has failed or was canceled, and of instances, as in extract[3]. If left out, everything that has not succeeded."`
	Reason string   `json:"reason,omitempty" doc:"Kept with the event. Cut at 4096 bytes."`
}

// RunStart says who runs a run that was admitted.
type RunStart struct {
	Executor string    `json:"executor,omitempty" maxLength:"128" doc:"Distinguishes executors of one host: the same request with the same executor finds the same attempt. Generated if left out."`
	TTL      *Duration `json:"ttl,omitempty" doc:"The run is lost unless its executor sends a heartbeat within this time, 5s to 24h; 0s is untimed. 1m if left out."`
}

// RunHeartbeat reports that the executor of an attempt lives.
type RunHeartbeat struct {
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"Of the attempt: start has answered it."`
}

// RunFinish ends a run.
type RunFinish struct {
	Fence  int64  `json:"fence,omitempty" minimum:"1" doc:"Of the attempt: start has answered it."`
	Status string `json:"status,omitempty" enum:"succeeded,failed"`
	Error  string `json:"error,omitempty" doc:"Why it failed. Cut at 4096 bytes."`
}

// StartedRun is a run for its executor.
type StartedRun struct {
	Run
	Validity
	Trace
	TTL Duration `json:"ttl" doc:"Within which a heartbeat must come; 0s if none needs to."`
}

// Trace is the trace context of an attempt, as W3C defines it.
type Trace struct {
	Traceparent string `json:"traceparent,omitempty" doc:"The trace that the attempt belongs to: the header traceparent of what its executor asks for, and TRACEPARENT of its commands."`
	Tracestate  string `json:"tracestate,omitempty" doc:"Goes with traceparent."`
}

// Limits are the limits under which runs are admitted.
type Limits struct {
	MaxConcurrentRuns int        `json:"max_concurrent_runs" minimum:"-1" maximum:"1000000" doc:"Runs in progress; -1 is unlimited, 0 admits none."`
	Tags              []TagLimit `json:"tags" nullable:"false" maxItems:"1000" doc:"Limits of runs in progress that have a tag."`
	Revision          int64      `json:"-"` // of the limits, which is the ETag over HTTP; 0 if none were set
}

// TagLimit bounds the runs in progress that have a tag.
type TagLimit struct {
	Key            string `json:"key" maxLength:"128"`
	Value          string `json:"value,omitempty" maxLength:"128" doc:"If it is left out, all values are meant: together, or each by itself with per_unique_value."`
	PerUniqueValue bool   `json:"per_unique_value,omitempty" doc:"Each value of the key has the limit by itself."`
	Limit          int    `json:"limit" minimum:"-1" maximum:"1000000" doc:"0 admits none, -1 is no limit."`
}

// UnmarshalJSON reads a limit, of which key and limit may not be left out.
func (t *TagLimit) UnmarshalJSON(data []byte) error {
	type plain TagLimit
	var given struct {
		plain
		Key   *string `json:"key"`
		Limit *int    `json:"limit"`
	}
	switch err := unmarshal(data, &given); {
	case err != nil:
		return err
	case given.Key == nil:
		return problem.Field("key", "it is missing")
	case given.Limit == nil:
		return problem.Field("limit", "it is missing")
	}
	*t = TagLimit(given.plain)
	t.Key, t.Limit = *given.Key, *given.Limit
	return nil
}

// LimitsChange changes the limits: what is left out stays, and tags replace all that there are.
// In a PUT it is all limits: what is left out has its default.
type LimitsChange struct {
	MaxConcurrentRuns *int       `json:"max_concurrent_runs,omitempty" minimum:"-1" maximum:"1000000"`
	Tags              []TagLimit `json:"tags,omitzero" nullable:"false" maxItems:"1000" doc:"All limits of tags; those that are not named are gone."`
}
