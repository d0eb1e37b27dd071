package run

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
)

// Candidate is a candidate of the coordinator's election.
type Candidate struct {
	election.Candidate
	// Tick is the leader's last tick with an effect, or a recent one.
	Tick *Tick `json:"tick,omitempty"`
}

// Tick is the result of a tick.
type Tick struct {
	At time.Time `json:"at"`
	// Took is its duration until its last write.
	Took     time.Duration `json:"took_ns"`
	Number   int64         `json:"number"`
	Queued   int           `json:"queued"`
	Progress int           `json:"in_progress"`
	Admitted int           `json:"admitted"`
	Lost     int           `json:"lost"`
	Blocked  int           `json:"blocked"`
}

// candidateValue is the value of a candidate in etcd.
type candidateValue struct {
	store.V
	Candidate
}

// Encode encodes a candidate for etcd.
func (c Candidate) Encode() []byte { return store.Encode(candidateValue{store.Now, c}) }

// DecodeCandidate reads the key and the value of a candidate: see [election.DecodeInto].
func DecodeCandidate(keys store.Keys, kv *mvccpb.KeyValue) (Candidate, error) {
	var v candidateValue
	err := election.DecodeInto(keys.Coordinators(), kv, &v, &v.Candidate.Candidate)
	return v.Candidate, err
}

// Candidates returns the coordinator's candidates, the leader first. A candidate that
// cannot be read has only its term.
func (s Store) Candidates(ctx context.Context) ([]Candidate, error) {
	found, err := election.List(ctx, s.Backend, s.Keys.Coordinators())
	if err != nil {
		return nil, store.Problem("the coordinator's candidates could not be read", err)
	}
	all := []Candidate{}
	for _, kv := range found {
		if c, _ := DecodeCandidate(s.Keys, kv); c.Term > 0 {
			all = append(all, c)
		}
	}
	return all, nil
}
