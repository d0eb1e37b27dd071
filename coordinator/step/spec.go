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
	"unicode/utf8"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Bounds of what can be submitted.
const (
	// MaxSteps is how many steps a run can have.
	MaxSteps = 1000
	// MaxItems is how many items a step can have.
	MaxItems = 100_000
	// MaxInstances is how many instances the steps of a run can have together.
	MaxInstances = 200_000
	// MaxWork bounds what an instance is to do, in bytes: as it is written, and as it
	// is rendered. An item is no longer either.
	MaxWork = 64 << 10
	// MaxRetries bounds how often an instance is tried again.
	MaxRetries = run.MaxRetries
	// MaxBackoff bounds the pause before a retry, however often it was doubled.
	MaxBackoff = 5 * time.Minute
	// MaxTimeout bounds the time of one attempt where there is a bound at all.
	MaxTimeout = 365 * 24 * time.Hour
	// DefaultQueue is the queue of a step that names none.
	DefaultQueue = "default"
)

// taskPools is how the names of pools begin that hold the limits of tasks.
const taskPools = "task."

// OnFailure says what an instance that has failed for good does to its run.
type OnFailure string

// The ways.
const (
	// Fail ends the run at once, and what runs of it is stopped.
	Fail OnFailure = "fail"
	// Finish lets the other instances go on. Steps that need the step do not run, and
	// the run fails at its end.
	Finish OnFailure = "finish"
)

// Spec is what is submitted of one step.
type Spec struct {
	// Name is unique in the run.
	Name string `json:"name"`
	// Needs are the names of the steps that must have succeeded before.
	Needs []string `json:"needs,omitempty"`
	// NotBefore is the time before which none of its instances is published, though all
	// that it needs has succeeded; zero is at once.
	NotBefore run.Instant `json:"not_before,omitzero"`
	// Items make an instance each; without any the step is one instance.
	Items *Items `json:"items,omitempty"`
	// Concurrency is the window: how many instances are in flight at a time, and 0 is
	// no window.
	Concurrency int `json:"concurrency,omitempty"`
	// Pools are slots that each instance takes.
	Pools map[string]int `json:"pools,omitempty"`
	// Task is whose limit holds over all runs and workers.
	Task Task `json:"task,omitzero"`
	// Queue says which workers take it: [DefaultQueue] if it is empty.
	Queue string `json:"queue,omitempty"`

	// Command is a program and its arguments, without a shell; Shell is a text for
	// /bin/sh -c; External is for an executor that asks over HTTP. A step has exactly
	// one of the three.
	Command  []string `json:"command,omitempty"`
	Shell    string   `json:"shell,omitempty"`
	External bool     `json:"external,omitempty"`
	// Env is added to the environment.
	Env map[string]string `json:"env,omitempty"`
	// Input is any JSON value. If it is left out, the item is the input.
	Input json.RawMessage `json:"input,omitempty"`

	// Retries is how many attempts follow the first, if it fails or is lost.
	Retries int `json:"retries,omitempty"`
	// Backoff is the pause before the first retry, and doubles with each: see [Pause].
	Backoff Duration `json:"backoff,omitempty"`
	// Timeout bounds one attempt; 0 is no bound.
	Timeout Duration `json:"timeout,omitempty"`
	// OnFailure is [Fail] if it is empty.
	OnFailure OnFailure `json:"on_failure,omitempty"`
}

// TaskPool is the pool that holds the limit of a task. If there is no such pool,
// the task has no limit.
func TaskPool(task string) string { return taskPools + task }

// Validate refuses what can't be a step, whatever other steps there are, and names
// the field. The number is the step's in its run, for one that has no name.
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
		return problem.Field(numbered(number)+".name", "%q is no name of a step: allowed are %s", problem.Clip(name), nameRule)
	}
	return nil
}

// nameRule is that of pools, said for everything that is named so.
const nameRule = "1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"

// wrong is a problem of one of the step's fields, or of the step if it is empty.
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
		return s.wrong("concurrency", "%d is out of range: allowed are 1 to %d, and 0 (no window)", s.Concurrency, MaxItems)
	}
	return nil
}

// within puts a problem of one of the step's fields under the step.
func (s *Spec) within(err error) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return s.wrong("", "%w", err)
	}
	field := p.Field
	if field == "pool" { // the name of one
		field = "pools"
	}
	return s.wrong(field, "%s", p.Message)
}

