package pool

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Follower is the state of all pools as a feed delivers it, for a planner that needs it all
// the time.
type Follower struct {
	feed    *store.Feed
	changed chan struct{}

	mu     sync.Mutex // guards what follows
	reader *Reader
	// revision up to which it is known.
	revision int64
	at       time.Time // when the feed delivered something last; zero before
}

// NewFollower returns a follower that knows nothing until [Follower.Run].
func NewFollower(b store.Backend, keys store.Keys, log hclog.Logger) *Follower {
	return &Follower{
		feed: store.NewFeed(b, keys.Pools(), log, func() {}), changed: make(chan struct{}, 1),
		reader: newReader(store.Snapshot{}, keys),
	}
}

// Run follows the pools until ctx ends, and returns its error.
func (f *Follower) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range f.feed.Messages() {
			f.take(m)
		}
	}()
	err := f.feed.Run(ctx)
	<-done
	return err
}

func (f *Follower) take(m store.FeedMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = time.Now()
	if f.revision = m.Revision; m.Snapshot != nil {
		f.reader.view.load(*m.Snapshot)
	} else {
		f.reader.view.apply(m.Events)
		for _, p := range f.reader.view.order {
			p.reached(m.Revision)
		}
	}
	f.reader.view.acted, f.reader.view.ended = nil, nil // what has happened is of no use here
	if m.Snapshot != nil || len(m.Events) > 0 {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// Changed returns a channel that signals that pools have changed.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Space returns the space of all pools, and which of some claims are held, on any host, with
// their fences. What is newer than the revision it does not know. While etcd has reported
// nothing for 2 s, it is an EtcdUnavailable problem.
func (f *Follower) Space(claims []string) (s *Space, held map[string]int64, revision int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() || time.Since(f.at) >= store.StaleAfter {
		err = problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet")
	} else {
		s = f.reader.Space()
		for name, p := range s.pools {
			p.queued = f.reader.view.pools[name].queued.rev > 0
			s.pools[name] = p
		}
	}
	held = map[string]int64{}
	for _, id := range claims {
		for _, cv := range f.reader.view.claimsOf(id) {
			held[id] = cv.rev
		}
	}
	return s, held, f.revision, err
}
