package coordinator

import (
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// state is what the leader knows of all runs: read once, then watched, and moved
// ahead of the watch by the leader's own writes.
type state struct {
	keys  store.Keys
	rev   int64 // that the runs are known at
	runs  map[string]*run.Run
	queue *Queue
	// progress are the runs in progress, and ended those that only wait to be
	// forgotten.
	progress map[string]*run.Run
	ended    map[string]*run.Run
	// gone are runs that a write of ours deleted ahead of the watch.
	gone map[string]int64
	// left are runs that an executor had until a revision, and has no more: what they
	// hold still is to be taken back.
	left map[string]int64
	// bad are keys that can't be read, with the reason.
	bad map[string]error

	limits    run.Limits
	limitsRev int64 // of the key itself: 0 if nobody has set any
	limitsAt  int64 // that the limits are known at

	active   map[string]map[string]bool // run → hosts whose executors are seen
	activeAt int64
}

func newState(keys store.Keys) *state {
	s := &state{keys: keys, limits: run.DefaultLimits(), active: map[string]map[string]bool{}}
	s.clearRuns()
	return s
}

func (s *state) clearRuns() {
	s.runs, s.progress, s.ended = map[string]*run.Run{}, map[string]*run.Run{}, map[string]*run.Run{}
	s.queue, s.gone, s.bad, s.left = NewQueue(), map[string]int64{}, map[string]error{}, map[string]int64{}
}

// runsMessage takes what the feed of the records delivered. It tells whether any of
// it was news, and not just what the leader has written itself.
func (s *state) runsMessage(m store.FeedMessage) (news bool) {
	if m.Snapshot != nil {
		news = true
		s.rev = 0 // it may be older than what the leader has written since
		s.clearRuns()
		for _, kv := range m.Snapshot.KVs {
			s.decode(kv)
		}
	}
	for _, ev := range m.Events {
		switch id := strings.TrimPrefix(string(ev.Kv.Key), s.keys.Runs()); {
		case ev.Kv.ModRevision <= s.known(id):
		case ev.Type == mvccpb.Event_DELETE:
			news = true
			s.remove(id)
			delete(s.bad, string(ev.Kv.Key))
		default:
			news = true
			s.decode(ev.Kv)
		}
	}
	s.rev = max(s.rev, m.Revision)
	for id, rev := range s.gone {
		if rev <= s.rev {
			delete(s.gone, id)
		}
	}
	return news
}

// known is the revision up to which a run is known.
func (s *state) known(id string) int64 {
	if r := s.runs[id]; r != nil {
		return r.Revision
	}
	return s.gone[id]
}

func (s *state) decode(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	r, err := run.Decode(s.keys, kv)
	if err != nil {
		s.remove(strings.TrimPrefix(key, s.keys.Runs()))
		s.bad[key] = err
		return
	}
	delete(s.bad, key)
	s.put(r)
}

// put takes a run as it is now.
func (s *state) put(r *run.Run) {
	if r.Attempt > 0 && !r.Status.InProgress() {
		if old := s.runs[r.ID]; old == nil || old.Status.InProgress() {
			s.left[r.ID] = r.Revision
		}
	}
	s.remove(r.ID)
	s.runs[r.ID] = r
	switch {
	case r.Status == run.Queued:
		s.queue.Insert(r)
	case r.Status.InProgress():
		s.progress[r.ID] = r
	default:
		s.ended[r.ID] = r
	}
}

func (s *state) remove(id string) {
	old := s.runs[id]
	if old == nil {
		return
	}
	delete(s.runs, id)
	delete(s.progress, id)
	delete(s.ended, id)
	if old.Status == run.Queued {
		s.queue.Remove(old)
	}
}

// limitsMessage takes what the feed of the limits delivered. It is an error if they
// can't be read: then those from before hold on, and without any nothing is
// admitted.
func (s *state) limitsMessage(m store.FeedMessage) (err error) {
	take := func(kv *mvccpb.KeyValue, deleted bool) {
		if string(kv.Key) != s.keys.Limits() {
			return
		}
		delete(s.bad, string(kv.Key))
		if deleted {
			s.limits, s.limitsRev = run.DefaultLimits(), 0
			return
		}
		s.limitsRev = kv.ModRevision
		l, bad := run.DecodeLimits(string(kv.Key), kv.Value)
		if bad != nil {
			s.bad[string(kv.Key)], err = bad, bad
			return
		}
		s.limits = l
	}
	if m.Snapshot != nil {
		if s.limits, s.limitsRev = run.DefaultLimits(), 0; len(m.Snapshot.KVs) > 0 {
			s.limits.MaxConcurrentRuns = 0 // nobody knows, if they can't be read
		}
		for _, kv := range m.Snapshot.KVs {
			take(kv, false)
		}
	}
	for _, ev := range m.Events {
		take(ev.Kv, ev.Type == mvccpb.Event_DELETE)
	}
	s.limitsAt = m.Revision
	return err
}

// activeMessage takes what the feed of the executors delivered.
func (s *state) activeMessage(m store.FeedMessage) {
	take := func(key string, there bool) {
		host, id, ok := strings.Cut(strings.TrimPrefix(key, s.keys.ActiveAll()), "/")
		switch {
		case !ok:
		case there && s.active[id] == nil:
			s.active[id] = map[string]bool{host: true}
		case there:
			s.active[id][host] = true
		default:
			if delete(s.active[id], host); len(s.active[id]) == 0 {
				delete(s.active, id)
			}
		}
	}
	if m.Snapshot != nil {
		clear(s.active)
		for _, kv := range m.Snapshot.KVs {
			take(string(kv.Key), true)
		}
	}
	for _, ev := range m.Events {
		take(string(ev.Kv.Key), ev.Type != mvccpb.Event_DELETE)
	}
	s.activeAt = m.Revision
}

// alive tells whether the executor of a run may be there: it is seen, or what is
// known of executors is older than the run's start.
func (s *state) alive(r *run.Run) bool {
	return s.activeAt < r.Revision || r.Executor != nil && s.active[r.ID][r.Executor.Host]
}

// snapshot returns what a plan is made from. It is good until the state changes.
func (s *state) snapshot(now time.Time) *Snapshot {
	s.queue.Prepare(s.limits)
	sn := &Snapshot{
		Now: now, Limits: s.limits, Queue: s.queue,
		InProgress: make([]*run.Run, 0, len(s.progress)), Alive: map[string]bool{},
		MaxBlocks: maxBlocks,
	}
	for _, r := range s.progress {
		sn.InProgress = append(sn.InProgress, r)
		if s.alive(r) {
			sn.Alive[r.ID] = true
		}
	}
	return sn
}

// knownAt tells whether everything up to a revision is known.
func (s *state) knownAt(rev int64) bool {
	return s.rev >= rev && s.limitsAt >= rev && s.activeAt >= rev
}
