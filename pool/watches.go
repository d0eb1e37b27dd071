package pool

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// readTimeout bounds a read of a pool for claims, or of the marks.
	readTimeout = 2 * time.Second
	// readAllTimeout bounds a read of all pools.
	readAllTimeout = 10 * time.Second
	// maxPolled is how many pools one transaction reads the marks of: see maxOps.
	maxPolled = 40
)

// watches follow the pools as the core of an engine decides: see [followed]. Only the loop of
// the engine uses it.
type watches struct {
	e        *Engine
	messages chan watched
	pools    map[string]*poolWatches
	done     int // followings of the core that were carried out
	polling  bool
	tasks    sync.WaitGroup
}

// poolWatches are those of one pool; nil is none.
type poolWatches struct{ everything, notices *watch }

// watch is one of them.
type watch struct {
	pool string
	of   scope
	// number is that of [followed.begun].
	number int
	feed   *store.Feed
	end    context.CancelFunc
}

// watched is what a watch has delivered.
type watched struct {
	by      *watch
	message store.FeedMessage
}

func newWatches(e *Engine) *watches {
	return &watches{e: e, messages: make(chan watched), pools: map[string]*poolWatches{}}
}

// follow begins and ends watches, and begins reads.
func (w *watches) follow(ctx context.Context) {
	c := w.e.core
	if c.readAll && !time.Now().Before(c.readAllAt) {
		c.readAll = false
		w.readAll(ctx)
	}
	if w.done == c.followings {
		return
	}
	w.done = c.followings
	for name, f := range c.followed {
		p := w.pools[name]
		if p == nil {
			p = &poolWatches{}
			w.pools[name] = p
		}
		if p.everything != nil && (f.scope != everything || p.everything.number != f.begun) {
			p.everything = p.everything.stop()
		}
		if f.scope == everything && p.everything == nil {
			p.everything = w.begin(ctx, f.pool, everything)
			p.everything.number = f.begun
		}
		if f.scope == notices && p.notices == nil {
			p.notices = w.begin(ctx, f.pool, notices)
		}
		if f.scope == nothing {
			p.notices = p.notices.stop()
		}
		if f.read {
			f.read, f.reading = false, true
			w.read(ctx, name)
		}
	}
	for name, p := range w.pools {
		if f := c.followed[name]; f == nil || f.scope == nothing {
			p.everything.stop()
			p.notices.stop()
			delete(w.pools, name)
		}
	}
}

// begin begins to watch a pool from where it is known.
func (w *watches) begin(ctx context.Context, p *poolView, of scope) *watch {
	cfg := &w.e.cfg
	prefix, from := cfg.Keys.Pool(p.name), int64(0)
	if !p.stale {
		from = p.rev
	}
	if of == notices {
		prefix, from = cfg.Keys.Notices(p.name, cfg.Host, cfg.Instance), p.noticesRev
	}
	if w.e.core.history != cfg.Backend.History() {
		from = 0
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &watch{pool: p.name, of: of, end: cancel, feed: store.NewFeedAfter(cfg.Backend, prefix, from, cfg.Logger, w.e.core.metrics.resyncs.Inc)}
	w.tasks.Go(func() { _ = t.feed.Run(ctx) })
	w.tasks.Go(func() {
		for m := range t.feed.Messages() {
			select {
			case w.messages <- watched{t, m}:
			case <-ctx.Done():
			}
		}
	})
	return t
}

// stop ends a watch, if there is one.
func (t *watch) stop() *watch {
	if t != nil {
		t.end()
	}
	return nil
}

// deliver hands the core what a watch has delivered, unless that has been ended.
func (w *watches) deliver(m watched) {
	p, c := w.pools[m.by.pool], w.e.core
	if p == nil || m.by != p.everything && m.by != p.notices {
		return
	}
	if c.present(m.message.History); m.message.History != c.history {
		return
	}
	c.message(m.by.pool, m.by.of, m.message, time.Now())
	if m.by == p.everything {
		p.notices = p.notices.stop()
	}
}

// read reads a pool once.
func (w *watches) read(ctx context.Context, pool string) {
	w.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		s, err := store.ReadAll(ctx, w.e.cfg.Backend, w.e.cfg.Keys.Pool(pool))
		w.e.urgent.add(func(c *core, now time.Time) { c.wasRead(pool, s, err, now) })
	})
}

// readAll reads all pools once.
func (w *watches) readAll(ctx context.Context) {
	w.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readAllTimeout)
		defer cancel()
		s, err := store.ReadAll(ctx, w.e.cfg.Backend, w.e.cfg.Keys.Pools())
		w.e.urgent.add(func(c *core, now time.Time) { c.allRead(s, err, now) })
	})
}

// poll reads the marks of the pools whose notices are watched.
func (w *watches) poll(ctx context.Context) {
	c, now := w.e.core, time.Now()
	var pools []*poolView
	t := &pb.TxnRequest{}
	for _, name := range sortedKeys(c.followed) {
		f := c.followed[name]
		if f.scope == notices && now.Sub(f.pool.markedAt) >= pollEvery/2 && len(pools) < maxPolled {
			pools = append(pools, f.pool)
			t.Success = append(t.Success, c.markGets(f.pool)...)
		}
	}
	if len(pools) == 0 || w.polling {
		return
	}
	w.polling = true
	history := c.history
	w.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		resp, err := w.e.cfg.Backend.Txn(ctx, t)
		w.e.urgent.add(func(c *core, now time.Time) {
			if w.polling = false; err == nil && c.history == history {
				c.polled(pools, resp, now)
			}
		})
	})
}

// requestProgress asks all watches how far they have come.
func (w *watches) requestProgress() {
	for _, p := range w.pools {
		for _, t := range []*watch{p.everything, p.notices} {
			if t != nil {
				t.feed.RequestProgress()
			}
		}
	}
}

// close waits until all watches and reads have ended. Their context has.
func (w *watches) close() { w.tasks.Wait() }
