package list

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// Follower is the state of all pools and offers as a feed delivers it, for a planner that needs it all the time.
// It needs the rights of a dispatcher to read.
type Follower struct {
	feed    *store.Feed
	changed chan struct{}

	mu    sync.Mutex // guards what follows
	state *State
	at    time.Time // when the feed delivered something last; zero before
}

// NewFollower returns a follower that knows nothing until [Follower.Run].
func NewFollower(b store.Backend, keys store.Keys, log hclog.Logger) *Follower {
	return &Follower{
		feed:    store.NewRangeFeed(b, wire.Keys{Keys: keys}.DispatcherRange(), log, func() {}),
		changed: make(chan struct{}, 1), state: New(keys, 0),
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
	if m.Snapshot != nil {
		f.state = New(f.state.keys.Keys, m.Revision)
		for _, kv := range m.Snapshot.KVs {
			f.state.Put(kv)
		}
	}
	f.state.Apply(m.Events)
	f.state.Show(m.Revision)
	if m.Snapshot != nil || len(m.Events) > 0 {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// Changed returns a channel that signals that pools have changed.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Space returns the space of all pools, and the claims that are held under some ids, on any host. What is newer than the revision it
// does not know. While etcd has reported nothing for 2 s, it is an EtcdUnavailable problem.
func (f *Follower) Space(claims []string) (s *pool.Space, held map[string][]pool.HolderStatus, revision int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() || time.Since(f.at) >= store.StaleAfter {
		err = problem.New(problem.EtcdUnavailable, "the state of the pools has not been read from etcd yet")
	} else {
		s = f.state.Space()
	}
	return s, f.state.Held(claims), f.state.Revision(), err
}
