package step

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// maxDeclared bounds the tasks of a run with a declared limit: their pools are created in one
// transaction with the run.
const maxDeclared = 50

// Task is a name with a limit over all runs and workers.
type Task struct {
	Name string
	// Limit is the limit with which the pool of the task is created, or must have; nil
	// accepts any.
	Limit *int
}

// IsZero reports whether there is no task.
func (t Task) IsZero() bool { return t == Task{} }

// taskValue is a task with a limit in JSON.
type taskValue struct {
	Name  string `json:"name"`
	Limit *int   `json:"limit"`
}

// MarshalJSON encodes the name, or an object if there is a limit.
func (t Task) MarshalJSON() ([]byte, error) {
	if t.Limit == nil {
		return json.Marshal(t.Name)
	}
	return json.Marshal(taskValue(t))
}

// UnmarshalJSON decodes a name, or an object with name and limit.
func (t *Task) UnmarshalJSON(data []byte) error {
	const how = `allowed are a name, and {"name": "resize", "limit": 4}`
	switch data = bytes.TrimSpace(data); {
	case string(data) == "null":
		return nil
	case data[0] == '"':
		*t = Task{}
		return json.Unmarshal(data, &t.Name)
	case data[0] != '{':
		return fmt.Errorf("task: %s", how)
	}
	var v taskValue
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&v)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return wrong // package json adds the field
	}
	if err != nil {
		return fmt.Errorf("task: %w: %s", err, how)
	}
	if v.Name == "" || v.Limit == nil {
		return fmt.Errorf("task: an object needs name and limit: %s", how)
	}
	*t = Task(v)
	return nil
}

// validateTask validates the limit that a step declares.
func (s *Spec) validateTask() error {
	limit := s.Task.Limit
	if limit == nil {
		return nil
	}
	if s.Task.Name == "" {
		return s.wrong("task.name", "it is missing: a limit needs the name of its task")
	}
	if *limit < pool.Unlimited || *limit > pool.MaxLimit {
		return s.wrong("task.limit", "%d is out of range: allowed are 1 to %d, 0 (closed) and -1 (unlimited)", *limit, pool.MaxLimit)
	}
	return nil
}

// checkDeclared returns a problem for different limits of one task, or too many.
func (g *Graph) checkDeclared() error {
	first := map[string]*Shape{}
	for i := range g.shapes {
		s := &g.shapes[i]
		if s.TaskLimit == nil {
			continue
		}
		before := first[s.Task]
		if before == nil {
			if first[s.Task] = s; len(first) > maxDeclared {
				return problem.Field("steps."+s.Name+".task", "%d tasks that declare a limit are too many for one run: allowed are %d", len(first), maxDeclared)
			}
			continue
		}
		if *before.TaskLimit != *s.TaskLimit {
			return problem.Field("steps."+s.Name+".task.limit", "it declares %d for task %q, and step '%s' declares %d: a task has one limit",
				*s.TaskLimit, s.Task, before.Name, *before.TaskLimit)
		}
	}
	return nil
}

// declare returns the operations that create the missing pools of tasks with a limit. A pool
// with another limit is a problem that names both.
func (g *Graph) declare(ctx context.Context, pools pool.Registry) (x store.Extra, err error) {
	var done []string
	for i := range g.shapes {
		s := &g.shapes[i]
		if s.TaskLimit == nil || slices.Contains(done, s.Task) {
			continue
		}
		done = append(done, s.Task)
		cmp, op, err := pools.Declare(ctx, TaskPool(s.Task), *s.TaskLimit)
		var other *pool.OtherLimitError
		switch {
		case errors.As(err, &other):
			return x, problem.Field("steps."+s.Name+".task.limit",
				"it declares %d for task %q, and pool '%s' has the limit %d: declare %d, leave the limit out, or change it with 'berth pools set %s %d'",
				other.Declared, s.Task, other.Pool, other.Limit, other.Limit, other.Pool, other.Declared)
		case err != nil:
			return x, err
		}
		x.If = append(x.If, cmp)
		if op != nil {
			x.Then = append(x.Then, op)
		}
	}
	return x, nil
}
