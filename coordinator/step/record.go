package step

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// Record is the state of a step instance as it stands in etcd. One that has none was
// never published: its status is [Requested].
type Record struct {
	store.V
	Status Status `json:"status"`
	// Attempt counts the starts.
	Attempt int `json:"attempt,omitempty"`
	// Executor is who has it now, or had it last.
	Executor *run.Executor `json:"executor,omitempty"`
	// The times are when it was last published and started, and when it ended.
	ScheduledAt time.Time `json:"scheduled_at,omitzero"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	// ExitCode is that of its command's last attempt, and Error why it failed.
	ExitCode int    `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`
	// Pause is how long a requested instance waits before it is published again, from
	// when it came to be so.
	Pause time.Duration `json:"pause,omitempty"`
	// Place is the revision that counts in the order of its queue, of an instance of a step
	// that had to wait for a time; 0 is that of its run.
	Place int64 `json:"place,omitempty"`
	// EndFence is the fence that its last executor named at the end.
	EndFence int64 `json:"end_fence,omitempty"`
}

// Instance is a step instance with what etcd says of it.
type Instance struct {
	store.StepID
	Record
	// Revision is that of the record, 0 if there is none. While an instance is running
	// it is the fence of the attempt.
	Revision int64
}

// Decode reads the instance of a key under [store.Keys.StepsAll].
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
		return fmt.Errorf("status: %q is none", string(r.Status))
	case r.Attempt < 0 || r.Pause < 0 || r.Place < 0:
		return errors.New("attempt, pause, place: they are not below 0")
	case r.Status == Running && r.Executor == nil:
		return errors.New("executor: it is running, and nobody has it")
	}
	return nil
}

// Encode writes a record.
func (r Record) Encode() []byte {
	r.V = store.Now
	return store.Encode(r)
}
