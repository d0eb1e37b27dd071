package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/strict"
	"github.com/berthhq/berth/pool"
)

// Bounds of a [Spec].
const (
	// MaxSteps bounds the steps of a run.
	MaxSteps = 1000
	// MaxItems bounds the items of a step.
	MaxItems = 100_000
	// MaxInstances bounds the instances of all steps of a run.
	MaxInstances = 200_000
	// MaxWork bounds the work of an instance, in bytes, before and after rendering. It bounds
	// an item as well.
	MaxWork = 64 << 10
	// MaxRetries bounds [Spec.Retries].
	MaxRetries = run.MaxRetries
	// MaxBackoff bounds the pause before a retry, even after doublings.
	MaxBackoff = 5 * time.Minute
	// MaxTimeout bounds [Spec.Timeout].
	MaxTimeout = 365 * 24 * time.Hour
	// DefaultQueue is the default of [Spec.Queue].
	DefaultQueue = "default"
)

// OnFailure is the effect of a final failure of an instance on its run.
type OnFailure string

// The effects.
const (
	// Fail ends the run at once, and stops its running instances.
	Fail OnFailure = "fail"
	// Finish lets the other instances continue. Steps that need the step do not run, and the
	// run fails at its end.
	Finish OnFailure = "finish"
)

// Spec is the submitted form of one step.
type Spec struct {
	// Name is unique in the run.
	Name string `json:"name"`
	// Needs are the names of the steps that must have succeeded before.
	Needs []string `json:"needs,omitempty"`
	// NotBefore is the time before which no instance is published; zero is at once.
	NotBefore run.Instant `json:"not_before,omitzero"`
	// Items make one instance each; a step without items has one instance.
	Items *Items `json:"items,omitempty"`
	// Concurrency is the window: it bounds the instances in flight; 0 is no bound.
	Concurrency int `json:"concurrency,omitempty"`
	// Pools are the slots of each instance.
	Pools map[string]int `json:"pools,omitempty"`
	// Task is a name with a limit over all runs and workers.
	Task Task `json:"task,omitzero"`
	// Queue selects the workers; [DefaultQueue] if empty.
	Queue string `json:"queue,omitempty"`

	// Command is a program with its arguments, without a shell; Shell is a script for
	// /bin/sh -c; External is for an executor over HTTP. A step has exactly one of the three.
	Command  []string `json:"command,omitempty"`
	Shell    string   `json:"shell,omitempty"`
	External bool     `json:"external,omitempty"`
	// Env is added to the environment.
	Env map[string]string `json:"env,omitempty"`
	// Input is any JSON value. The default is the item.
	Input json.RawMessage `json:"input,omitempty"`

	// Retries is the number of further attempts after a failure or loss.
	Retries int `json:"retries,omitempty"`
	// Backoff is the pause before the first retry, and doubles with each: see [Pause].
	Backoff Duration `json:"backoff,omitempty"`
	// Timeout bounds one attempt; 0 is no bound.
	Timeout Duration `json:"timeout,omitempty"`
	// OnFailure is [Fail] if empty.
	OnFailure OnFailure `json:"on_failure,omitempty"`
}

// TaskPool returns the pool of a task. Without that pool, the task has no limit.
func TaskPool(task string) string { return pool.TaskPrefix + task }

// Validate returns a problem that names the field if the step is not valid by itself. number
// is that of the step, for a step without a name.
func (s *Spec) Validate(number int) error {
	_, err := s.recipe(number)
	return err
}

// recipe validates a step, and parses its templates.
func (s *Spec) recipe(number int) (*recipe, error) {
	if err := validateName(s.Name, number); err != nil {
		return nil, err
	}
	for _, check := range []func() error{
		s.validateItems, s.validateWhere, s.validateWhat, s.validateEnv, s.validateInput, s.validateRetries,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return newRecipe(s)
}

func validateName(name string, number int) error {
	if pool.ValidateName(name) != nil {
		return problem.Field(numbered(number)+".name", "%q is not a step name: use %s", problem.Clip(name), nameRule)
	}
	return nil
}

// nameRule describes valid names.
const nameRule = "1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"

// wrong returns a problem of a field of the step, or of the step if field is empty.
func (s *Spec) wrong(field, format string, args ...any) error {
	if field != "" {
		field = "." + field
	}
	return problem.Field("steps."+s.Name+field, format, args...)
}

func (s *Spec) validateItems() error {
	if s.Items != nil {
		if err := s.Items.Validate(); err != nil {
			return s.within(err)
		}
	}
	if s.Concurrency < 0 || s.Concurrency > MaxItems {
		return s.wrong("concurrency", "%d is out of range: use 1 to %d, and 0 (no window)", s.Concurrency, MaxItems)
	}
	return nil
}

// within prefixes the field of a problem with the step.
func (s *Spec) within(err error) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return s.wrong("", "%w", err)
	}
	field := p.Field
	if field == "pool" { // the name of a pool
		field = "pools"
	}
	return s.wrong(field, "%s", p.Message)
}

