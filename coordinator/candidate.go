package coordinator

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

var errNotSeen = problem.New(problem.Unavailable, "the candidate is not seen among the hosts yet")

// Trouble tells why the candidate does not stand: etcd is away, say, or another
// process is the candidate of this host. It is nil while it stands.
func (c *Coordinator) Trouble() error {
	switch err := c.presence.Trouble(); {
	case err == nil:
	case problem.CodeOf(err) == problem.Internal:
		return store.Problem("the candidate does not stand", err)
	default:
		return err
	}
	select {
	case <-c.Ready():
		return nil
	default:
		return errNotSeen
	}
}

// leaderOf returns the candidate that leads; false if there is none.
func leaderOf(all map[string]run.Candidate) (leader run.Candidate, ok bool) {
	for _, c := range all {
		if !ok || c.Term < leader.Term {
			leader, ok = c, true
		}
	}
	return leader, ok
}

func candidateOf(cfg Config, kv *mvccpb.KeyValue) (string, run.Candidate, error) {
	c, err := run.DecodeCandidate(cfg.Keys, kv)
	return string(kv.Key), c, err
}
