package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/step"
)

// fanout is what the leader knows of the step instances of a run. It counts nothing
// that it could not count anew: each change moves one cell, and the sums with it.
type fanout struct {
	id    string
	graph *step.Graph
	steps []fanStep
	// inFlight are the instances that are scheduled or running.
	inFlight int
	names    map[string]int // of steps, to their numbers
	// open are the steps that have not ended, and hopeless those that never come to be
	// done.
	open, hopeless int

	// tickFrom is when the first of those was published that count against
	// max_steps_per_tick now, and tickCount how many they are.
	tickFrom  time.Time
	tickCount int
}

// fanStep is one step.
type fanStep struct {
	step.Shape
	first int // number of its first instance among all of the run

	cells []cell
	// next is the lowest index that was never published, and again are those that were
	// and are requested once more, by index.
	next  int
	again []int
	// places are those of scheduled instances that are not in the place of their run.
	places map[int]int64
	// running are those that a worker has.
	running map[int]attempt

	inFlight, scheduled, succeeded, failed, canceled int

	// missing is how many of its needs are not done, and neededBy are the steps that
	// need it.
	missing  int
	neededBy []int
}

// cell is one instance: small, since there may be a hundred thousand.
type cell struct {
	rev     int64
	attempt int32
	status  uint8 // index in step.Statuses
}

// attempt is what is known of an instance that is running, or waits to be tried again.
type attempt struct {
	rec  step.Record
	seen time.Time // when the leader came to know
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

// paced is how many instances were published in the tick that a time is in, and when the
// next one begins.
func (f *fanout) paced(now time.Time, tick time.Duration) (count int, next time.Time) {
	if next = f.tickFrom.Add(tick); now.Before(next) {
		return f.tickCount, next
	}
	return 0, now.Add(tick)
}

// pace notes that one was published.
func (f *fanout) pace(now time.Time, tick time.Duration) {
	count, _ := f.paced(now, tick)
	if count == 0 {
		f.tickFrom = now
	}
	f.tickCount = count + 1
}

// statusOf is a status as cells have it.
func statusOf(s step.Status) uint8 { return uint8(slices.Index(step.Statuses, s)) }

func (c cell) is(s step.Status) bool { return step.Statuses[c.status] == s }

// take takes an instance as it is now. It tells whether that was news; an instance
// that the run does not have is none.
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

// leave takes an instance off the lists that its status has put it on.
func (s *fanStep) leave(index int) {
	delete(s.running, index)
	delete(s.places, index)
	if at, ok := slices.BinarySearch(s.again, index); ok {
		s.again = slices.Delete(s.again, at, at+1)
	}
}

// count moves one instance into a status, or out of it.
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

// moved is how the count of those of which something holds changes with one of them.
func moved(before, after bool) int {
	switch {
	case before == after:
		return 0
	case after:
		return 1
	}
	return -1
}

// ended tells whether nothing more will happen to any instance of a step.
func (s *fanStep) ended() bool { return s.succeeded+s.failed+s.canceled == s.Count }

// done tells whether the steps that need it may go.
func (s *fanStep) done() bool { return s.succeeded == s.Count }

// hopeless tells whether a step never comes to be done.
func (s *fanStep) hopeless() bool { return s.failed+s.canceled > 0 }

// policy is what becomes of its attempts that fail.
func (s *fanStep) policy() step.Policy {
	return step.Policy{Retries: s.Retries, Backoff: time.Duration(s.Backoff)}
}

// requested calls for the instances that may be published, lowest index first, until
// it is told that it is enough. It returns when the next comes to be due that has to
// wait; zero if none has.
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
		// A plan is of the time when its tick was due, which may be before the news came
		// that is in it: who has no pause waits for nothing.
		if at := a.seen.Add(a.rec.Pause); a.rec.Pause > 0 && now.Before(at) {
			due = sooner(due, at)
		} else if !each(index, a.rec) {
			return due
		}
	}
	return due
}

// runningInOrder are the indexes of instances that workers have.
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
