package step

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// WaitKind is the kind of what instances wait for.
type WaitKind string

// The kinds. Those from [WaitPool] on are of instances that are scheduled.
const (
	WaitRun         WaitKind = "run"         // their run is not in progress yet
	WaitNeeds       WaitKind = "needs"       // steps that the step needs
	WaitNever       WaitKind = "never"       // they never run: what the step needs has failed
	WaitWindow      WaitKind = "window"      // the step's concurrency
	WaitNotBefore   WaitKind = "not_before"  // the step's time
	WaitRunWindow   WaitKind = "run_window"  // the run's max_concurrent_steps
	WaitRetry       WaitKind = "retry"       // the pause before a retry
	WaitCoordinator WaitKind = "coordinator" // to be published
	WaitPool        WaitKind = "pool"        // slots of pools, or of a task's limit
	WaitNoWorker    WaitKind = "no_worker"   // a worker for the queue
	WaitWorker      WaitKind = "worker"      // free capacity of a worker
	WaitExecutor    WaitKind = "executor"    // an executor over HTTP
)

// Wait is what instances wait for.
type Wait struct {
	Kind WaitKind
	// Text is for people: pool 'db' full (3/3 slots).
	Text string
	// Count is the number of instances.
	Count int
	// Soon states that nothing blocks them.
	Soon bool
}

// slots returns the slots of an instance: those of its pools, and one of its task if that
// has a limit.
func (s *Shape) slots(space *pool.Space) map[string]int {
	task := TaskPool(s.Task)
	if s.Task == "" || !space.Has(task) {
		return s.Pools
	}
	slots := map[string]int{task: 1}
	maps.Copy(slots, s.Pools)
	return slots
}

// Wait returns what the scheduled instances of a step wait for. It is pure.
//
//  1. If no worker takes from the queue, they wait for one.
//  2. If their slots do not fit, they wait for slots.
//  3. Else they wait for capacity of a worker, or for an executor over HTTP.
func (s *Shape) Wait(a Around) Wait {
	full, none := "", ""
	if a.Space != nil {
		full = a.Space.Why(s.slots(a.Space))
	}
	if !s.External {
		none = a.noWorker(s.Queue)
	}
	switch {
	case full != "" && none != "":
		return Wait{Kind: WaitNoWorker, Text: full + "; and " + none}
	case none != "":
		return Wait{Kind: WaitNoWorker, Text: none}
	case full != "":
		return Wait{Kind: WaitPool, Text: full}
	case s.External:
		return Wait{Kind: WaitExecutor, Text: fmt.Sprintf("no executor has taken it from queue '%s' over HTTP yet", s.Queue)}
	}
	return a.places(s.Queue)
}

// takers returns the workers that may take from a queue.
func (a *Around) takers(queue string) (all []Worker) {
	for _, w := range a.Workers {
		if w.Idle {
			continue
		}
		if len(w.Queues) == 0 || slices.Contains(w.Queues, queue) {
			all = append(all, w)
		}
	}
	return all
}

// noWorker states that no worker takes from a queue; empty if one may.
func (a *Around) noWorker(queue string) string {
	start := "start 'berth worker'"
	if queue != DefaultQueue {
		start = "start 'berth worker --queue " + queue + "'"
	}
	switch {
	case a.Blind || len(a.takers(queue)) > 0:
		return ""
	case len(a.Workers) == 0:
		return "no worker is running: " + start
	}
	for _, w := range a.Workers {
		if w.Idle && (len(w.Queues) == 0 || slices.Contains(w.Queues, queue)) {
			return fmt.Sprintf("no worker takes from queue '%s', since %s is drained or stopped: 'berth worker resume %s'", queue, w.ID, w.ID)
		}
	}
	return fmt.Sprintf("no worker takes from queue '%s': %s", queue, start)
}

// places states whether the workers of a queue have free capacity.
func (a *Around) places(queue string) Wait {
	takers := a.takers(queue)
	capacity, active := 0, 0
	for _, w := range takers {
		capacity, active = capacity+w.Capacity, active+min(w.Active, w.Capacity)
	}
	who := "worker"
	if len(takers) != 1 {
		who = fmt.Sprintf("%d workers", len(takers))
	}
	switch {
	case a.Blind:
		return Wait{Kind: WaitWorker, Text: fmt.Sprintf("a worker has to take it from queue '%s', and some workers cannot be read", queue)}
	case active == capacity && capacity > 0:
		return Wait{Kind: WaitWorker, Text: fmt.Sprintf("the %s of queue '%s' can take no more (%d/%d in progress)", who, queue, active, capacity)}
	}
	return Wait{Kind: WaitWorker, Soon: true, Text: fmt.Sprintf("the %s of queue '%s' can take it (%d/%d in progress)", who, queue, active, capacity)}
}

// Has reports whether any instance of a run in progress has a status.
func (o *Overview) Has(status Status) bool {
	return o.Run.Status.InProgress() && slices.ContainsFunc(o.Steps, func(s Summary) bool { return s.Counts[status] > 0 })
}

// Wait returns what the scheduled instances of a step wait for, or without any, the
// requested ones; nil if there are none. It is pure.
func (o *Overview) Wait(n int, a Around) *Wait { return o.wait(&o.Steps[n], a, o.inFlight()) }

