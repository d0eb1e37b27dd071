package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Around is the state outside of a run on which the waits of its instances depend. In the
// zero value it is unknown.
type Around struct {
	// Space is the capacity of all pools that the wait queues leave; nil if unknown.
	Space *pool.Space
	// Workers are the known workers. Blind states that there may be others.
	Workers []Worker
	Blind   bool
	// Leaderless states that no coordinator is running.
	Leaderless bool
	// Now is the current time; zero if unknown.
	Now time.Time
}

// Worker is a known worker.
type Worker struct {
	ID WorkerID
	// Queues are its queues. A worker without any may take from all.
	Queues []string
	// Capacity is how many instances it can have, and Active how many it has.
	Capacity, Active int
	// Idle states that an operator has drained or stopped it.
	Idle bool
}

// Presence is the presence of a berth instance. This package does not import lease.
type Presence interface {
	// Works returns its id, its queues, and how many step instances it can have: 0 unless it
	// is a worker.
	Works() (host, instance string, queues []string, capacity int)
}

// WorkersOf returns the workers among instances, with their active steps and modes.
func WorkersOf[P Presence](seen []P, active []Active, states map[WorkerID]WorkerState) (workers []Worker) {
	counts := ActiveByName(active)
	for _, one := range seen {
		if host, instance, queues, capacity := one.Works(); capacity > 0 {
			id := WorkerID{host, instance}
			_, idle := states[id]
			workers = append(workers, Worker{ID: id, Queues: queues, Capacity: capacity, Active: counts[id].Steps, Idle: idle})
		}
	}
	return workers
}

// Outlook reads what [Around] needs, from etcd or from memory.
type Outlook struct {
	// Candidates returns the candidates of the coordinator's election.
	Candidates func(context.Context) ([]run.Candidate, error)
	// Workers returns the known workers, and whether there may be others.
	Workers func(context.Context) (workers []Worker, blind bool, err error)
	// Space returns the capacity of all pools that the wait queues leave.
	Space func(context.Context) (*pool.Space, error)
}

// Around reads what the waits of instances with one of the statuses depend on.
func (l *Outlook) Around(ctx context.Context, has func(Status) bool) (a Around, err error) {
	a.Now = time.Now()
	if has(Requested) {
		candidates, err := l.Candidates(ctx)
		if err != nil {
			return a, err
		}
		a.Leaderless = len(candidates) == 0
	}
	if !has(Scheduled) {
		return a, nil
	}
	if a.Workers, a.Blind, err = l.Workers(ctx); err != nil {
		return a, err
	}
	a.Space, err = l.Space(ctx)
	return a, err
}

// WorkerMode is the mode of a worker that an operator has set.
type WorkerMode string

// The modes.
const (
	// Working: it takes steps. It is the default.
	Working WorkerMode = "working"
	// Drained: it takes nothing new, and finishes what it has.
	Drained WorkerMode = "drained"
	// Stopped: it takes nothing new, and stops what it has.
	Stopped WorkerMode = "stopped"
)

// WorkerModes are all modes.
var WorkerModes = []WorkerMode{Working, Drained, Stopped}

// WorkerID identifies a worker by its host and instance.
type WorkerID [2]string

// String returns HOST/INSTANCE.
func (id WorkerID) String() string { return id[0] + "/" + id[1] }

// ParseWorkerID parses HOST/INSTANCE.
func ParseWorkerID(text string) (WorkerID, error) {
	host, instance, ok := strings.Cut(text, "/")
	if !ok || host == "" || instance == "" || strings.Contains(instance, "/") || len(text) > maxWorkerID {
		return WorkerID{}, problem.Field("worker", "must be HOST/INSTANCE, as in 'berth worker list', and not %q", problem.Clip(text))
	}
	return WorkerID{host, instance}, nil
}

// maxWorkerID bounds the id of a worker, in bytes.
const maxWorkerID = 512

// WorkerState is the stored mode of a worker. It survives restarts of the worker.
type WorkerState struct {
	Mode WorkerMode `json:"mode"`
	// At is the time of the change, By the identity that made it, and From its address.
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	From string    `json:"from,omitempty"`
	// Reason is given by the operator.
	Reason string `json:"reason,omitempty"`
}

// Name returns the state for people: draining or stopping while the worker has active step
// instances.
func (s WorkerState) Name(active int) string {
	switch {
	case s.Mode == Drained && active > 0:
		return "draining"
	case s.Mode == Stopped && active > 0:
		return "stopping"
	case s.Mode == "":
		return string(Working)
	}
	return string(s.Mode)
}

