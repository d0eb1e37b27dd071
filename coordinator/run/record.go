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

// Executor is the executor of a run.
type Executor struct {
	// Host and Instance are the berth instance through which it runs, and which checks
	// that it lives.
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// Name distinguishes the executors of one instance. An executor with a name can repeat
	// a start whose response was lost.
	Name string `json:"name,omitempty"`
	// By is the identity that started or took it over HTTP; empty for a worker.
	By string `json:"by,omitempty"`
	// EtcdUser and User identify a worker, which has no By: its user in etcd, such as
	// "etcd:worker", if etcd has users, and the user that its commands run as, such as
	// "user:berth". See [Executor.Owns].
	EtcdUser string `json:"etcd_user,omitempty"`
	User     string `json:"user,omitempty"`
}

// Record is the value of a run in etcd.
type Record struct {
	store.V
	Spec
	Status Status `json:"status"`
	// Block is why it is still queued; nil until the coordinator has checked it.
	Block *Block `json:"block,omitempty"`
	// Joined is the revision after which it joined the queue when it was due; 0 before
	// that, and for a run without NotBefore.
	Joined int64 `json:"joined,omitempty"`
	// HeldSince is since when pools, and no limit, have blocked it: reserve_after counts
	// from then, even if a limit blocks it later.
	HeldSince time.Time `json:"held_since,omitzero"`
	// QueuedAt is when it was submitted. The other times are those of its last admission
	// and start, and of its end.
	QueuedAt   time.Time `json:"queued_at"`
	AdmittedAt time.Time `json:"admitted_at,omitzero"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	// Attempt counts the starts.
	Attempt int `json:"attempt,omitempty"`
	// Lost counts the lost executors, including those that never started it.
	Lost int `json:"lost,omitempty"`
	// Executor is the current or last one.
	Executor *Executor `json:"executor,omitempty"`
	// Error is why it failed or was canceled.
	Error string `json:"error,omitempty"`
	// Claim is the id of the claim of its slots while it is in progress. From its admission
	// the coordinator holds it, and from its start the host of its executor.
	Claim string `json:"claim,omitempty"`
	// EndFence is the fencing token of the attempt that ended it.
	EndFence store.Fence `json:"end_fence,omitempty"`
	// StoredKiB is the size class that the run counts as: see [Quota.Stored]. It is 0 without
	// SubmittedBy.
	StoredKiB int64 `json:"stored_kib,omitempty"`
}

// Run is a record with its id and revisions.
type Run struct {
	ID string
	Record
	// Created is the revision of its submission, which orders the queue.
	Created int64
	// Revision is that of the record.
	Revision int64
}

// Fence returns the fencing token of the attempt, while the run is running.
func (r *Run) Fence() store.Fence { return store.FenceAt(r.Revision) }

// Compare orders the queue: by descending priority, then by when they joined. A run with
// NotBefore comes after the runs that were submitted before it was due; runs that are not
// due follow in the order of their times. Runs of one transaction are ordered by id.
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

// order returns -1 if the first of two runs comes first, else 1.
func order(first bool) int {
	if first {
		return -1
	}
	return 1
}

// Decode decodes a run.
func Decode(keys store.Keys, kv *mvccpb.KeyValue) (*Run, error) {
	key := string(kv.Key)
	id, ok := strings.CutPrefix(key, keys.Runs())
	if !ok || ValidateID(id) != nil {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("it is not the key of a run")}
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

// Glimpse reads the tags of a record that Decode cannot read, for example of a newer
// version, and reports whether the run seems to be in progress.
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
		return fmt.Errorf("status: %q is not a status", problem.Clip(string(r.Status)))
	case r.Attempt < 0 || r.Lost < 0:
		return errors.New("attempt or lost is negative")
	case r.StoredKiB < 0:
		return errors.New("stored_kib is negative")
	case r.Joined < 0:
		return errors.New("joined is negative")
	case r.Status == Running && r.Executor == nil && r.Steps == 0:
		return errors.New("executor is missing of a running run")
	case r.Status.InProgress() && len(r.Pools) > 0 && pool.ValidateID(r.Claim) != nil:
		return errors.New("claim is missing of a run in progress with pools")
	}
	return r.Spec.Validate()
}

// Encode encodes a record.
func (r Record) Encode() []byte {
	r.V = store.Now
	return store.Encode(r)
}