// validateWhere validates pools, task and queue.
func (s *Spec) validateWhere() error {
	if len(s.Pools) > 0 {
		if err := pool.ValidateSlots(s.Pools); err != nil {
			return s.within(err)
		}
	}
	if s.Queue != "" && pool.ValidateName(s.Queue) != nil {
		return s.wrong("queue", "%q is no name of a queue: use %s", problem.Clip(s.Queue), nameRule)
	}
	if err := s.validateTask(); err != nil || s.Task.Name == "" {
		return err
	}
	// It must begin like the name of a pool, too.
	if pool.ValidateName(TaskPool(s.Task.Name)) != nil || pool.ValidateName(s.Task.Name) != nil {
		return s.wrong("task", "%q is no name of a task: use 1 to %d of a-z, 0-9, '.', '_' and '-', the first a letter or digit",
			problem.Clip(s.Task.Name), 63-len(pool.TaskPrefix))
	}
	if _, both := s.Pools[TaskPool(s.Task.Name)]; both {
		return s.wrong("pools."+TaskPool(s.Task.Name), "it is the pool of task %q, which takes its slot already: one of the two has to go", s.Task.Name)
	}
	if len(s.Pools)+1 > pool.MaxPools {
		return s.wrong("pools", "%d pools are too many for one instance, with that of its task: use at most %d", len(s.Pools)+1, pool.MaxPools)
	}
	return nil
}

// validateWhat validates the command and the size of the work.
func (s *Spec) validateWhat() error {
	var has []string
	if len(s.Command) > 0 {
		has = append(has, "command")
	}
	if s.Shell != "" {
		has = append(has, "shell")
	}
	if s.External {
		has = append(has, "external")
	}
	switch {
	case len(has) == 0:
		return s.wrong("", "it has nothing to do: it needs one of command, shell and external (true)")
	case len(has) > 1:
		return s.wrong(has[1], "it cannot be used together with %s: use one of command, shell and external (true)", has[0])
	case len(s.Command) > 0 && s.Command[0] == "":
		return s.wrong("command[0]", "it is empty: it must name a program")
	}
	if size := len(store.Encode(Spec{Command: s.Command, Shell: s.Shell, Env: s.Env})) + len(s.Input); size > MaxWork {
		return s.wrong("", "command, shell, env and input are %d bytes long as JSON: use at most %d", size, MaxWork)
	}
	return nil
}

func (s *Spec) validateEnv() error {
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if !isVariable(name) {
			return s.wrong("env", "%q is no name of a variable: use A-Z, a-z, 0-9 and '_', the first no digit", problem.Clip(name))
		}
		if strings.HasPrefix(name, ownVariables) {
			return s.wrong("env."+problem.Clip(name), "variables that begin with %s are set by berth: give it another name", ownVariables)
		}
	}
	return nil
}

// ownVariables is the prefix of the variables that berth sets.
const ownVariables = "BERTH_"

func isVariable(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		case i > 0 && '0' <= c && c <= '9':
		default:
			return false
		}
	}
	return s != ""
}

func (s *Spec) validateInput() error {
	if s.Input == nil {
		return nil
	}
	if fault := jsonFault(s.Input); fault != "" {
		return s.wrong("input", "%s", fault)
	}
	return nil
}

func (s *Spec) validateRetries() error {
	switch {
	case s.Retries < 0 || s.Retries > MaxRetries:
		return s.wrong("retries", "%d is out of range: use 0 to %d", s.Retries, MaxRetries)
	case s.Backoff < 0 || s.Backoff > Duration(MaxBackoff):
		return s.wrong("backoff", "%s is out of range: use 0s (at once) to %s", s.Backoff, MaxBackoff)
	case s.Timeout < 0 || s.Timeout > Duration(MaxTimeout):
		return s.wrong("timeout", "%s is out of range: use any time up to %s, and 0s (none)", s.Timeout, MaxTimeout)
	case s.OnFailure != "" && !s.OnFailure.valid():
		return s.wrong("on_failure", "%q is none: use %s and %s", problem.Clip(string(s.OnFailure)), Fail, Finish)
	}
	return nil
}

func (f OnFailure) valid() bool { return f == Fail || f == Finish }

// maxDepth bounds the nesting of an item or an input.
const maxDepth = 100

// jsonFault returns what is wrong with a JSON value; empty if nothing is.
func jsonFault(data []byte) string {
	var wrong *strict.SyntaxError
	if errors.As(strict.Check(data, maxDepth), &wrong) {
		return fmt.Sprintf("it cannot be read: use any JSON value in UTF-8, nested at most %d deep: %s", maxDepth, wrong.What())
	}
	return ""
}

// Pause returns how long an instance waits before an attempt: 0 before the first, which is
// number 1, backoff before the second, and twice as long before each further one, at most
// [MaxBackoff].
func Pause(backoff time.Duration, attempt int) time.Duration {
	if attempt < 2 || backoff <= 0 {
		return 0
	}
	pause := min(backoff, MaxBackoff)
	for range attempt - 2 {
		if pause = 2 * pause; pause >= MaxBackoff {
			return MaxBackoff
		}
	}
	return pause
}

// Duration is a duration that is encoded as text, such as "1m30s".
type Duration time.Duration

// String returns the text.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText encodes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText decodes the duration. Package json adds the field to its error.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return &json.UnmarshalTypeError{Value: strconv.Quote(problem.Clip(string(text))), Type: reflect.TypeFor[Duration]()}
	}
	*d = Duration(v)
	return nil
}
