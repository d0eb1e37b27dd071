package pool

import (
	"errors"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// simFeeds follow the pools as a core decides, as [watches] does, on a stand-in for etcd. What
// is delivered, and when, is up to the test.
type simFeeds struct {
	core  *core
	etcd  *storetest.Etcd
	pools map[string]*[3]*simFeed // the watch of the notices, that of the whole pool, and that of the recalls
	// reads are those under way: what they return is decided when they begin.
	reads []func(now time.Time)
	// history counts the restores of etcd.
	history uint64
	// wide has the host watch all of the pools that it has met, as one that claims often.
	wide bool
	// redates says that what is read is as of now when it arrives.
	redates bool
	// sees, if it is set, changes what the host learns of an event, and drops it if it returns
	// nil.
	sees func(*mvccpb.Event) *mvccpb.Event
}

// simFeed is one watch.
type simFeed struct {
	of       scope
	pool     string
	prefix   string
	number   int
	snapshot *store.Snapshot // that it begins with, if it was not delivered yet
	follower *storetest.Follower
}

func newSimFeeds(c *core, etcd *storetest.Etcd) *simFeeds {
	return &simFeeds{core: c, etcd: etcd, pools: map[string]*[3]*simFeed{}}
}

// read returns what is under a prefix.
func (s *simFeeds) read(prefix string) *store.Snapshot {
	snapshot := &store.Snapshot{Revision: s.etcd.Revision(), History: s.history}
	for kv := range s.etcd.All(prefix) {
		if ev := s.seen(&mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv}); ev != nil && ev.Type == mvccpb.Event_PUT {
			snapshot.KVs = append(snapshot.KVs, ev.Kv)
		}
	}
	return snapshot
}

func (s *simFeeds) seen(ev *mvccpb.Event) *mvccpb.Event {
	if s.sees == nil {
		return ev
	}
	return s.sees(ev)
}

// begin begins a watch after a revision; 0 is with a snapshot.
func (s *simFeeds) begin(pool string, of scope, from int64) *simFeed {
	f := &simFeed{of: of, pool: pool, prefix: s.core.view.keys.Pool(pool)}
	if of == notices {
		f.prefix = s.core.view.keys.Notices(pool, s.core.host, s.core.instance)
	} else if of == recalls {
		f.prefix = s.core.view.keys.Recall(pool)
	}
	if from == 0 {
		s.again(f, nil)
	} else {
		f.follower = s.etcd.Follow(store.Prefix(f.prefix), from+1)
	}
	return f
}

// again has a watch read everything again.
func (s *simFeeds) again(f *simFeed, reason error) {
	f.snapshot = s.read(f.prefix)
	f.snapshot.Reason = reason
	f.follower = s.etcd.Follow(store.Prefix(f.prefix), f.snapshot.Revision+1)
}

// follow begins and ends watches, and begins reads.
func (s *simFeeds) follow(now time.Time) {
	c := s.core
	if c.beginReadAll(now) {
		all := s.read(c.view.keys.Pools())
		s.reads = append(s.reads, func(now time.Time) { c.allRead(*all, nil, now) })
	}
	for _, name := range sortedKeys(c.followed) {
		f, p := c.followed[name], s.pools[name]
		if p == nil {
			p = &[3]*simFeed{}
			s.pools[name] = p
		}
		if p[1] != nil && (f.scope != everything || p[1].number != f.begun) {
			p[1] = nil
		}
		if f.scope == everything && p[1] == nil {
			from := int64(0)
			if !f.pool.stale {
				from = f.pool.rev
			}
			p[1] = s.begin(name, everything, from)
			p[1].number = f.begun
		}
		switch {
		case f.scope == nothing:
			p[0] = nil
		case f.scope == notices && p[0] == nil:
			p[0] = s.begin(name, notices, f.pool.noticesRev)
		}
		if !f.recalls {
			p[2] = nil
		} else if p[2] == nil {
			p[2] = s.begin(name, recalls, 0)
		}
		if f.read {
			f.read, f.reading = false, true
			one := s.read(c.view.keys.Pool(name))
			s.reads = append(s.reads, func(now time.Time) {
				if s.redates {
					one.Revision = s.etcd.Revision()
				}
				c.wasRead(name, *one, nil, now)
			})
		}
	}
	maps.DeleteFunc(s.pools, func(name string, _ *[3]*simFeed) bool { return c.followed[name] == nil })
}

