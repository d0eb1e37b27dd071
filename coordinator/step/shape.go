package step

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// Shape is what is kept of a step: all that it takes to plan it, and not its items.
// Nothing in it is left to a default.
type Shape struct {
	Name string `json:"name"`
	// Needs are the numbers of the steps that must have succeeded before, ascending.
	// Each is smaller than the step's own.
	Needs []int `json:"needs,omitempty"`
	// Count is how many instances it has, from 1 on.
	Count int `json:"count"`
	// Concurrency is how many of them are in flight at a time; 0 is no window.
	Concurrency int            `json:"concurrency,omitempty"`
	Pools       map[string]int `json:"pools,omitempty"`
	Task        string         `json:"task,omitempty"`
	// TaskLimit is the limit of the task that was declared with the step; nil is none.
	TaskLimit *int      `json:"task_limit,omitempty"`
	Queue     string    `json:"queue"`
	External  bool      `json:"external,omitempty"`
	Retries   int       `json:"retries,omitempty"`
	Backoff   Duration  `json:"backoff,omitempty"`
	Timeout   Duration  `json:"timeout,omitempty"`
	OnFailure OnFailure `json:"on_failure"`
	// NotBefore is the time before which no instance is published; zero is at once.
	NotBefore run.Instant `json:"not_before,omitzero"`
}

// Pause is how long an instance waits before an attempt, of which the first is 1.
func (s *Shape) Pause(attempt int) time.Duration { return Pause(time.Duration(s.Backoff), attempt) }

// shapeOf leaves nothing to a default. The spec is valid.
func shapeOf(s *Spec, needs []int) Shape {
	sh := Shape{
		Name: s.Name, Needs: needs, Count: 1, Concurrency: s.Concurrency,
		Task: s.Task.Name, TaskLimit: s.Task.Limit, Queue: s.Queue, External: s.External,
		Retries: s.Retries, Backoff: s.Backoff, Timeout: s.Timeout, OnFailure: s.OnFailure,
		NotBefore: s.NotBefore,
	}
	if s.Items != nil {
		sh.Count = s.Items.Count()
	}
	if len(s.Pools) > 0 {
		sh.Pools = maps.Clone(s.Pools)
	}
	if sh.Queue == "" {
		sh.Queue = DefaultQueue
	}
	if sh.OnFailure == "" {
		sh.OnFailure = Fail
	}
	return sh
}

// check refuses what no spec has the shape of. The number is the shape's own.
func (s *Shape) check(number int) error {
	if err := validateName(s.Name, number); err != nil {
		return err
	}
	switch {
	case s.Count < 1 || s.Count > MaxItems:
		return fmt.Errorf("steps.%s.count: %d is out of range", s.Name, s.Count)
	case !slices.IsSorted(s.Needs) || len(slices.Compact(slices.Clone(s.Needs))) != len(s.Needs):
		return fmt.Errorf("steps.%s.needs: they are not ascending", s.Name)
	case len(s.Needs) > 0 && (s.Needs[0] < 0 || s.Needs[len(s.Needs)-1] >= number):
		return fmt.Errorf("steps.%s.needs: one is not before it", s.Name)
	case s.Queue == "" || pool.ValidateName(s.Queue) != nil:
		return fmt.Errorf("steps.%s.queue: it is none", s.Name)
	case !s.OnFailure.valid():
		return fmt.Errorf("steps.%s.on_failure: it is none", s.Name)
	}
	// What is left is as in the spec.
	spec := Spec{
		Name: s.Name, Concurrency: s.Concurrency, Pools: s.Pools, Task: Task{s.Task, s.TaskLimit}, Queue: s.Queue,
		Retries: s.Retries, Backoff: s.Backoff, Timeout: s.Timeout, OnFailure: s.OnFailure,
	}
	return errors.Join(spec.validateItems(), spec.validateWhere(), spec.validateRetries())
}

// Bounds says what may hold the instances of a step up, for people.
func (s *Shape) Bounds() string {
	var all []string
	if s.Concurrency > 0 {
		all = append(all, fmt.Sprintf("%d at a time", s.Concurrency))
	}
	if len(s.Pools) > 0 {
		all = append(all, run.PoolList(s.Pools))
	}
	if s.Task != "" {
		all = append(all, "task "+s.Task)
	}
	if s.External {
		all = append(all, "external")
	}
	if s.Queue != DefaultQueue {
		all = append(all, "queue "+s.Queue)
	}
	return strings.Join(all, ", ")
}
