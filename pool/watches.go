package pool

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// pollTimeout bounds a read of marks, and readTimeout one of pools.
	pollTimeout = 2 * time.Second
	readTimeout = 10 * time.Second
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
type poolWatches struct{ everything, notices, recalls *watch }

// recalls is what a watch of the recalls of a pool is of.
const recalls scope = -1

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
	if c.beginReadAll(time.Now()) {
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
		if f.recalls && p.recalls == nil {
			p.recalls = w.begin(ctx, f.pool, recalls)
		}
		if !f.recalls {
			p.recalls = p.recalls.stop()
		}
		if f.read {
			f.read, f.reading = false, true
			w.read(ctx, name)
		}
	}
	for name, p := range w.pools {
		if f := c.followed[name]; f == nil || f.scope == nothing && !f.recalls {
			p.everything.stop()
			p.notices.stop()
			p.recalls.stop()
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
	switch of {
	case notices:
		prefix, from = cfg.Keys.Notices(p.name, cfg.Host, cfg.Instance), p.noticesRev
	case recalls:
		prefix, from = cfg.Keys.Recall(p.name), 0
	case nothing, everything:
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
	if p == nil || m.by != p.everything && m.by != p.notices && m.by != p.recalls {
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
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		s, err := store.ReadAll(ctx, w.e.cfg.Backend, w.e.cfg.Keys.Pools())
		w.e.urgent.add(func(c *core, now time.Time) { c.allRead(s, err, now) })
	})
}

// poll reads the marks of the pools whose notices are watched: of those first that were not read
// for the longest time, and of the others when etcd has answered.
func (w *watches) poll(ctx context.Context) {
	c, now := w.e.core, time.Now()
	var due []*poolView
	for _, f := range c.followed {
		if f.scope == notices && now.Sub(f.pool.markedAt) >= pollEvery/2 || f.retains && now.Sub(c.samples[0].at) >= pollEvery/2 {
			due = append(due, f.pool)
		}
	}
	if len(due) == 0 || w.polling {
		return
	}
	slices.SortFunc(due, func(a, b *poolView) int { return a.markedAt.Compare(b.markedAt) })
	due = due[:min(len(due), maxPolled)]
	t := &pb.TxnRequest{}
	for _, p := range due {
		t.Success = append(t.Success, c.markGets(p)...)
	}
	w.polling = true
	history, sent := c.history, now
	w.tasks.Go(func() {
		try, cancel := context.WithTimeout(ctx, pollTimeout)
		defer cancel()
		resp, err := w.e.cfg.Backend.Txn(try, t)
		w.e.urgent.add(func(c *core, now time.Time) {
			if w.polling = false; err == nil && c.history == history {
				c.polled(due, resp, sent, now)
				if c.mustAsk(now) {
					w.requestProgress()
					w.e.revoke.RequestProgress()
				}
				w.poll(ctx)
			}
		})
	})
}

// requestProgress asks all watches how far they have come.
func (w *watches) requestProgress() {
	for _, p := range w.pools {
		for _, t := range []*watch{p.everything, p.notices, p.recalls} {
			if t != nil {
				t.feed.RequestProgress()
			}
		}
	}
}

// close waits until all watches and reads have ended. Their context has.
func (w *watches) close() { w.tasks.Wait() }

// message takes what a feed of a pool has delivered, or of the notices of this instance in it.
func (c *core) message(pool string, of scope, m store.FeedMessage, now time.Time) {
	c.reached(m.Revision, now)
	p := c.view.pool(pool)
	defer c.noteRecall(p, now)
	if m.Snapshot != nil && m.Snapshot.Reason != nil {
		// The watch could not go on where it ended, so what is known of other pools may be of before a
		// restore, too: claims are compared with what all pools are at this revision, or later.
		for _, f := range c.followed {
			f.audit, f.auditAt, c.refollow = true, max(f.auditAt, m.Revision), true
		}
	}
	switch {
	case of == recalls:
		c.recallMessage(p, m)
		return
	case m.Snapshot != nil && of == everything && p.loadable(m.Snapshot.Revision):
		c.load(p, *m.Snapshot, now)
	case m.Snapshot != nil && of == everything && (!p.whole || m.Snapshot.Revision > p.rev):
		// It lacks what this instance has written since: the watch begins again.
		c.begun, c.followings = c.begun+1, c.followings+1
		c.following(p).begun = c.begun
	case m.Snapshot != nil && of == everything: // what follows it is known, or comes
	case m.Snapshot != nil:
		c.view.loadNotices(p, *m.Snapshot) // a grant may have come and gone meanwhile, with its waiter
	case of == notices:
		c.ended(c.view.apply(m.Events))
		p.noticesRev = max(p.noticesRev, m.Revision)
	case p.whole:
		c.ended(c.view.apply(m.Events))
		p.reached(m.Revision)
		p.at, p.markedAt = now, now
		p.refresh(now, c.resolveAt)
	}
	c.learned(m.Snapshot == nil, now)
}

// learned acts on what a message has changed in the view. Known is set if each change is known,
// and not only their sum.
func (c *core) learned(known bool, now time.Time) {
	c.checkIdle(now)
	c.noteActs(now, known)
	c.takeNotices(now)
	if len(c.queue) > 0 || len(c.takes) > 0 || len(c.roles) > 0 {
		c.dirty = true
	}
	c.progress()
}

// reached notes that etcd has answered, and how far it has come.
func (c *core) reached(rev int64, now time.Time) {
	c.loaded, c.updatedAt, c.seen = true, now, max(c.seen, rev)
}

// load takes what was read of a pool. Claims of ours that it should show and does not are lost.
func (c *core) load(p *poolView, s store.Snapshot, now time.Time) {
	f := c.following(p)
	restored := f.restored
	c.view.loadPool(p, s)
	p.at, p.markedAt = now, now
	p.refresh(now, c.resolveAt)
	f.restored, f.audit = false, true
	shown := s.Revision
	for _, i := range c.sortedIdle() {
		if s, ok := c.view.slot(i.slots[0].ref); i.slots[0].ref.pool == p.name && i.rev <= shown && (!ok || s.rev != i.rev) {
			c.goneIdle(i)
		}
	}
	for _, e := range c.sorted() {
		if e.state != held && e.state != releasing || e.slots[0].ref.pool != p.name || e.rev > s.Revision && !restored {
			continue
		}
		if !e.rewriting && !c.holdsSlots(e) { // else the answer decides
			c.gone(e)
		}
	}
}

// wasRead takes what was read of a pool.
func (c *core) wasRead(pool string, s store.Snapshot, err error, now time.Time) {
	p := c.view.pool(pool)
	f := c.following(p)
	f.reading, c.refollow = false, true
	if err != nil || s.History != c.history {
		f.readAt = now.Add(readPause)
		return
	}
	c.reached(s.Revision, now)
	if s.Revision < f.expects {
		c.unreachable(f, s.Revision)
	}
	if s.Revision < f.mustShow {
		return // it is read again
	}
	f.mustShow = 0
	if !p.loadable(s.Revision) || f.scope == everything && p.whole && p.rev >= s.Revision {
		return // the watch is ahead, or it is read again
	}
	c.load(p, s, now)
	c.learned(false, now)
}

// unreachable has claims not wait for revisions of a pool that a read should have shown and did
// not: they are of before a restore of etcd.
func (c *core) unreachable(f *followed, shown int64) {
	f.mustShow, f.auditAt = 0, min(f.auditAt, shown)
	for _, e := range slices.Concat(c.queue, c.takes) {
		if _, of := e.req.Slots[f.pool.name]; of {
			e.retryAt = min(e.retryAt, shown)
		}
	}
}

// beginReadAll reports whether all pools are to be read now.
func (c *core) beginReadAll(now time.Time) bool {
	if !c.readAll || c.readingAll || now.Before(c.readAllAt) {
		return false
	}
	c.readAll, c.readingAll = false, true
	return true
}

// allRead takes what was read of all pools.
func (c *core) allRead(s store.Snapshot, err error, now time.Time) {
	c.readingAll = false
	if err != nil || s.History != c.history {
		c.readAll, c.readAllAt = true, now.Add(readPause)
		return
	}
	c.reached(s.Revision, now)
	if s.Revision < c.readAllMust {
		c.readAll = true
		return
	}
	byPool := map[string]store.Snapshot{}
	for _, kv := range s.KVs {
		if k, err := c.view.keys.ParsePoolKey(string(kv.Key)); err == nil {
			one := byPool[k.Pool]
			one.KVs = append(one.KVs, kv)
			byPool[k.Pool] = one
			c.view.pool(k.Pool)
		}
	}
	for _, p := range c.view.order {
		switch c.following(p).audit = true; {
		case p.whole && p.rev >= s.Revision:
			continue
		case !p.loadable(s.Revision):
			c.readAll = true
			continue
		}
		one := byPool[p.name]
		one.Revision, one.History = s.Revision, s.History
		c.load(p, one, now)
	}
	if !c.readAll {
		c.allAt = s.Revision
	}
	c.learned(false, now)
	c.refollow = true
}

// markGets are the operations that read the spec and the marks of a pool.
func (c *core) markGets(p *poolView) []*pb.RequestOp {
	k := c.view.keys
	return []*pb.RequestOp{store.Get(k.Spec(p.name)), store.Get(k.Queued(p.name)), store.Get(k.Dispatcher(p.name))}
}

// polled takes the answer to [core.markGets] of some pools.
func (c *core) polled(pools []*poolView, resp *pb.TxnResponse, asked, now time.Time) {
	rev := resp.Header.Revision
	c.reached(rev, now)
	c.sampled(rev, asked)
	for i, p := range pools {
		c.marks(p, resp.Responses[3*i:3*i+3], rev, now)
	}
	if len(c.queue) > 0 {
		c.dirty, c.refollow = true, true
	}
	c.checkIdle(now)
}

// marks takes the spec and the marks of a pool as they were at a revision.
func (c *core) marks(p *poolView, gets []*pb.ResponseOp, rev int64, now time.Time) {
	for i, r := range gets {
		kvs := r.GetResponseRange().Kvs
		switch {
		case len(kvs) > 0:
			c.view.put(kvs[0], rev)
		case i == 0 && p.specAt < rev:
			c.view.noSpec(p, rev)
		case i == 1:
			p.queued.know(0, rev)
		case i == 2:
			p.dispatcher.know(0, rev)
		}
	}
	p.markedAt = now
	p.refresh(now, c.resolveAt)
}

// mayBeRestored takes that a watch could not go on where it ended. Etcd may have been restored
// with --bump-revision, so what is known is to be read again, and compared with the claims.
func (c *core) mayBeRestored() {
	c.samples = [4]sample{}
	c.forgetOrphans()
	for _, p := range c.view.order {
		p.at, p.markedAt, p.stale, p.unseen = time.Time{}, time.Time{}, true, true
		if f := c.followed[p.name]; f != nil {
			f.mustShow = max(f.mustShow, c.seen)
		}
	}
	c.wantAll()
}

// wantAll has all pools read once, as they are now or later.
func (c *core) wantAll() { c.readAll, c.readAllMust, c.refollow = true, max(c.seen, c.resolveAt), true }

// recallMessage takes what a watch of the recalls of a pool has delivered.
func (c *core) recallMessage(p *poolView, m store.FeedMessage) {
	if m.Snapshot != nil {
		for _, kv := range m.Snapshot.KVs {
			c.view.put(kv, m.Revision)
		}
		p.recall.know(0, m.Revision)
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			p.recall.know(0, ev.Kv.ModRevision)
		} else {
			c.view.put(ev.Kv, ev.Kv.ModRevision)
		}
	}
	p.recall.at = max(p.recall.at, m.Revision)
}

// sample is a revision that etcd had reached at a time, or later.
type sample struct {
	rev int64
	at  time.Time
}

// sampled notes the revision of the answer to what etcd was asked at a time.
func (c *core) sampled(rev int64, asked time.Time) {
	if asked.Sub(c.samples[0].at) >= newsWithin/4 {
		copy(c.samples[1:], c.samples[:])
		c.samples[0] = sample{rev, asked}
	}
}

// lag is how old what is known up to a revision may be. What a watch delivers does not tell: it may
// be late.
func (c *core) lag(rev int64, now time.Time) time.Duration {
	for _, s := range c.samples {
		if s.rev <= rev {
			return max(now.Sub(s.at), now.Round(0).Sub(s.at.Round(0))) // of the wall clock, which a suspended machine does not stop
		}
	}
	return math.MaxInt64
}
