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

// Around is what the waits of instances depend on beside their run. The zero value is
// that nothing of it is known.
type Around struct {
	// Space is what the lines leave of all pools; nil if that is not known.
	Space *pool.Space
	// Workers are those that are seen. Blind tells that there may be others.
	Workers []Worker
	Blind   bool
	// Leaderless tells that nobody coordinates.
	Leaderless bool
	// Now is what times are seen from; zero is that it is not known.
	Now time.Time
}

// Worker is one that is seen.
type Worker struct {
	ID WorkerID
	// Queues that it takes from; none of one that has not said so, and may take from any.
	Queues []string
	// Capacity is how many instances it can have, and Active how many it has.
	Capacity, Active int
	// Idle tells that an operator has drained or stopped it.
	Idle bool
}

// Presence is an instance of berth that is seen, whoever tells of it: steps know no leases.
type Presence interface {
	// Works tells which instance it is, from which queues it takes, and how many step
	// instances it can have: none if it is no worker.
	Works() (host, instance string, queues []string, capacity int)
}

// WorkersOf are the workers among the instances that are seen, with what they have, and
// with what is kept of their modes.
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

// Outlook is how whoever asks reads what is around: from etcd, or from memory.
type Outlook struct {
	// Candidates are those for the coordinator's part.
	Candidates func(context.Context) ([]run.Candidate, error)
	// Workers are those that are seen, and whether there may be others.
	Workers func(context.Context) (workers []Worker, blind bool, err error)
	// Space is what the lines leave of all pools.
	Space func(context.Context) (*pool.Space, error)
}

// Pools is whoever keeps all pools in memory, as a client does.
type Pools interface {
	Space(context.Context) (*pool.Space, error)
	Pools(context.Context) ([]pool.Status, error)
}

// SpaceOf reads what the lines leave of the pools that somebody keeps. Who can't write to
// etcd does not know that, because it is full, say: then the lines are left out.
func SpaceOf(p Pools) func(context.Context) (*pool.Space, error) {
	return func(ctx context.Context) (*pool.Space, error) {
		if space, err := p.Space(ctx); err == nil {
			return space, nil
		}
		all, err := p.Pools(ctx)
		if err != nil {
			return nil, err
		}
		return pool.NewSpace(all...), nil
	}
}

// Around reads what the waits of instances depend on that have any of the statuses, and
// nothing else.
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

// WorkerMode is what an operator wants of a worker.
type WorkerMode string

// The modes.
const (
	// Working: it takes steps. It is the mode of a worker of which nothing is kept.
	Working WorkerMode = "working"
	// Drained: it takes nothing new, and what it has goes on.
	Drained WorkerMode = "drained"
	// Stopped: it takes nothing new, and what it has is stopped.
	Stopped WorkerMode = "stopped"
)

// WorkerModes are all of them.
var WorkerModes = []WorkerMode{Working, Drained, Stopped}

// WorkerID names a worker: its host and its instance.
type WorkerID [2]string

// String is how users write it.
func (id WorkerID) String() string { return id[0] + "/" + id[1] }

// ParseWorkerID reads a name as users write it.
func ParseWorkerID(text string) (WorkerID, error) {
	host, instance, ok := strings.Cut(text, "/")
	if !ok || host == "" || instance == "" || strings.Contains(instance, "/") || len(text) > maxWorkerID {
		return WorkerID{}, problem.Field("worker", "%q is no worker: it is HOST/INSTANCE, as 'berth worker list' has them", problem.Clip(text))
	}
	return WorkerID{host, instance}, nil
}

// maxWorkerID bounds the name of a worker, in bytes.
const maxWorkerID = 512

// WorkerState is what is kept in etcd of a worker that is not to take anything. It stays
// when the worker restarts.
type WorkerState struct {
	Mode WorkerMode `json:"mode"`
	// At is when that was asked for, By whom, and From where.
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	From string    `json:"from,omitempty"`
	// Reason is in the words of whoever asked for it.
	Reason string `json:"reason,omitempty"`
}

// Name is what users see of the state of a worker that has so many step instances: it is
// draining or stopping while it has any.
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

// Encode writes a state.
func (s WorkerState) Encode() []byte { return store.Encode(workerValue{store.Now, s}) }

// DecodeWorkerState reads the state of a key. Its error is a [*store.CorruptError].
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
		return fmt.Errorf("mode: %q is none that is kept: allowed are %s and %s", problem.Clip(string(s.Mode)), Drained, Stopped)
	case s.At.IsZero():
		return errors.New("at: it is missing")
	case s.By == "":
		return errors.New("by: it is missing")
	}
	for _, text := range []string{s.By, s.From, s.Reason} {
		if len(text) > maxWorkerText {
			return fmt.Errorf("a text is %d bytes long: allowed are %d", len(text), maxWorkerText)
		}
	}
	return nil
}

// WorkerStates reads what is kept of workers. Bad are values that can't be read: each names
// its key.
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

// SetWorkerMode asks a worker for a mode: the worker sees it in etcd, now or when it
// starts. It returns the mode before, empty if it can't be read. A worker that has the mode
// already is left as it is, and changed is false.
func (s Store) SetWorkerMode(ctx context.Context, id WorkerID, to WorkerState) (before WorkerMode, changed bool, err error) {
	const what = "the mode of the worker was not changed"
	if !slices.Contains(WorkerModes, to.Mode) {
		return "", false, problem.Field("mode", "%q is none: allowed are %s, %s and %s", problem.Clip(string(to.Mode)), Working, Drained, Stopped)
	}
	for field, text := range map[string]string{"by": to.By, "from": to.From, "reason": to.Reason} {
		if len(text) > maxWorkerText {
			return "", false, problem.Field(field, "it is %d bytes long: allowed are %d", len(text), maxWorkerText)
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
			before = "" // a value that can't be read is replaced
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

// HasWorkerMode reports whether a mode is kept for a worker, even one that can't be read.
func (s Store) HasWorkerMode(ctx context.Context, id WorkerID) (bool, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Worker(id[0], id[1])), KeysOnly: true})
	if err != nil {
		return false, store.Problem("the mode of the worker could not be read", err)
	}
	return len(resp.Kvs) > 0, nil
}
