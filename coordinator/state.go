package coordinator

import (
	"maps"
	"math"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// state is the leader's view of all runs: read once, then watched. The leader's own writes
// are applied before the watch delivers them.
type state struct {
	keys store.Keys
	rev  int64 // at which the runs are known
	// newest is that of the runs.
	newest newest
	runs   map[string]*run.Run
	queue  *Queue
	// deferred are the queued runs that are not due yet, which have no place in the queue.
	deferred *Queue
	// progress are the runs in progress; ended are those that are kept for retention.
	progress map[string]*run.Run
	ended    map[string]*run.Run
	// storing are those whose steps are being written.
	storing map[string]*run.Run
	// gone are runs that the leader has deleted, before the watch reports it.
	gone map[string]int64
	// revoke are runs that have ended, or have lost their executor, at a revision: their
	// claims are to be revoked.
	revoke map[string]ending
	// bad are keys that cannot be read, with the error; named are those that were logged,
	// with the text.
	bad   map[string]error
	named map[string]string
	// opaque are runs that seem to be in progress, but whose records cannot be read, for
	// example those of a newer version: they count, and are left as they are.
	opaque map[string]*run.Run
	// waiting is since when the leader itself has known that a run waits for its executor:
	// other clocks, and times without a leader, do not count.
	waiting map[string]waitingSince
	// kept are the runs in progress with slots of pools.
	kept map[string]bool
	// absent are runs whose executor's key was deleted, with the revision.
	absent map[string]int64

	limits    run.Limits
	limitsRev int64 // of the key; 0 if no limits are set
	limitsAt  int64 // at which the limits are known

	active   map[string]map[string]bool // run → hosts with a living executor
	activeAt int64
	// steps are those of all runs.
	steps *stepState
}

func newState(keys store.Keys) *state {
	s := &state{
		keys: keys, limits: run.DefaultLimits(), active: map[string]map[string]bool{},
		named: map[string]string{}, absent: map[string]int64{}, steps: newStepState(keys),
	}
	s.clearRuns()
	return s
}

func (s *state) clearRuns() {
	s.runs, s.progress, s.ended = map[string]*run.Run{}, map[string]*run.Run{}, map[string]*run.Run{}
	s.storing = map[string]*run.Run{}
	s.deferred = NewQueue()
	s.queue, s.gone, s.bad, s.revoke = NewQueue(), map[string]int64{}, map[string]error{}, map[string]ending{}
	s.kept = map[string]bool{}
	s.waiting, s.opaque = map[string]waitingSince{}, map[string]*run.Run{}
}

// runsMessage applies a message of the feed of the runs. It reports whether that changed
// the state: the leader's own writes do not.
func (s *state) runsMessage(m store.FeedMessage) (news bool) {
	if m.Snapshot != nil {
		news = true
		s.rev, s.newest = 0, newest{} // the snapshot may be older than the leader's writes
		s.clearRuns()
		for _, kv := range m.Snapshot.KVs {
			s.decode(kv)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			s.newest.deleted(string(ev.Kv.Key))
		}
		switch id := strings.TrimPrefix(string(ev.Kv.Key), s.keys.Runs()); {
		case ev.Kv.ModRevision <= s.known(id):
		case ev.Type == mvccpb.Event_DELETE:
			news = true
			if old := s.runs[id]; old != nil && old.Status.InProgress() {
				s.revoke[id] = ending{rev: math.MaxInt64, of: old} // deleted by hand
			}
			s.remove(id)
			delete(s.bad, string(ev.Kv.Key))
		default:
			news = true
			s.decode(ev.Kv)
		}
	}
	s.rev = max(s.rev, m.Revision)
	known := func(_ string, rev int64) bool { return rev <= s.rev }
	maps.DeleteFunc(s.gone, known)
	lagged := len(s.absent)
	maps.DeleteFunc(s.absent, known)
	return news || len(s.absent) < lagged
}

// known returns the revision up to which a run is known.
func (s *state) known(id string) int64 {
	if r := s.runs[id]; r != nil {
		return r.Revision
	}
	return s.gone[id]
}

func (s *state) decode(kv *mvccpb.KeyValue) {
	s.newest.put(kv)
	key := string(kv.Key)
	r, err := run.Decode(s.keys, kv)
	if err != nil {
		id := strings.TrimPrefix(key, s.keys.Runs())
		s.remove(id)
		s.bad[key] = err
		if tags, ok := run.Glimpse(kv.Value); ok {
			s.opaque[id] = &run.Run{ID: id, Record: run.Record{Status: run.Running, Spec: run.Spec{Tags: tags}}}
		}
		return
	}
	delete(s.bad, key)
	s.put(r)
}

// put applies the record of a run.
func (s *state) put(r *run.Run) {
	if old := s.runs[r.ID]; old == nil || old.Status != r.Status {
		switch {
		case r.Status.Ended():
			s.revoke[r.ID] = ending{rev: math.MaxInt64, of: r}
		case r.Status == run.Queued && (r.Lost > 0 || old != nil && old.Status.Ended()):
			of := r
			if old != nil {
				of = old // its record has the executor
			}
			s.revoke[r.ID] = ending{rev: r.Revision, of: of} // later claims belong to the next attempt
		}
	}
	s.remove(r.ID)
	s.runs[r.ID] = r
	if r.Status.InProgress() && r.Claim != "" {
		s.kept[r.ID] = true
	}
	switch {
	case r.Deferred():
		s.deferred.Insert(r)
	case r.Status == run.Queued:
		s.queue.Insert(r)
	case r.Status.InProgress():
		s.progress[r.ID] = r
	case r.Status == run.Storing:
		s.storing[r.ID] = r
	default:
		s.ended[r.ID] = r
		if r.Steps > 0 {
			s.steps.touched[r.ID] = true
		}
	}
}

func (s *state) remove(id string) {
	delete(s.opaque, id)
	old := s.runs[id]
	if old == nil {
		return
	}
	delete(s.runs, id)
	delete(s.progress, id)
	delete(s.ended, id)
	delete(s.storing, id)
	delete(s.waiting, id)
	delete(s.kept, id)
	switch {
	case old.Deferred():
		s.deferred.Remove(old)
	case old.Status == run.Queued:
		s.queue.Remove(old)
	}
}

// limitsMessage applies a message of the feed of the limits. It is an error if they cannot
// be read: then the earlier ones stay in force, and without any, nothing is admitted.
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
		before, known := s.limits, s.limitsAt > 0
		s.limits, s.limitsRev = run.DefaultLimits(), 0
		for _, kv := range m.Snapshot.KVs {
			take(kv, false)
		}
		switch {
		case err == nil:
		case known:
			s.limits = before
		default:
			s.limits.MaxConcurrentRuns = 0 // they are unknown
		}
	}
	for _, ev := range m.Events {
		take(ev.Kv, ev.Type == mvccpb.Event_DELETE)
	}
	s.limitsAt = m.Revision
	return err
}

