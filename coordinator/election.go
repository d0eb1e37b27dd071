package coordinator

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// standTimeout bounds one try to stand, and standPause is the pause after one that
// failed.
const (
	standTimeout = 2 * time.Second
	standPause   = 500 * time.Millisecond
)

// election follows who stands, and stands itself on the presence lease.
type election struct {
	cfg  Config
	feed *store.Feed

	lease      store.LeaseID // 0: none to stand on
	candidates map[string]run.Candidate
	rev        int64 // that candidates are known at
	retry      *time.Timer
	troubled   bool // the last try failed, and that was told
}

func newElection(cfg Config) *election {
	e := &election{cfg: cfg, candidates: map[string]run.Candidate{}, retry: time.NewTimer(0)}
	e.feed = store.NewFeed(cfg.Backend, cfg.Keys.Coordinators(), cfg.Logger, func() {})
	return e
}

// message takes what was delivered.
func (e *election) message(m store.FeedMessage) {
	if m.Snapshot != nil {
		clear(e.candidates)
		for _, kv := range m.Snapshot.KVs {
			e.put(candidateOf(e.cfg, kv))
		}
	}
	for _, ev := range m.Events {
		if len(ev.Kv.Value) == 0 {
			delete(e.candidates, string(ev.Kv.Key))
			continue
		}
		e.put(candidateOf(e.cfg, ev.Kv))
	}
	e.rev = m.Revision
}

func (e *election) put(key string, c run.Candidate, err error) {
	switch {
	case err == nil:
	case c.Term == 0:
		e.cfg.Logger.Error("ignoring a key among the candidates", "error", err)
		delete(e.candidates, key)
		return
	default: // of another version, say: it leads in its turn all the same
		e.cfg.Logger.Warn("a candidate can't be read", "error", err)
	}
	e.candidates[key] = c
}

// mine is the candidate on our lease, if it stands.
func (e *election) mine() (run.Candidate, bool) {
	c, ok := e.candidates[e.cfg.Keys.Coordinator(e.lease)]
	return c, ok && e.lease != 0
}

// leads tells whether we lead, and in what term.
func (e *election) leads() (term run.Candidate, ok bool) {
	mine, stands := e.mine()
	leader, _ := leaderOf(e.candidates)
	return mine, stands && leader.Term == mine.Term
}

// stand puts our key if it is not there. It comes back by the feed.
func (e *election) stand(ctx context.Context) {
	if _, stands := e.mine(); stands || e.lease == 0 || e.rev == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, standTimeout)
	defer cancel()
	key := e.cfg.Keys.Coordinator(e.lease)
	c := run.Candidate{Host: e.cfg.Host, Instance: e.cfg.Instance, Version: e.cfg.Version, Since: stamp(time.Now())}
	_, err := store.Commit(ctx, e.cfg.Backend,
		[]*pb.Compare{store.CreateEquals(key, 0)}, store.Put(key, c.Encode(), e.lease))
	failed := err != nil && !errors.Is(err, store.ErrChanged)
	if failed && !e.troubled { // once in a row
		e.cfg.Logger.Warn("could not stand as a candidate, trying again", "error", err)
	}
	e.troubled = failed
	e.retry.Reset(standPause)
}

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