// validateWhere looks at what an instance takes and who takes it.
func (s *Spec) validateWhere() error {
	if len(s.Pools) > 0 {
		if err := pool.ValidateSlots(s.Pools); err != nil {
			return s.within(err)
		}
	}
	if s.Queue != "" && pool.ValidateName(s.Queue) != nil {
		return s.wrong("queue", "%q is no name of a queue: allowed are %s", problem.Clip(s.Queue), nameRule)
	}
	if err := s.validateTask(); err != nil || s.Task.Name == "" {
		return err
	}
	// It has to begin as a pool's name does, too.
	if pool.ValidateName(TaskPool(s.Task.Name)) != nil || pool.ValidateName(s.Task.Name) != nil {
		return s.wrong("task", "%q is no name of a task: allowed are 1 to %d of a-z, 0-9, '.', '_' and '-', the first a letter or digit",
			problem.Clip(s.Task.Name), 63-len(taskPools))
	}
	if _, both := s.Pools[TaskPool(s.Task.Name)]; both {
		return s.wrong("pools."+TaskPool(s.Task.Name), "it is the pool of task %q, which takes its slot already: one of the two has to go", s.Task.Name)
	}
	if len(s.Pools)+1 > pool.MaxPools {
		return s.wrong("pools", "%d pools are too many for one instance, with that of its task: allowed are %d", len(s.Pools)+1, pool.MaxPools)
	}
	return nil
}

// validateWhat looks at what is to be done, and how long it is.
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
		return s.wrong(has[1], "it is given beside %s: allowed is one of command, shell and external (true)", has[0])
	case len(s.Command) > 0 && s.Command[0] == "":
		return s.wrong("command[0]", "it is empty: it must name a program")
	}
	if size := len(store.Encode(Spec{Command: s.Command, Shell: s.Shell, Env: s.Env})) + len(s.Input); size > MaxWork {
		return s.wrong("", "command, shell, env and input are %d bytes long as JSON: allowed are %d", size, MaxWork)
	}
	return nil
}

func (s *Spec) validateEnv() error {
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if !isVariable(name) {
			return s.wrong("env", "%q is no name of a variable: allowed are A-Z, a-z, 0-9 and '_', the first no digit", problem.Clip(name))
		}
		if strings.HasPrefix(name, ownVariables) {
			return s.wrong("env."+problem.Clip(name), "variables that begin with %s are set by berth: give it another name", ownVariables)
		}
	}
	return nil
}

// ownVariables is how the names of variables begin that berth itself sets for a command, now
// or later.
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
	if s.Input != nil && !validJSON(s.Input) {
		return s.wrong("input", "%s", jsonRule)
	}
	return nil
}

func (s *Spec) validateRetries() error {
	switch {
	case s.Retries < 0 || s.Retries > MaxRetries:
		return s.wrong("retries", "%d is out of range: allowed are 0 to %d", s.Retries, MaxRetries)
	case s.Backoff < 0 || s.Backoff > Duration(MaxBackoff):
		return s.wrong("backoff", "%s is out of range: allowed are 0s (at once) to %s", s.Backoff, MaxBackoff)
	case s.Timeout < 0 || s.Timeout > Duration(MaxTimeout):
		return s.wrong("timeout", "%s is out of range: allowed is any time up to %s, and 0s (none)", s.Timeout, MaxTimeout)
	case s.OnFailure != "" && !s.OnFailure.valid():
		return s.wrong("on_failure", "%q is none: allowed are %s and %s", problem.Clip(string(s.OnFailure)), Fail, Finish)
	}
	return nil
}

func (f OnFailure) valid() bool { return f == Fail || f == Finish }

// maxDepth bounds how deep lists and objects of an item or an input are nested.
const maxDepth = 100

var jsonRule = fmt.Sprintf("it can't be read: allowed is any JSON value in UTF-8, nested at most %d deep", maxDepth)

// validJSON wants text that is written as it was read: package json takes broken
// UTF-8 and mends it.
func validJSON(data []byte) bool {
	return json.Valid(data) && utf8.Valid(data) && depth(data) <= maxDepth
}

// depth is how deep valid JSON is nested.
func depth(data []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			now++
			deepest = max(deepest, now)
		case c == ']' || c == '}':
			now--
		}
	}
	return deepest
}

// Pause is how long an instance waits before an attempt, of which the first is 1:
// not at all before the first, backoff before the second, and twice as long before
// each that follows, at most [MaxBackoff].
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

// Duration is a time span that is written as text, such as "1m30s".
type Duration time.Duration

// String writes the duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the duration. Its error is one to which package json adds
// the field.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return &json.UnmarshalTypeError{Value: strconv.Quote(problem.Clip(string(text))), Type: reflect.TypeFor[Duration]()}
	}
	*d = Duration(v)
	return nil
}