// activeMessage applies a message of the feed of the executors.
func (s *state) activeMessage(m store.FeedMessage) {
	take := func(key string, there bool, rev int64) {
		host, of, err := s.keys.ParseActive(key)
		id := of.Run
		switch {
		case err != nil:
		case of.Step != "":
			s.steps.executor(host, of, there, rev)
		case there && s.active[id] == nil:
			s.active[id] = map[string]bool{host: true}
		case there:
			s.active[id][host] = true
		default:
			if delete(s.active[id], host); len(s.active[id]) == 0 {
				delete(s.active, id)
			}
			s.absent[id] = rev
		}
	}
	if m.Snapshot != nil {
		clear(s.active)
		clear(s.steps.active)
		for _, kv := range m.Snapshot.KVs {
			take(string(kv.Key), true, kv.ModRevision)
		}
	}
	for _, ev := range m.Events {
		take(string(ev.Kv.Key), ev.Type != mvccpb.Event_DELETE, ev.Kv.ModRevision)
	}
	s.activeAt = m.Revision
}

// alive reports whether the executor of a run may live: its key exists, or the known
// executors are older than the start of the run, or the known record is older than the end
// of the executor, which may be the end of the run.
func (s *state) alive(r *run.Run) bool {
	return r.Steps > 0 || s.activeAt < r.Revision || s.rev < s.absent[r.ID] ||
		r.Executor != nil && s.active[r.ID][r.Executor.Host]
}

// waitingSince is when a run was first known to wait for its executor.
type waitingSince struct {
	rev int64 // of the record
	at  time.Time
}

// waits returns since when the leader has known that a run waits for its executor.
func (s *state) waits(r *run.Run, now time.Time) time.Time {
	w, ok := s.waiting[r.ID]
	if !ok || w.rev != r.Revision {
		w = waitingSince{r.Revision, now}
		s.waiting[r.ID] = w
	}
	return w.at
}

// news returns the errors of values that cannot be read and were not logged before.
func (s *state) news() []error {
	var all []error
	for _, bad := range []map[string]error{s.bad, s.steps.bad} {
		for key, err := range bad {
			if s.named[key] != err.Error() {
				s.named[key] = err.Error()
				all = append(all, err)
			}
		}
	}
	maps.DeleteFunc(s.named, func(key, _ string) bool { return s.bad[key] == nil && s.steps.bad[key] == nil })
	return all
}

// restored handles a write at a revision that is below the known ones: those are of a
// history before a restore of etcd.
func (s *state) restored(rev int64) {
	for _, at := range []*int64{&s.rev, &s.limitsAt, &s.activeAt, &s.steps.at} {
		if *at > rev {
			*at = 0
		}
	}
}

// snapshot returns the input of a plan. It is valid until the state changes.
func (s *state) snapshot(now time.Time) *Snapshot {
	s.queue.Prepare(s.limits)
	sn := &Snapshot{
		Now: now, Limits: s.limits, Queue: s.queue, Deferred: s.deferred, MaxDue: maxDue,
		InProgress: make([]*run.Run, 0, len(s.progress)), Alive: map[string]bool{},
		WaitingSince: map[string]time.Time{}, MaxBlocks: maxBlocks,
		Kept: s.kept,
	}
	for _, r := range s.progress {
		sn.InProgress = append(sn.InProgress, r)
		if r.Status == run.NotStarted {
			sn.WaitingSince[r.ID] = s.waits(r, now)
		}
		if s.alive(r) {
			sn.Alive[r.ID] = true
		}
	}
	for id, r := range s.opaque {
		sn.InProgress = append(sn.InProgress, r)
		sn.Alive[id] = true
	}
	return sn
}

// knownAt reports whether the state is known up to a revision.
func (s *state) knownAt(rev int64) bool {
	return s.rev >= rev && s.limitsAt >= rev && s.activeAt >= rev && s.steps.at >= rev
}