// maxWorkerText bounds each text of a state, in bytes.
const maxWorkerText = 1024

type workerValue struct {
	store.V
	WorkerState
}

// Encode encodes a state.
func (s WorkerState) Encode() []byte { return store.Encode(workerValue{store.Now, s}) }

// DecodeWorkerState decodes a state. Its error is a [*store.CorruptError].
func DecodeWorkerState(keys store.Keys, key string, data []byte) (id WorkerID, s WorkerState, err error) {
	if id, err = ParseWorkerID(strings.TrimPrefix(key, keys.Workers())); err != nil || keys.Worker(id[0], id[1]) != key {
		return id, s, &store.CorruptError{Key: key, Reason: errors.New("it is no key of a worker")}
	}
	var v workerValue
	if err := store.Decode(key, data, &v); err != nil {
		return id, s, err
	}
	if err := v.WorkerState.check(); err != nil {
		return id, s, &store.CorruptError{Key: key, Reason: err}
	}
	return id, v.WorkerState, nil
}

func (s *WorkerState) check() error {
	switch {
	case s.Mode != Drained && s.Mode != Stopped:
		return fmt.Errorf("mode: %q is none that is kept: use %s and %s", problem.Clip(string(s.Mode)), Drained, Stopped)
	case s.At.IsZero():
		return errors.New("at: it is missing")
	case s.By == "":
		return errors.New("by: it is missing")
	}
	for _, text := range []string{s.By, s.From, s.Reason} {
		if len(text) > maxWorkerText {
			return fmt.Errorf("a text is %d bytes long: use at most %d", len(text), maxWorkerText)
		}
	}
	return nil
}

// WorkerStates returns the stored modes of workers. bad are the values that cannot be read:
// each names its key.
func (s Store) WorkerStates(ctx context.Context) (states map[WorkerID]WorkerState, bad []error, err error) {
	all, err := store.ReadAll(ctx, s.Backend, s.Keys.Workers())
	if err != nil {
		return nil, nil, store.Problem("the modes of workers could not be read", err)
	}
	states = map[WorkerID]WorkerState{}
	for _, kv := range all.KVs {
		id, state, err := DecodeWorkerState(s.Keys, string(kv.Key), kv.Value)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		states[id] = state
	}
	return states, bad, nil
}

// SetWorkerMode sets the mode of a worker, which reads it from etcd, now or when it starts.
// It returns the mode before, empty if that cannot be read, and whether it has changed.
func (s Store) SetWorkerMode(ctx context.Context, id WorkerID, to WorkerState) (before WorkerMode, changed bool, err error) {
	const what = "the mode of the worker was not changed"
	if !slices.Contains(WorkerModes, to.Mode) {
		return "", false, problem.Field("mode", "%q is none: use %s, %s and %s", problem.Clip(string(to.Mode)), Working, Drained, Stopped)
	}
	for field, text := range map[string]string{"by": to.By, "from": to.From, "reason": to.Reason} {
		if len(text) > maxWorkerText {
			return "", false, problem.Field(field, "it is %d bytes long: use at most %d", len(text), maxWorkerText)
		}
	}
	to.At = stampOf(to.At)
	key := s.Keys.Worker(id[0], id[1])
	changed, err = store.Change(ctx, what, func(ctx context.Context) (bool, error) {
		resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return false, err
		}
		rev := int64(0)
		before = Working
		for _, kv := range resp.Kvs {
			rev = kv.ModRevision
			before = "" // a value that cannot be read is replaced
			if _, state, err := DecodeWorkerState(s.Keys, key, kv.Value); err == nil {
				before = state.Mode
			}
		}
		if before == to.Mode {
			return false, nil
		}
		op := store.Put(key, to.Encode(), 0)
		if to.Mode == Working {
			op = store.Delete(key)
		}
		_, err = store.Commit(ctx, s.Backend, []*pb.Compare{store.ModEquals(key, rev)}, op)
		s.suspect(err)
		return err == nil, err
	})
	return before, changed, err
}

// HasWorkerMode reports whether a mode of a worker is stored, even one that cannot be read.
func (s Store) HasWorkerMode(ctx context.Context, id WorkerID) (bool, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Worker(id[0], id[1])), KeysOnly: true})
	if err != nil {
		return false, store.Problem("the mode of the worker could not be read", err)
	}
	return len(resp.Kvs) > 0, nil
}
