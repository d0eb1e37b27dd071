package step

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
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
	const how = `use a name, and {"name": "resize", "limit": 4}`
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
		return s.wrong("task.limit", "%d is out of range: use 1 to %d, 0 (closed) and -1 (unlimited)", *limit, pool.MaxLimit)
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
				return problem.Field("steps."+s.Name+".task", "%d tasks that declare a limit are too many for one run: use at most %d", len(first), maxDeclared)
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

// declare returns the operations that create the missing pools of tasks with a limit, and that
// keep those that earlier runs have created from being deleted with their last use. A pool with
// another limit is a problem that names both, unless the run is retried: its limits were
// declared before that of the pool.
func (g *Graph) declare(ctx context.Context, pools registry.Registry, retried bool) (x store.Extra, err error) {
	var done []string
	for i := range g.shapes {
		s := &g.shapes[i]
		if s.TaskLimit == nil || slices.Contains(done, s.Task) {
			continue
		}
		done = append(done, s.Task)
		same, op, err := declareLimit(ctx, pools, s, retried)
		if err != nil {
			return x, err
		}
		x.If = append(x.If, same)
		if op != nil {
			x.Then = append(x.Then, op, store.Put(pools.Keys.Task(s.Task), store.Encode(declaredValue{V: store.Now}), 0))
			continue
		}
		d, err := readDeclared(ctx, pools, s.Task)
		if err != nil {
			return x, err
		}
		if spec := same.GetModRevision(); d.of(spec) {
			x.Then = append(x.Then, store.Put(pools.Keys.Task(s.Task), store.Encode(declaredValue{store.Now, spec}), 0))
		}
	}
	return x, nil
}

// declareLimit returns the condition that the pool of a step's task is as it was read, and the
// operation that creates it if there is none.
func declareLimit(ctx context.Context, pools registry.Registry, s *Shape, retried bool) (*pb.Compare, *pb.RequestOp, error) {
	same, op, err := pools.Declare(ctx, TaskPool(s.Task), *s.TaskLimit)
	var other *pool.OtherLimitError
	if !errors.As(err, &other) {
		return same, op, err
	}
	if !retried {
		return nil, nil, problem.Field("steps."+s.Name+".task.limit",
			"it declares %d for task %q, and pool '%s' has the limit %d: declare %d, leave the limit out, or change it with 'berth pools set %s %d'",
			other.Declared, s.Task, other.Pool, other.Limit, other.Limit, other.Pool, other.Declared)
	}
	if same, op, err = pools.Declare(ctx, TaskPool(s.Task), other.Limit); op != nil { // it was deleted meanwhile
		return pools.Declare(ctx, TaskPool(s.Task), *s.TaskLimit)
	}
	return same, op, err
}

// declaredValue is the value of the key of a task whose pool was created by a run that declares
// its limit. Each run that declares the limit puts it, with its own record.
type declaredValue struct {
	store.V
	// Spec is the revision of the pool's spec; 0 is that of the value.
	Spec int64 `json:"spec,omitempty"`
}

// declared is a task whose pool was created by a run that declares its limit.
type declared struct {
	task string
	spec int64 // revision of the pool's spec: with another one, the pool is an operator's
	rev  int64 // of the last run that declares the limit
}

// of reports whether a run created the spec with a revision, which is unchanged.
func (d *declared) of(spec int64) bool { return d != nil && d.spec == spec }

func decodeDeclared(keys store.Keys, kv *mvccpb.KeyValue) (*declared, error) {
	var v declaredValue
	if err := store.Decode(string(kv.Key), kv.Value, &v); err != nil {
		return nil, err
	}
	return &declared{
		task: strings.TrimPrefix(string(kv.Key), keys.Tasks()), spec: cmp.Or(v.Spec, kv.ModRevision), rev: kv.ModRevision,
	}, nil
}

// readDeclared returns a task whose pool was created by a run, or nil.
func readDeclared(ctx context.Context, pools registry.Registry, task string) (*declared, error) {
	resp, err := pools.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(pools.Keys.Task(task))})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return decodeDeclared(pools.Keys, resp.Kvs[0])
}

// TaskUse is which pools unfinished runs use.
type TaskUse struct {
	Pools map[string]bool
	// Before is a revision: of runs that have declared a limit since, Pools may lack some.
	Before int64
}

// Add adds the pools of a run with steps.
func (u *TaskUse) Add(g *Graph) {
	for i := range g.shapes {
		s := &g.shapes[i]
		if s.Task != "" {
			u.Pools[TaskPool(s.Task)] = true
		}
		for name := range s.Pools {
			u.Pools[name] = true
		}
	}
}

// DeleteUnusedTasks deletes the pools that runs have created for their tasks, that no operator
// has changed, and that neither unfinished runs nor claims use. It returns their names. Its
// errors are not problems.
func (s Store) DeleteUnusedTasks(ctx context.Context, use TaskUse) (deleted []string, err error) {
	prefix := s.Keys.Tasks()
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix)})
	if err != nil {
		return nil, err
	}
	var bad error
	for _, kv := range resp.Kvs {
		d, err := decodeDeclared(s.Keys, kv)
		if err != nil {
			bad = cmp.Or(bad, err)
			continue
		}
		if d.rev >= use.Before || use.Pools[TaskPool(d.task)] {
			continue
		}
		switch gone, err := s.deleteTask(ctx, d); {
		case errors.Is(err, store.ErrChanged): // it is used again
		case err != nil:
			return deleted, err
		case gone:
			deleted = append(deleted, TaskPool(d.task))
		}
	}
	return deleted, bad
}

// deleteTask deletes the key of a task that no run has declared since, and its pool unless that
// is an operator's. It is [store.ErrChanged] if the pool is used.
func (s Store) deleteTask(ctx context.Context, d *declared) (gone bool, err error) {
	name, key := TaskPool(d.task), s.Keys.Task(d.task)
	spec := s.Keys.Spec(name)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(spec), KeysOnly: true})
	if err != nil {
		return false, err
	}
	same := store.ModEquals(key, d.rev)
	if len(resp.Kvs) == 0 || !d.of(resp.Kvs[0].ModRevision) {
		_, err = store.Commit(ctx, s.Backend, []*pb.Compare{same}, store.Delete(key))
		return false, err
	}
	unused, remove := registry.Registry{Backend: s.Backend, Keys: s.Keys}.Unused(name, d.spec)
	_, err = store.Commit(ctx, s.Backend, append(unused, same), append(remove, store.Delete(key))...)
	return err == nil, err
}