// feeds returns the watches in an order that is always the same.
func (s *simFeeds) feeds() []*simFeed {
	var all []*simFeed
	for _, name := range sortedKeys(s.pools) {
		for _, f := range s.pools[name] {
			if f != nil {
				all = append(all, f)
			}
		}
	}
	return all
}

// deliver delivers up to n revisions of a watch, or progress, and reports whether anything
// happened in them.
func (s *simFeeds) deliver(f *simFeed, n int, now time.Time) bool {
	p := s.pools[f.pool]
	if p == nil || p[0] != f && p[1] != f && p[2] != f {
		return false // it was ended
	}
	m, any := store.FeedMessage{Revision: s.etcd.Revision(), History: s.history}, false
	if m.Snapshot = f.snapshot; f.snapshot != nil {
		m.Revision, any, f.snapshot = f.snapshot.Revision, true, nil
	} else if w, ok := f.follower.Next(n); ok && w.Err != nil {
		s.again(f, w.Err)
		return s.deliver(f, n, now)
	} else if ok {
		m.Revision, any = w.Revision, true
		for _, ev := range w.Events {
			if ev = s.seen(ev); ev != nil {
				m.Events = append(m.Events, ev)
			}
		}
	}
	if m.History != s.core.history {
		return any
	}
	s.core.message(f.pool, f.of, m, now)
	if f == p[1] {
		p[0] = nil
	}
	return any
}

// finishRead delivers what was read, if anything was, and reports whether.
func (s *simFeeds) finishRead(i int, now time.Time) bool {
	if len(s.reads) == 0 {
		return false
	}
	read := s.reads[i]
	s.reads = slices.Delete(s.reads, i, i+1)
	read(now)
	return true
}

// poll begins to read the marks of the pools whose notices are followed.
func (s *simFeeds) poll(now time.Time) {
	for _, name := range sortedKeys(s.core.followed) {
		f := s.core.followed[name]
		if f.scope != notices && !f.retains {
			continue
		}
		resp, err := s.etcd.Txn(&pb.TxnRequest{Success: s.core.markGets(f.pool)})
		if err != nil {
			continue
		}
		history, asked := s.history, now
		s.reads = append(s.reads, func(now time.Time) {
			if s.core.history == history {
				s.core.polled([]*poolView{f.pool}, resp, asked, now)
			}
		})
	}
}

// resync has all watches read everything again. Etcd was restored if the reason is
// [store.ErrRestored].
func (s *simFeeds) resync(reason error, now time.Time) {
	if errors.Is(reason, store.ErrRestored) {
		s.history++
		s.core.present(s.history)
	}
	s.core.reached(s.etcd.Revision(), now)
	if reason != nil && !errors.Is(reason, store.ErrRestored) {
		s.core.mayBeRestored()
	}
	s.widen(now)
	s.core.follow(now)
	s.follow(now)
	for _, f := range s.feeds() {
		s.again(f, reason)
		s.deliver(f, 1, now)
	}
}

// widen keeps wide feeds wide.
func (s *simFeeds) widen(now time.Time) {
	for _, f := range s.core.followed {
		if s.wide {
			s.core.refollow = s.core.refollow || f.scope != everything
			f.asked, f.oftenUntil, f.openUntil = now, now.Add(time.Hour), now.Add(time.Hour)
		}
	}
}

// all delivers all there is, revision by revision, and then progress.
func (s *simFeeds) all(now time.Time) {
	s.core.reached(s.etcd.Revision(), now)
	for busy := true; busy; {
		busy = false
		if s.widen(now); s.core.refollow {
			s.core.follow(now)
		}
		s.follow(now)
		for s.finishRead(0, now) {
			busy = true
		}
		for _, f := range s.feeds() {
			for s.deliver(f, 1, now) {
				busy = true
			}
		}
	}
	for s.poll(now); s.finishRead(0, now); {
	}
}
