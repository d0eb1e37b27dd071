package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// feedGrace is for how long pools are watched after their last subscriber, which may come again.
const feedGrace = 5 * time.Second

// allPools names all pools; no pool has that name.
const allPools = ""

// SubscribePools is [Engine.Subscribe] for the changes of some pools, on any host; without names, of all. The engine watches them
// for as long as there are subscribers. What is read after an event shows it.
func (e *Engine) SubscribePools(ctx context.Context, pools ...string) (<-chan pool.Event, error) {
	if len(pools) == 0 {
		pools = []string{allPools}
	}
	s := newSubscriber(false)
	if err := e.feeds.add(s, pools); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { e.feeds.remove(s) })
	return s.events, nil
}

// poolFeeds watch the pools that have subscribers.
type poolFeeds struct {
	e *Engine

	mu     sync.Mutex // guards what follows, and the subscribers
	byPool map[string]*poolFeed
	closed bool
	tasks  sync.WaitGroup
}

// poolFeed watches one pool, or all.
type poolFeed struct {
	cancel context.CancelFunc
	subs   []*subscriber
	idle   *time.Timer // ends it; nil while there are subscribers
	// pools are those that it has delivered anything of since it has read everything.
	pools map[string]bool
}

func newPoolFeeds(e *Engine) *poolFeeds { return &poolFeeds{e: e, byPool: map[string]*poolFeed{}} }

// add adds a subscriber of some pools.
func (f *poolFeeds) add(s *subscriber, pools []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errStopped
	}
	for _, name := range pools {
		p := f.byPool[name]
		if p == nil {
			p = f.watch(name)
		}
		if p.idle != nil {
			p.idle.Stop()
			p.idle = nil
		}
		if !slices.Contains(p.subs, s) {
			p.subs = append(p.subs, s)
		}
	}
	return nil
}

// remove removes a subscriber.
func (f *poolFeeds) remove(s *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.byPool {
		p.subs = slices.DeleteFunc(p.subs, func(o *subscriber) bool { return o == s })
		if len(p.subs) == 0 && p.idle == nil && !f.closed {
			p.idle = time.AfterFunc(feedGrace, func() { f.end(name, p) })
		}
	}
}

// end ends a feed without subscribers.
func (f *poolFeeds) end(name string, p *poolFeed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p.subs) == 0 && f.byPool[name] == p {
		delete(f.byPool, name)
		p.cancel()
	}
}

// watch begins to watch a pool, or all. The feed begins at a revision that every later read shows, so that no change is
// missed. The lock is held.
func (f *poolFeeds) watch(name string) *poolFeed {
	cfg := f.e.cfg
	prefix := cfg.Keys.Pools()
	if name != allPools {
		prefix = cfg.Keys.Pool(name)
	}
	from := max(f.e.Shown(), f.e.contact.latest())
	f.e.AtLeast(from)
	feed := store.NewFeedAfter(cfg.Backend, prefix, from, cfg.Logger, func() {})
	ctx, cancel := context.WithCancel(context.Background())
	p := &poolFeed{cancel: cancel, pools: map[string]bool{}}
	if name != allPools {
		p.pools[name] = true
	}
	f.byPool[name] = p
	f.tasks.Go(func() { _ = feed.Run(ctx) })
	f.tasks.Go(func() {
		for m := range feed.Messages() {
			f.publish(p, m)
		}
	})
	return p
}

// publish publishes which pools a message has changed. Those that are gone after everything was read have changed too.
func (f *poolFeeds) publish(p *poolFeed, m store.FeedMessage) {
	changed := map[string]bool{}
	note := func(key []byte) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(string(key), f.e.cfg.Keys.Pools()), "/"); ok {
			changed[name] = true
		}
	}
	for _, ev := range m.Events {
		note(ev.Kv.Key)
	}
	if m.Snapshot != nil {
		for _, kv := range m.Snapshot.KVs {
			note(kv.Key)
		}
		before := p.pools
		p.pools = maps.Clone(changed)
		maps.Copy(changed, before)
	} else {
		maps.Copy(p.pools, changed)
	}
	if len(changed) == 0 {
		return
	}
	f.e.AtLeast(m.Revision)
	ev := pool.Event{Type: pool.PoolChanged, Pools: slices.Sorted(maps.Keys(changed))}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range p.subs {
		s.send(ev)
	}
}

// close ends all feeds.
func (f *poolFeeds) close() {
	f.mu.Lock()
	f.closed = true
	for _, p := range f.byPool {
		p.cancel()
		if p.idle != nil {
			p.idle.Stop()
		}
	}
	f.mu.Unlock()
	f.tasks.Wait()
}
