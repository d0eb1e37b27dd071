package coordinator

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// stepState is what the leader knows of the steps of all runs, and of who has them.
type stepState struct {
	keys store.Keys
	fans map[string]*fanout // by run
	at   int64              // that the steps are known at
	// bad are keys that can't be read, with the reason.
	bad map[string]error

	active map[store.StepID]map[string]bool // instance → hosts where it is seen to be run
	// absent are instances whose executor's key was deleted, with the revision.
	absent map[store.StepID]int64
}

func newStepState(keys store.Keys) *stepState {
	return &stepState{
		keys: keys, fans: map[string]*fanout{}, bad: map[string]error{},
		active: map[store.StepID]map[string]bool{}, absent: map[store.StepID]int64{},
	}
}

// message takes what the feed of the steps delivered. It tells whether any of it was
// news.
func (s *stepState) message(m store.FeedMessage, now time.Time) (news bool) {
	if m.Snapshot != nil {
		news = true
		s.at = 0
		clear(s.fans)
		clear(s.bad)
		for _, kv := range m.Snapshot.KVs {
			s.take(kv, now)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			key := string(ev.Kv.Key)
			delete(s.bad, key)
			if id, ok := s.graphOf(key); ok {
				delete(s.fans, id)
			}
			continue
		}
		news = s.take(ev.Kv, now) || news
	}
	s.at = max(s.at, m.Revision)
	lagged := len(s.absent)
	maps.DeleteFunc(s.absent, func(_ store.StepID, rev int64) bool { return rev <= s.at })
	return news || len(s.absent) < lagged
}

// graphOf returns the run whose graph has a key, if it is one.
func (s *stepState) graphOf(key string) (run string, ok bool) {
	id := strings.TrimPrefix(key, s.keys.StepsAll())
	return id, !strings.Contains(id, "/")
}

func (s *stepState) take(kv *mvccpb.KeyValue, now time.Time) (news bool) {
	key := string(kv.Key)
	delete(s.bad, key)
	if id, ok := s.graphOf(key); ok {
		g, err := step.DecodeGraph(key, kv.Value)
		switch {
		case err != nil:
			s.bad[key] = err
		case s.fans[id] == nil:
			s.fans[id] = newFanout(id, g)
		}
		return true
	}
	i, err := step.Decode(s.keys, kv)
	if err != nil {
		s.bad[key] = err
		return true
	}
	f := s.fans[i.Run]
	return f != nil && f.take(i, now)
}

// executor takes that the executor of an instance is seen on a host, or no more.
func (s *stepState) executor(host string, id store.StepID, there bool, rev int64) {
	switch {
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

// alive tells whether the executor of a running instance may be there, as what is
// known of executors was at a revision.
func (s *stepState) alive(activeAt int64) func(store.StepID, step.Record, int64) bool {
	return func(id store.StepID, rec step.Record, rev int64) bool {
		return activeAt < rev || s.at < s.absent[id] || s.active[id][rec.Executor.Host]
	}
}

// fanned returns the runs in progress that have steps, in the order of the queue.
func (s *stepState) fanned(progress map[string]*run.Run) []Fanned {
	var all []Fanned
	for id, r := range progress {
		if f := s.fans[id]; f != nil && r.Steps > 0 {
			all = append(all, Fanned{r, f})
		}
	}
	slices.SortFunc(all, func(a, b Fanned) int { return a.Run.Compare(b.Run) })
	return all
}
