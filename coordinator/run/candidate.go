package run

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// Candidate is somebody who stands for the coordinator's part. The one that was
// created first leads.
type Candidate struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`
	// Tick is the leader's last tick that came to something, or was as good as
	// recent.
	Tick *Tick `json:"tick,omitempty"`

	// Term is the revision at which it stood: terms grow from leader to leader.
	Term int64 `json:"-"`
	// Lease that its key hangs on.
	Lease store.LeaseID `json:"-"`
}

// Tick is what one tick came to.
type Tick struct {
	At time.Time `json:"at"`
	// Took is how long it had taken when it was last told of: all of it but the last
	// write.
	Took     time.Duration `json:"took_ns"`
	Number   int64         `json:"number"`
	Queued   int           `json:"queued"`
	Progress int           `json:"in_progress"`
	Admitted int           `json:"admitted"`
	Lost     int           `json:"lost"`
	Blocked  int           `json:"blocked"`
}

// candidateValue is how a candidate stands in etcd.
type candidateValue struct {
	store.V
	Candidate
}

// Encode writes a candidate as it stands in etcd.
func (c Candidate) Encode() []byte { return store.Encode(candidateValue{store.Now, c}) }

// DecodeCandidate reads the candidate of a key. If it can't, and yet somebody stands
// there, the candidate has its term and lease besides the error.
func DecodeCandidate(keys store.Keys, kv *mvccpb.KeyValue) (Candidate, error) {
	key := string(kv.Key)
	id, err := strconv.ParseInt(strings.TrimPrefix(key, keys.Coordinators()), 16, 64)
	if err != nil || keys.Coordinator(store.LeaseID(id)) != key || id != kv.Lease {
		return Candidate{}, &store.CorruptError{Key: key, Reason: errors.New("it is no key of a candidate on its lease")}
	}
	var v candidateValue
	err = store.Decode(key, kv.Value, &v)
	v.Term, v.Lease = kv.CreateRevision, store.LeaseID(kv.Lease)
	return v.Candidate, err
}

// Candidates returns who stands for the coordinator's part, the one that leads
// first. Of one that can't be read there is the term alone.
func (s Store) Candidates(ctx context.Context) ([]Candidate, error) {
	found, err := store.ReadAll(ctx, s.Backend, s.Keys.Coordinators())
	if err != nil {
		return nil, store.Problem("the coordinator could not be asked for", err)
	}
	all := []Candidate{}
	for _, kv := range found.KVs {
		if c, _ := DecodeCandidate(s.Keys, kv); c.Term > 0 {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Candidate) int { return cmp.Compare(a.Term, b.Term) })
	return all, nil
}
