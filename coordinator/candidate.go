package coordinator

import (
	"errors"
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

func (c Candidate) encode() []byte { return store.Encode(candidateValue{store.Now, c}) }

// decodeCandidate reads the candidate of a key. If it can't, and yet somebody stands
// there, the candidate has its term and lease besides the error.
func decodeCandidate(keys store.Keys, kv *mvccpb.KeyValue) (Candidate, error) {
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

// leaderOf returns the candidate that leads; false if there is none.
func leaderOf(all map[string]Candidate) (leader Candidate, ok bool) {
	for _, c := range all {
		if !ok || c.Term < leader.Term {
			leader, ok = c, true
		}
	}
	return leader, ok
}

func candidateOf(cfg Config, kv *mvccpb.KeyValue) (string, Candidate, error) {
	c, err := decodeCandidate(cfg.Keys, kv)
	return string(kv.Key), c, err
}
