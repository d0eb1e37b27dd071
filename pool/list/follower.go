package list

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Follower is the state of all pools as feeds deliver it, for a planner that needs it all the time: pools, offers and free
// places. They may be known up to different revisions, so that what a claim has just taken may count twice for a moment,
// or not yet.
type Follower struct {
	feeds   []*followedPart
	changed chan struct{}

	mu    sync.Mutex // guards state and the parts
	state *State
}

// followedPart is the keys with a prefix.
type followedPart struct {
	prefix   string
	feed     *store.Feed
	revision int64 // up to which it is known
	at       time.Time
}

// NewFollower returns a follower that knows nothing until [Follower.Run].
func NewFollower(b store.Backend, keys store.Keys, log hclog.Logger) *Follower {
	f := &Follower{changed: make(chan struct{}, 1), state: New(keys, 0)}
	k := f.state.keys
	for _, prefix := range []string{k.Pools(), k.OffersAll(), k.PlacesAll()} {
		f.feeds = append(f.feeds, &followedPart{prefix: prefix, feed: store.NewFeed(b, prefix, log, func() {})})
	}
	return f
}

// Run follows the pools until ctx ends, and returns its error.
func (f *Follower) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	for _, part := range f.feeds {
		g.Go(func() error { return part.feed.Run(inner) })
		g.Go(func() error {
			for m := range part.feed.Messages() {
				f.take(part, m)
			}
			return nil
		})
	}
	return g.Wait()
}

func (f *Follower) take(part *followedPart, m store.FeedMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	part.reached(m.Revision)
	if part == f.feeds[0] {
		f.state.Show(m.Revision)
	}
	if m.Snapshot != nil {
		f.state.replace(part.prefix, m.Snapshot)
	}
	f.state.Apply(m.Events)
	if m.Snapshot != nil || len(m.Events) > 0 {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

func (p *followedPart) reached(revision int64) { p.revision, p.at = revision, time.Now() }

// replace has a state hold of the keys with a prefix those of a snapshot.
func (s *State) replace(prefix string, by *store.Snapshot) {
	gone := map[string]bool{}
	for key := range s.allKeys() {
		if strings.HasPrefix(key, prefix) {
			gone[key] = true
		}
	}
	for _, kv := range by.KVs {
		delete(gone, string(kv.Key))
		s.Put(kv)
	}
	for key := range maps.Keys(gone) {
		s.Delete(key)
	}
}

// Changed returns a channel that signals that pools have changed.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Space returns the space of all pools, and which of some claims are held, on any host, with the revisions of their keys. What is
// newer than the revision it does not know. While etcd has reported nothing for 2 s, it is an EtcdUnavailable problem.
func (f *Follower) Space(claims []string) (s *pool.Space, held map[string]int64, revision int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, part := range f.feeds {
		if part.at.IsZero() || time.Since(part.at) >= store.StaleAfter {
			err = problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet")
		}
	}
	if err == nil {
		s = f.state.Space(Own{})
	}
	return s, f.state.Held(claims), f.feeds[0].revision, err
}
