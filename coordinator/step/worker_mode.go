package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

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

// SetWorkerMode asks a worker for a mode: it sees that in etcd, now or when it starts.
// Record returns what is to be written with it, to tell of it; it is given the mode before.
// A worker that has the mode already is left as it is, and changed is false.
func (s Store) SetWorkerMode(ctx context.Context, id WorkerID, to WorkerState, record func(ctx context.Context, before WorkerMode) (*pb.RequestOp, error)) (changed bool, err error) {
	const what = "the mode of the worker was not changed"
	if !slices.Contains(WorkerModes, to.Mode) {
		return false, problem.Field("mode", "%q is none: allowed are %s, %s and %s", problem.Clip(string(to.Mode)), Working, Drained, Stopped)
	}
	for field, text := range map[string]string{"by": to.By, "from": to.From, "reason": to.Reason} {
		if len(text) > maxWorkerText {
			return false, problem.Field(field, "it is %d bytes long: allowed are %d", len(text), maxWorkerText)
		}
	}
	to.At = stampOf(to.At)
	key := s.Keys.Worker(id[0], id[1])
	return store.Change(ctx, what, func(ctx context.Context) (bool, error) {
		resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return false, err
		}
		before, rev := Working, int64(0)
		for _, kv := range resp.Kvs {
			rev = kv.ModRevision
			// One that can't be read is replaced.
			before = ""
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
		told, err := record(ctx, before)
		if err != nil {
			return false, err
		}
		_, err = store.Commit(ctx, s.Backend, []*pb.Compare{store.ModEquals(key, rev)}, op, told)
		s.suspect(err)
		return err == nil, err
	})
}
