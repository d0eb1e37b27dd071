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
	// graphs are by run; nil is one that can't be read. Fans are those of runs of which
	// something is in progress, or has been: cells are made when they are needed, since
	// a queue may hold many runs.
	graphs map[string]*step.Graph
	fans   map[string]*fanout
	at     int64 // that the steps are known at
	// touched are runs of which something has changed since the last plan. Those among
	// them that have ended with something in flight are ending, until nothing is.
	touched, ending map[string]bool
	// bad are keys that can't be read, with the reason.
	bad map[string]error

	active map[store.StepID]map[string]bool // instance → hosts where it is seen to be run
	// absent are instances whose executor's key was deleted, with the revision.
	absent map[store.StepID]int64
}

func newStepState(keys store.Keys) *stepState {
	return &stepState{
		keys: keys, graphs: map[string]*step.Graph{}, fans: map[string]*fanout{}, bad: map[string]error{},
		touched: map[string]bool{}, ending: map[string]bool{},
		active: map[store.StepID]map[string]bool{}, absent: map[store.StepID]int64{},
	}
}

// message takes what the feed of the steps delivered. It tells whether any of it was
// news.
func (s *stepState) message(m store.FeedMessage, now time.Time) (news bool) {
	if m.Snapshot != nil {
		news = true
		s.at = 0
		clear(s.graphs)
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
				delete(s.graphs, id)
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
		if err != nil {
			s.bad[key] = err
		}
		s.graphs[id] = g
		return true
	}
	i, err := step.Decode(s.keys, kv)
	if err != nil {
		s.bad[key] = err
		return true
	}
	f := s.fan(i.Run)
	if f == nil || !f.take(i, now) {
		return false
	}
	s.touched[i.Run] = true
	return true
}

// fan returns what is known of the instances of a run; nil if its graph is not known.
func (s *stepState) fan(id string) *fanout {
	f := s.fans[id]
	if g := s.graphs[id]; f == nil && g != nil {
		f = newFanout(id, g)
		s.fans[id] = f
	}
	return f
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

// fanned returns the runs in progress that have steps, in the order of the queue, and
// those among them whose steps nobody knows.
func (s *stepState) fanned(of *state, now time.Time) (all []Fanned, blind []Blind) {
	for id, r := range of.progress {
		if r.Steps == 0 {
			continue
		}
		f := s.fan(id)
		switch bad := s.bad[s.keys.Graph(id)]; {
		case f != nil:
			all = append(all, Fanned{r, f})
		case bad != nil || s.at >= r.Revision:
			blind = append(blind, Blind{r, bad, of.waits(r, now)})
		}
	}
	slices.SortFunc(all, func(a, b Fanned) int { return a.Run.Compare(b.Run) })
	slices.SortFunc(blind, func(a, b Blind) int { return a.Run.Compare(b.Run) })
	return all, blind
}

// stopping returns those of the runs that have ended of which something is in flight
// still. What is known of those that have succeeded is dropped: nothing more happens to
// them, while others may be tried again.
func (s *stepState) stopping(ended map[string]*run.Run) (all []Fanned) {
	maps.Copy(s.ending, s.touched)
	clear(s.touched)
	for id := range s.ending {
		r, f := ended[id], s.fans[id]
		if r != nil && f != nil && f.inFlight > 0 {
			all = append(all, Fanned{r, f})
			continue
		}
		delete(s.ending, id)
		if r != nil && r.Status == run.Succeeded {
			delete(s.fans, id)
		}
	}
	slices.SortFunc(all, func(a, b Fanned) int { return a.Run.Compare(b.Run) })
	return all
}
