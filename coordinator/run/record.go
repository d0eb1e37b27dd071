package run

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Executor is who runs a run.
type Executor struct {
	// Host and Instance are the instance of berth that it came through, and that
	// sees to it that it lives.
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// Name tells executors of one instance apart. One that has a name can ask again
	// for a start whose answer was lost.
	Name string `json:"name,omitempty"`
}

// Record is a run as it stands in etcd.
type Record struct {
	store.V
	Spec
	Status Status `json:"status"`
	// Block is why it is still queued, once the coordinator has found out.
	Block *Block `json:"block,omitempty"`
	// Joined is the revision behind which it joined the queue when its time came; 0 while
	// that has not come, and of a run that never had to wait for one.
	Joined int64 `json:"joined,omitempty"`
	// HeldSince is since when pools have held it up that no limit has, if they have: from
	// then on its age counts that it takes to reserve slots, whatever holds it up besides.
	HeldSince time.Time `json:"held_since,omitzero"`
	// QueuedAt is when it was submitted. The other times are when it was last
	// admitted and started, and when it ended.
	QueuedAt   time.Time `json:"queued_at"`
	AdmittedAt time.Time `json:"admitted_at,omitzero"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	// Attempt counts the starts.
	Attempt int `json:"attempt,omitempty"`
	// Lost counts the executors that were lost, those that never came included.
	Lost int `json:"lost,omitempty"`
	// Executor is who has it now, or had it last.
	Executor *Executor `json:"executor,omitempty"`
	// Error is why it failed, or who canceled it.
	Error string `json:"error,omitempty"`
	// Claim is the id under which its slots are held while it is in progress: from
	// its admission on by the coordinator, and by its executor's host once it runs.
	Claim string `json:"claim,omitempty"`
	// EndFence is the fence that its last executor named at the end.
	EndFence int64 `json:"end_fence,omitempty"`
}

// Run is a record with what etcd says of it.
type Run struct {
	ID string
	Record
	// Created is the revision of its submission: the order in the queue.
	Created int64
	// Revision is that of the record. While a run is running it is the fence of the
	// attempt: whoever finishes it must name it.
	Revision int64
}

// Compare is the order of the queue: higher priority first, then who joined it first. A
// run whose time has come stands behind those that were submitted before that time; those
// whose time has not come follow in the order of their times. Runs that came with one
// write are in the order of their ids.
func (r *Run) Compare(o *Run) int {
	deferred := r.Deferred()
	if deferred != o.Deferred() {
		return order(o.Deferred())
	}
	if deferred {
		return cmp.Or(r.NotBefore.Compare(o.NotBefore.Time), cmp.Compare(o.Priority, r.Priority),
			cmp.Compare(r.Created, o.Created), cmp.Compare(r.ID, o.ID))
	}
	if by := cmp.Or(cmp.Compare(o.Priority, r.Priority), cmp.Compare(r.Place(), o.Place())); by != 0 {
		return by
	}
	if joined := r.Joined != 0; joined != (o.Joined != 0) {
		return order(!joined)
	} else if joined {
		if by := r.NotBefore.Compare(o.NotBefore.Time); by != 0 {
			return by
		}
	}
	return cmp.Or(cmp.Compare(r.Created, o.Created), cmp.Compare(r.ID, o.ID))
}

// order compares two runs of which one comes first.
func order(first bool) int {
	if first {
		return -1
	}
	return 1
}

// Decode reads the run of a key.
func Decode(keys store.Keys, kv *mvccpb.KeyValue) (*Run, error) {
	key := string(kv.Key)
	id, ok := strings.CutPrefix(key, keys.Runs())
	if !ok || ValidateID(id) != nil {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("it is no key of a run")}
	}
	r := &Run{ID: id, Created: kv.CreateRevision, Revision: kv.ModRevision}
	if err := store.Decode(key, kv.Value, &r.Record); err != nil {
		return nil, err
	}
	if err := r.Record.check(); err != nil {
		return nil, &store.CorruptError{Key: key, Reason: err}
	}
	return r, nil
}

// Glimpse looks into a record that can't be read, as one of a newer version: it is
// true if the run seems to be in progress, and then has the tags that limits count.
func Glimpse(data []byte) (tags map[string]string, inProgress bool) {
	var v struct {
		Status Status            `json:"status"`
		Tags   map[string]string `json:"tags"`
	}
	err := json.Unmarshal(data, &v)
	return v.Tags, err == nil && v.Status.InProgress()
}

func (r *Record) check() error {
	switch {
	case !slices.Contains(Statuses, r.Status):
		return fmt.Errorf("status: %q is none", problem.Clip(string(r.Status)))
	case r.Attempt < 0 || r.Lost < 0:
		return errors.New("attempt, lost: they are counts")
	case r.Joined < 0:
		return errors.New("joined: it is a revision")
	case r.Status == Running && r.Executor == nil && r.Steps == 0:
		return errors.New("executor: it is running, and nobody has it")
	case r.Status.InProgress() && len(r.Pools) > 0 && pool.ValidateID(r.Claim) != nil:
		return errors.New("claim: it is in progress, and nobody holds its slots")
	}
	return r.Spec.Validate()
}

// Encode writes a record.
func (r Record) Encode() []byte {
	r.V = store.Now
	return store.Encode(r)
}
