package api

import (
	"bytes"
	jsonv1 "encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// RunSteps are the steps of a run that is submitted.
type RunSteps []step.Spec

// UnmarshalJSON reads steps, one at a time and at most [step.MaxSteps]: a step takes more
// memory than its text. Its error is a [*problem.Error] about "NAME.FIELD", or "[0].FIELD" for a
// step without a name.
func (s *RunSteps) UnmarshalJSON(data []byte) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true)) // each step is checked
	if d.PeekKind() != '[' {
		var none []jsontext.Value
		return json.Unmarshal(data, &none)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	*s = RunSteps{}
	for i := 0; d.PeekKind() != ']'; i++ {
		if i == step.MaxSteps {
			return problem.New(problem.Invalid, "there are more than %d, which is the most that is allowed", step.MaxSteps)
		}
		one, err := d.ReadValue()
		if err != nil {
			return err
		}
		var spec step.Spec
		if err := unmarshal(one, &spec); err != nil {
			return faultOf(err, placeOf(one, i))
		}
		if spec.Name == "" {
			return problem.Field(placeOf(one, i)+".name", "it is missing")
		}
		*s = append(*s, spec)
	}
	return nil
}

// placeOf names a step by its name, or by its index if it has none.
func placeOf(one jsontext.Value, index int) string {
	var named struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(one, &named) == nil && pool.ValidateName(named.Name) == nil {
		return named.Name
	}
	return fmt.Sprintf("[%d]", index)
}

// stepSpec describes a [step.Spec] in the OpenAPI document.
type stepSpec struct {
	Name        string            `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$" doc:"Unique in the run."`
	Needs       []string          `json:"needs,omitempty" nullable:"false" doc:"Names of steps that must have succeeded before."`
	NotBefore   time.Time         `json:"not_before,omitzero" doc:"None of its instances goes before, though all that it needs has succeeded."`
	Items       stepItems         `json:"items,omitempty"`
	Concurrency int               `json:"concurrency,omitempty" minimum:"0" maximum:"100000" doc:"The window: how many of its instances are in flight at a time; 0 is no window."`
	Pools       Slots             `json:"pools,omitempty" doc:"Slots that each instance takes."`
	Task        stepTask          `json:"task,omitempty"`
	Queue       string            `json:"queue,omitempty" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$" doc:"Which workers take it; default if left out."`
	Command     []string          `json:"command,omitempty" nullable:"false" doc:"A program and its arguments, without a shell. Exactly one of command, shell and external is needed. Texts of command, shell, env and input are templates, rendered once when the run is submitted."`
	Shell       string            `json:"shell,omitempty" doc:"A text for /bin/sh -c."`
	External    bool              `json:"external,omitempty" doc:"It is for an executor that takes it over HTTP."`
	Env         map[string]string `json:"env,omitempty" doc:"Added to the environment."`
	Input       jsonv1.RawMessage `json:"input,omitempty" doc:"Any JSON value; the item if left out."`
	Retries     int               `json:"retries,omitempty" minimum:"0" maximum:"100" doc:"Attempts after the first, of an instance that has failed or was lost."`
	Backoff     Duration          `json:"backoff,omitempty" doc:"Before the first retry, and doubled for each that follows, at most 5m."`
	Timeout     Duration          `json:"timeout,omitempty" doc:"Of one attempt; 0s is none."`
	OnFailure   string            `json:"on_failure,omitempty" enum:"fail,finish" doc:"fail, the default, ends the run at once if an instance has failed for good; with finish the others go on, and the run fails at its end."`
}

// stepItems describes [step.Items].
type stepItems struct{}

// Schema describes a list, or a range of numbers.
func (stepItems) Schema(huma.Registry) *huma.Schema {
	number, closed := &huma.Schema{Type: huma.TypeInteger, Format: "int64"}, false
	return &huma.Schema{
		Description: "An instance for each: a list of any JSON values, or a range of numbers, both ends included.",
		OneOf: []*huma.Schema{
			{Type: huma.TypeArray, Items: &huma.Schema{}},
			{
				Type: huma.TypeObject, AdditionalProperties: closed, Required: []string{"from", "to"},
				Properties: map[string]*huma.Schema{"from": number, "to": number, "by": number},
			},
		},
	}
}

// stepTask describes [step.Task].
type stepTask struct{}

// Schema describes a name, or an object with the limit.
func (stepTask) Schema(huma.Registry) *huma.Schema {
	longest, least, most, closed := 58, float64(pool.Unlimited), float64(pool.MaxLimit), false
	name := &huma.Schema{Type: huma.TypeString, Pattern: "^[a-z0-9][a-z0-9._-]*$", MaxLength: &longest}
	return &huma.Schema{
		Description: "Its limit holds over all runs and workers, and is that of pool task.NAME. With a limit here, the pool is created if there is none, and the run is refused if it has another one. Without such a pool there is no limit.",
		OneOf: []*huma.Schema{
			name,
			{
				Type: huma.TypeObject, AdditionalProperties: closed, Required: []string{"name", "limit"},
				Properties: map[string]*huma.Schema{
					"name": name, "limit": {Type: huma.TypeInteger, Minimum: &least, Maximum: &most, Description: "0 is closed, -1 unlimited."},
				},
			},
		},
	}
}

// describeSteps has the document describe steps as they are written.
func describeSteps(schemas huma.Registry) {
	schemas.RegisterTypeAlias(reflect.TypeFor[step.Spec](), reflect.TypeFor[stepSpec]())
	schemas.RegisterTypeAlias(instantType, reflect.TypeFor[time.Time]())
}

// StepTake takes a step instance.
type StepTake struct {
	Executor string    `json:"executor,omitempty" maxLength:"128" doc:"Distinguishes executors of one host: the same request with the same executor finds the same attempt. Generated if left out."`
	TTL      *Duration `json:"ttl,omitempty" doc:"The instance is lost unless its executor renews it within this time, 5s to 24h; 0s is untimed. 1m if left out."`
	Wait     *Duration `json:"wait,omitempty" doc:"How long to wait for the slots that it takes; 0s not at all. The server's claim timeout if left out."`
}

// StepRenewal renews an attempt of a step instance.
type StepRenewal struct {
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

// StepRetry retries a step instance that has failed or was canceled.
type StepRetry struct {
	Reason string `json:"reason,omitempty" doc:"Kept with the event. Cut at 4096 bytes."`
}

// TakenStep is a step instance for its executor.
type TakenStep struct {
	StepWork
	Validity
	Trace
	TTL Duration `json:"ttl" doc:"Within which it must be renewed; 0s if it need not be."`
}
