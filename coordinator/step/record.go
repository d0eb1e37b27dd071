package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Record is the value of a step instance in etcd. An instance without one was never
// published: its status is [Requested].
type Record struct {
	store.V
	Status Status `json:"status"`
	// Attempt counts the starts.
	Attempt int `json:"attempt,omitempty"`
	// Executor is the current or last one.
	Executor *run.Executor `json:"executor,omitempty"`
	// The times are those of its last publication and start, and of its end.
	ScheduledAt time.Time `json:"scheduled_at,omitzero"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	// ExitCode is that of the last attempt, and Error why it failed.
	ExitCode int    `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`
	// Pause is how long an instance waits after its request before it is published again.
	Pause time.Duration `json:"pause,omitempty"`
	// Place is the revision that orders its queue, for a step with NotBefore; 0 is that of
	// its run.
	Place int64 `json:"place,omitempty"`
	// EndFence is the fencing token of the attempt that ended it.
	EndFence store.Fence `json:"end_fence,omitempty"`
}

// Instance is a record with its id and revision.
type Instance struct {
	store.StepID
	Record
	// Revision is that of the record; 0 without one.
	Revision int64
}

// Fence returns the fencing token of the attempt, while the instance is running.
func (i *Instance) Fence() store.Fence { return store.FenceAt(i.Revision) }

// Decode decodes an instance of a key under [store.Keys.StepsAll].
func Decode(keys store.Keys, kv *mvccpb.KeyValue) (*Instance, error) {
	key := string(kv.Key)
	id, err := store.ParseStepID(key[min(len(key), len(keys.StepsAll())):])
	if err != nil {
		return nil, &store.CorruptError{Key: key, Reason: err}
	}
	i := &Instance{StepID: id, Revision: kv.ModRevision}
	if err := store.Decode(key, kv.Value, &i.Record); err != nil {
		return nil, err
	}
	if err := i.Record.check(); err != nil {
		return nil, &store.CorruptError{Key: key, Reason: err}
	}
	return i, nil
}

func (r *Record) check() error {
	switch {
	case !slices.Contains(Statuses, r.Status):
		return fmt.Errorf("status: %q is not a status", string(r.Status))
	case r.Attempt < 0 || r.Pause < 0 || r.Place < 0:
		return errors.New("attempt, pause or place is negative")
	case r.Status == Running && r.Executor == nil:
		return errors.New("executor is missing of a running run")
	}
	return nil
}

// Encode encodes a record.
func (r Record) Encode() []byte {
	r.V = store.Now
	return store.Encode(r)
}

// Status is that of a step instance.
type Status string

// The statuses.
const (
	// Requested: it waits for its needs, for a window, or for a retry.
	Requested Status = "requested"
	// Scheduled: it was published, and waits for a worker.
	Scheduled Status = "scheduled"
	// Running: a worker has it.
	Running Status = "running"
	// Succeeded, Failed and Canceled are its ends.
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
	Canceled  Status = "canceled"
)

// Statuses are all statuses, in the order in which an instance has them.
var Statuses = []Status{Requested, Scheduled, Running, Succeeded, Failed, Canceled}

// InFlight reports whether an instance counts against windows.
func (s Status) InFlight() bool { return s == Scheduled || s == Running }

// Ended reports whether an instance has ended.
func (s Status) Ended() bool { return s == Succeeded || s == Failed || s == Canceled }

// Every is the index of a [Which] for all instances of a step.
const Every = -1

// Which names one instance of a step, or all.
type Which struct {
	Step string
	// Index is [Every] for all.
	Index int
}

// ParseWhich parses STEP or STEP[INDEX].
func ParseWhich(text string) (Which, error) {
	name, rest, indexed := strings.Cut(text, "[")
	if name != "" && !indexed {
		return Which{name, Every}, nil
	}
	number, end, closed := strings.Cut(rest, "]")
	index, err := strconv.Atoi(number)
	if name == "" || !closed || end != "" || err != nil || index < 0 || strconv.Itoa(index) != number {
		return Which{}, fmt.Errorf("%q names no step instance: it is STEP or STEP[INDEX], as in 'extract[3]'", problem.Clip(text))
	}
	return Which{name, index}, nil
}

// String returns STEP or STEP[INDEX].
func (w Which) String() string {
	if w.Index == Every {
		return w.Step
	}
	return store.StepID{Step: w.Step, Index: w.Index}.Text()
}

// One returns the named instance. Without an index, the step must have only one instance.
func (s Store) One(ctx context.Context, id string, w Which) (store.StepID, error) {
	v, err := s.view(ctx, id)
	if err != nil {
		return store.StepID{}, err
	}
	n, err := v.step(w.Step)
	if err != nil {
		return store.StepID{}, err
	}
	return w.In(id, &v.graph.Shapes()[n])
}

// In returns the named instance of a step of a run. Without an index, the step must have only one instance.
func (w Which) In(run string, sh *Shape) (store.StepID, error) {
	one := store.StepID{Run: run, Step: w.Step, Index: w.Index}
	switch {
	case w.Index == Every && sh.Count > 1:
		return store.StepID{}, problem.Field("step", "step '%s' has %d instances: name one of them, as in %s[0]", w.Step, sh.Count, w.Step)
	case w.Index == Every:
		one.Index = 0
	case w.Index < 0 || w.Index >= sh.Count:
		return store.StepID{}, noInstance(run, sh, w.Index)
	}
	return one, nil
}

// noInstance returns the problem that a step has no such instance.
func noInstance(run string, sh *Shape, index int) error {
	return problem.New(problem.StepNotFound, "step %q of run %q has no instance %d: it has %d, from 0 on", sh.Name, run, index, sh.Count)
}
