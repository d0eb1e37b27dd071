package source

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// standTimeout bounds one try to stand, and standPause is the pause after one that
// failed.
const (
	standTimeout = 2 * time.Second
	standPause   = 500 * time.Millisecond
)

// election follows who stands to run the source and when it is woken, and stands itself
// on the presence lease.
type election struct {
	cfg  Config
	name string
	log  hclog.Logger
	feed *store.Feed

	lease      store.LeaseID    // 0: none to stand on
	candidates map[string]int64 // their terms, by key
	wake       int64            // revision of the last wish
	known      bool
	lost       int64 // the last term of ours that was found to have ended
	retry      *time.Timer
	troubled   bool // the last try failed, and that was told
}

func newElection(cfg Config) *election {
	e := &election{cfg: cfg, name: cfg.Spec.Name, log: cfg.Logger, candidates: map[string]int64{}, retry: time.NewTimer(standPause)}
	e.feed = store.NewFeed(cfg.Backend, cfg.Keys.SourceLive(e.name), cfg.Logger, func() {})
	return e
}

// message takes what was delivered.
func (e *election) message(m store.FeedMessage) {
	if m.Snapshot != nil {
		clear(e.candidates)
		e.known = true
	}
	for _, ev := range m.Events {
		if len(ev.Kv.Value) == 0 {
			delete(e.candidates, string(ev.Kv.Key))
		}
	}
	for _, kv := range puts(m) {
		key := string(kv.Key)
		switch {
		case key == e.cfg.Keys.SourceWake(e.name):
			e.wake = kv.ModRevision
		case strings.HasPrefix(key, e.cfg.Keys.SourceCandidates(e.name)):
			// One of another version looks in its turn, too.
			c, err := decodeCandidate(e.cfg.Keys, e.name, kv)
			if err != nil {
				e.log.Warn("a candidate can't be read", "error", err)
			}
			if c.Term > 0 {
				e.candidates[key] = c.Term
			}
		}
	}
}

// mine is the term of the candidate on our lease, 0 if it does not stand.
func (e *election) mine() int64 {
	if e.lease == 0 {
		return 0
	}
	return e.candidates[e.cfg.Keys.SourceCandidate(e.name, e.lease)]
}

// turn is our term if it is our turn, and else 0.
func (e *election) turn() int64 {
	mine := e.mine()
	if mine == e.lost {
		return 0
	}
	for _, other := range e.candidates {
		if other < mine {
			return 0
		}
	}
	return mine
}

// stand puts our key if it is not there. It comes back by the feed.
func (e *election) stand(ctx context.Context) {
	if e.mine() != 0 || e.lease == 0 || !e.known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, standTimeout)
	defer cancel()
	key := e.cfg.Keys.SourceCandidate(e.name, e.lease)
	c := Candidate{Host: e.cfg.Host, Instance: e.cfg.Instance, Version: e.cfg.Version, Since: stamp(time.Now())}
	_, err := store.Commit(ctx, e.cfg.Backend, []*pb.Compare{store.CreateEquals(key, 0)}, store.Put(key, c.encode(), e.lease))
	failed := err != nil && !errors.Is(err, store.ErrChanged)
	if failed && !e.troubled { // once in a row
		e.log.Warn("could not stand as a candidate, trying again", "error", err)
	}
	e.troubled = failed
	e.retry.Reset(standPause)
}