func (o *Overview) wait(s *Summary, a Around, inFlight int) *Wait {
	if o.Run.Status.Ended() {
		return nil
	}
	if count := s.Counts[Scheduled]; count > 0 {
		w := s.Shape.Wait(a)
		w.Count = count
		return &w
	}
	count := s.Counts[Requested]
	if count == 0 {
		return nil
	}
	w := o.requested(s, a, inFlight)
	w.Count = count
	return &w
}

// Waits returns what each step waits for; nil for one that does not.
func (o *Overview) Waits(a Around) []*Wait {
	all := make([]*Wait, len(o.Steps))
	inFlight := o.inFlight() // once: there can be many steps
	for n := range o.Steps {
		all[n] = o.wait(&o.Steps[n], a, inFlight)
	}
	return all
}

// Held reports whether something other than the order and the windows of the run blocks
// them.
func (w *Wait) Held() bool {
	switch {
	case w == nil || w.Soon:
		return false
	case w.Kind == WaitCoordinator, w.Kind == WaitPool, w.Kind == WaitNoWorker, w.Kind == WaitWorker, w.Kind == WaitExecutor, w.Kind == WaitNotBefore:
		return true
	}
	return false
}

// Hold is what blocks some steps.
type Hold struct {
	Wait  // Count is the sum
	Steps []string
}

// Holds returns what blocks the steps of a run: first what needs an operator, then in the
// order of the steps.
func (o *Overview) Holds(waits []*Wait) []Hold {
	var all []Hold
	at := map[string]int{}
	for n, w := range waits {
		if !w.Held() {
			continue
		}
		i, known := at[w.Text]
		if !known {
			i, at[w.Text] = len(all), len(all)
			all = append(all, Hold{Wait: Wait{Kind: w.Kind, Text: w.Text}})
		}
		all[i].Count += w.Count
		all[i].Steps = append(all[i].Steps, o.Steps[n].Shape.Name)
	}
	rank := func(h Hold) int {
		if h.Kind == WaitNoWorker || h.Kind == WaitCoordinator {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b Hold) int { return rank(a) - rank(b) })
	return all
}

// String names the steps and what blocks them.
func (h Hold) String() string { return names(h.Steps) + ": " + h.Text }

// WaitOf is [Overview.Wait] for one instance of the step.
func (o *Overview) WaitOf(n int, i *Instance, a Around) *Wait {
	s := &o.Steps[n]
	var w Wait
	switch {
	case o.Run.Status.Ended():
		return nil
	case i.Status == Scheduled:
		w = s.Shape.Wait(a)
	case i.Status != Requested:
		return nil
	case i.Pause > 0:
		w = Wait{Kind: WaitRetry, Text: fmt.Sprintf("it is retried %s after the end of its last attempt", i.Pause)}
	default:
		w = o.requested(s, a, o.inFlight())
	}
	w.Count = 1
	return &w
}

// Unmet returns the needed steps that have not succeeded: those that may still succeed, and
// those that never will.
func (o *Overview) Unmet(s *Summary) (waits, never []string) {
	for i, need := range s.Shape.Needs {
		before := &o.Steps[need]
		switch {
		case before.Counts[Succeeded] == before.Shape.Count:
		case before.EndedAt.IsZero():
			waits = append(waits, s.Needs[i])
		default:
			never = append(never, s.Needs[i])
		}
	}
	return waits, never
}

// requested returns what the unpublished instances of a step wait for, in the order in which
// the coordinator checks. all is the number of instances of the run in flight.
func (o *Overview) requested(s *Summary, a Around, all int) Wait {
	if st := o.Run.Status; st == run.Storing || st == run.Queued {
		return Wait{Kind: WaitRun, Text: "its run is " + string(st)}
	}
	waits, never := o.Unmet(s)
	inFlight := s.inFlight()
	switch window, most := s.Shape.Concurrency, o.Run.MaxConcurrentSteps; {
	case len(never) > 0:
		return Wait{Kind: WaitNever, Text: "it never runs: not all of " + names(never) + " has succeeded"}
	case len(waits) > 0:
		return Wait{Kind: WaitNeeds, Text: "it needs " + names(waits)}
	case a.Leaderless:
		return Wait{Kind: WaitCoordinator, Text: "no coordinator is running, so nothing is published"}
	case s.Shape.NotBefore.After(a.Now):
		return Wait{Kind: WaitNotBefore, Text: s.Shape.NotBefore.Until(a.Now)}
	case window > 0 && inFlight >= window:
		return Wait{Kind: WaitWindow, Text: fmt.Sprintf("the window of its step is full (%d/%d in flight)", inFlight, window)}
	case most > 0 && all >= most:
		return Wait{Kind: WaitRunWindow, Text: fmt.Sprintf("the window of its run is full (%d/%d in flight)", all, most)}
	case s.Shape.Backoff > 0 && !s.StartedAt.IsZero():
		return Wait{Kind: WaitRetry, Soon: true, Text: "it is published at once, or after the pause before a retry"}
	}
	return Wait{Kind: WaitCoordinator, Soon: true, Text: "it is about to be published"}
}

// inFlight returns how many instances count against the window of the run.
func (o *Overview) inFlight() (all int) {
	for n := range o.Steps {
		all += o.Steps[n].inFlight()
	}
	return all
}

// inFlight returns how many instances of a step count against windows.
func (s *Summary) inFlight() int { return s.Counts[Scheduled] + s.Counts[Running] }

// mostNames bounds the names of steps in a text.
const mostNames = 10

// names lists the names of steps, at most mostNames.
func names(all []string) string {
	if more := len(all) - mostNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNames], ", "), more)
	}
	return strings.Join(all, ", ")
}
