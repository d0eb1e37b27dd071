package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// stepState is the leader's view of the steps of all runs, and of their executors.
type stepState struct {
	keys store.Keys
	// graphs are by run; nil is one that cannot be read. fans are created when they are
	// needed, since a queue may hold many runs.
	graphs map[string]*step.Graph
	// written are the revisions of the graphs: that of an earlier run with the same id may
	// still exist.
	written map[string]int64
	fans    map[string]*fanout
	at      int64 // at which the steps are known
	newest  newest
	// touched are runs with changes since the last plan. Those of them that have ended with
	// instances in flight are ending until none is.
	touched, ending map[string]bool
	// bad are keys that cannot be read, with the error.
	bad map[string]error

	active map[store.StepID]map[string]bool // instance → hosts with its executor
	// absent are instances whose executor's key was deleted, with the revision.
	absent map[store.StepID]int64
}

func newStepState(keys store.Keys) *stepState {
	return &stepState{
		keys: keys, graphs: map[string]*step.Graph{}, written: map[string]int64{}, fans: map[string]*fanout{}, bad: map[string]error{},
		touched: map[string]bool{}, ending: map[string]bool{},
		active: map[store.StepID]map[string]bool{}, absent: map[store.StepID]int64{},
	}
}

// message applies a message of the feed of the steps. It reports whether that changed the
// state.
func (s *stepState) message(m store.FeedMessage, now time.Time) (news bool) {
	if m.Snapshot != nil {
		news = true
		s.at, s.newest = 0, newest{}
		clear(s.graphs)
		clear(s.written)
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
			s.newest.deleted(key)
			if id, ok := s.graphOf(key); ok {
				delete(s.graphs, id)
				delete(s.written, id)
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

// graphOf returns the run of the key of a graph.
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
		s.graphs[id], s.written[id] = g, kv.ModRevision
		return true
	}
	s.newest.put(kv)
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

// fan returns the instances of a run; nil if its graph is not known.
func (s *stepState) fan(id string) *fanout {
	f := s.fans[id]
	if g := s.graphs[id]; f == nil && g != nil {
		f = newFanout(id, g)
		s.fans[id] = f
	}
	return f
}

// executor applies the key of an executor of an instance, or its deletion.
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

// alive returns a function that reports whether the executor of a running instance may
// live, with executors known at a revision.
func (s *stepState) alive(activeAt int64) func(store.StepID, step.Record, int64) bool {
	return func(id store.StepID, rec step.Record, rev int64) bool {
		return activeAt < rev || s.at < s.absent[id] || s.active[id][rec.Executor.Host]
	}
}

// fanned returns the runs in progress with steps, in the order of the queue, and those
// whose steps are unknown.
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

// stopping returns the ended runs with instances in flight. The instances of succeeded runs
// are dropped: nothing more happens to them, while other runs may be retried.
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

// fanout is the leader's view of the step instances of a run. Each change moves one cell,
// and the sums with it.
type fanout struct {
	id    string
	graph *step.Graph
	steps []fanStep
	// inFlight are the instances that are scheduled or running.
	inFlight int
	names    map[string]int // of steps, to their numbers
	// open is the number of steps that have not ended, hopeless of those that can never
	// succeed.
	open, hopeless int

	// tickFrom is when the current period of max_steps_per_tick began, and tickCount the
	// number of instances published in it.
	tickFrom  time.Time
	tickCount int
}

// fanStep is one step.
type fanStep struct {
	step.Shape
	first int // number of its first instance in the run

	cells []cell
	// next is the lowest index that was never published; again are the indexes that are
	// requested again.
	next  int
	again []int
	// places are those of scheduled instances with a place other than that of the run.
	places map[int]int64
	// running are those that a worker has, or that are requested again.
	running map[int]attempt

	inFlight, scheduled, succeeded, failed, canceled int

	// missing is how many of its needs are not done; neededBy are the steps that need it.
	missing  int
	neededBy []int
}

// cell is one instance. It is small, since there may be 100,000.
type cell struct {
	rev     int64
	attempt int32
	status  uint8 // index in step.Statuses
}

// attempt is an instance that is running, or waits to be tried again.
type attempt struct {
	rec  step.Record
	seen time.Time // when the leader received it
}

func newFanout(id string, g *step.Graph) *fanout {
	f := &fanout{id: id, graph: g, names: map[string]int{}}
	first := 0
	for i, sh := range g.Shapes() {
		f.steps = append(f.steps, fanStep{Shape: sh, first: first, cells: make([]cell, sh.Count), running: map[int]attempt{}})
		f.names[sh.Name] = i
		first += sh.Count
	}
	for i := range f.steps {
		st := &f.steps[i]
		for _, need := range st.Needs {
			before := &f.steps[need]
			before.neededBy = append(before.neededBy, i)
			if !before.done() {
				st.missing++
			}
		}
		if !st.ended() {
			f.open++
		}
	}
	return f
}

// paced returns how many instances were published in the period of now, and when the next
// period begins.
func (f *fanout) paced(now time.Time, tick time.Duration) (count int, next time.Time) {
	if next = f.tickFrom.Add(tick); now.Before(next) {
		return f.tickCount, next
	}
	return 0, now.Add(tick)
}

// pace counts a publication.
func (f *fanout) pace(now time.Time, tick time.Duration) {
	count, _ := f.paced(now, tick)
	if count == 0 {
		f.tickFrom = now
	}
	f.tickCount = count + 1
}

// statusOf returns the status of a cell.
func statusOf(s step.Status) uint8 { return uint8(slices.Index(step.Statuses, s)) }

func (c cell) is(s step.Status) bool { return step.Statuses[c.status] == s }

// take applies an instance. It reports whether that changed the state; an instance that the
// run does not have is ignored.
func (f *fanout) take(i *step.Instance, now time.Time) (news bool) {
	n, ok := f.names[i.Step]
	if !ok || i.Index >= len(f.steps[n].cells) {
		return false
	}
	s := &f.steps[n]
	c := &s.cells[i.Index]
	if i.Revision <= c.rev {
		return false
	}
	f.count(s, step.Statuses[c.status], -1)
	s.leave(i.Index)
	*c = cell{rev: i.Revision, attempt: int32(i.Attempt), status: statusOf(i.Status)}
	f.count(s, i.Status, 1)
	switch i.Status {
	case step.Scheduled:
		if i.Place > 0 {
			if s.places == nil {
				s.places = map[int]int64{}
			}
			s.places[i.Index] = i.Place
		}
	case step.Running:
		s.running[i.Index] = attempt{i.Record, now}
	case step.Requested:
		s.running[i.Index] = attempt{i.Record, now} // for its pause
		at, _ := slices.BinarySearch(s.again, i.Index)
		s.again = slices.Insert(s.again, at, i.Index)
	}
	for s.next < len(s.cells) && s.cells[s.next].rev > 0 {
		s.next++
	}
	return true
}

// leave removes an instance from the lists of its status.
func (s *fanStep) leave(index int) {
	delete(s.running, index)
	delete(s.places, index)
	if at, ok := slices.BinarySearch(s.again, index); ok {
		s.again = slices.Delete(s.again, at, at+1)
	}
}

// count adds one instance to a status, or removes it.
func (f *fanout) count(s *fanStep, status step.Status, by int) {
	ended, done, hopeless := s.ended(), s.done(), s.hopeless()
	if status.InFlight() {
		f.inFlight += by
		s.inFlight += by
	}
	switch status {
	case step.Scheduled:
		s.scheduled += by
	case step.Succeeded:
		s.succeeded += by
	case step.Failed:
		s.failed += by
	case step.Canceled:
		s.canceled += by
	}
	f.open -= moved(ended, s.ended())
	f.hopeless += moved(hopeless, s.hopeless())
	if n := moved(done, s.done()); n != 0 {
		for _, i := range s.neededBy {
			f.steps[i].missing -= n
		}
	}
}

// moved returns the change of a count when one condition changes.
func moved(before, after bool) int {
	switch {
	case before == after:
		return 0
	case after:
		return 1
	}
	return -1
}

// ended reports whether all instances of a step have ended.
func (s *fanStep) ended() bool { return s.succeeded+s.failed+s.canceled == s.Count }

// done reports whether all have succeeded.
func (s *fanStep) done() bool { return s.succeeded == s.Count }

// hopeless reports whether a step can never succeed.
func (s *fanStep) hopeless() bool { return s.failed+s.canceled > 0 }

// policy returns the retries of a step.
func (s *fanStep) policy() step.Policy {
	return step.Policy{Retries: s.Retries, Backoff: time.Duration(s.Backoff)}
}

// requested calls each for the instances that may be published, lowest index first, until
// each returns false. It returns when the next retry is due; zero if there is none.
func (s *fanStep) requested(now time.Time, each func(index int, rec step.Record) bool) (due time.Time) {
	again, fresh := s.again, s.next
	for len(again) > 0 || fresh < len(s.cells) {
		if fresh < len(s.cells) && s.cells[fresh].rev > 0 {
			fresh++
			continue
		}
		if len(again) == 0 || fresh < again[0] && fresh < len(s.cells) {
			if !each(fresh, step.Record{Status: step.Requested}) {
				return due
			}
			fresh++
			continue
		}
		index := again[0]
		again = again[1:]
		a := s.running[index]
		// The time of a plan is when its tick was due, which may be before the instance was
		// received: without a pause it does not wait.
		if at := a.seen.Add(a.rec.Pause); a.rec.Pause > 0 && now.Before(at) {
			due = sooner(due, at)
		} else if !each(index, a.rec) {
			return due
		}
	}
	return due
}

// runningInOrder returns the indexes of the running instances.
func (s *fanStep) runningInOrder() []int {
	var all []int
	for index, a := range s.running {
		if a.rec.Status == step.Running {
			all = append(all, index)
		}
	}
	slices.SortFunc(all, cmp.Compare)
	return all
}
