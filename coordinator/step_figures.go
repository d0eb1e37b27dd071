package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/coordinator/step"
)

// maxQueues bounds the queues that are told of by name: whoever submits names them. What
// is in the others, those with the fewest, is told as one.
const (
	maxQueues   = 50
	otherQueues = "(others)"
)

// stepFigures are what the metrics tell of steps: sums over the runs in progress.
type stepFigures struct {
	// statuses counts instances, in the order of [step.Statuses].
	statuses []int
	// ofSteps are the windows of steps (concurrency), and ofRuns those of runs
	// (max_concurrent_steps).
	ofSteps, ofRuns windowFigures
	// ready is how many instances were published to a queue and not taken.
	ready map[string]int
}

// windowFigures are how far windows are used.
type windowFigures struct {
	// limit is how many instances they let be in flight of those that are left and may go.
	limit, inFlight int
}

// stepFigures counts what is known of steps. Of a run that has ended only those are
// counted that stand in a queue still.
func (s *state) stepFigures() *stepFigures {
	f := &stepFigures{statuses: make([]int, len(step.Statuses)), ready: map[string]int{}}
	for id, r := range s.progress {
		if fan := s.steps.fans[id]; fan != nil {
			f.add(fan, r.MaxConcurrentSteps)
		}
	}
	for id := range s.steps.ending {
		fan := s.steps.fans[id]
		if fan == nil || s.progress[id] != nil {
			continue
		}
		for i := range fan.steps {
			if st := &fan.steps[i]; st.scheduled > 0 {
				f.ready[st.Queue] += st.scheduled
			}
		}
	}
	f.ready = most(f.ready, maxQueues)
	return f
}

// add counts the instances of a run in progress.
func (f *stepFigures) add(fan *fanout, window int) {
	open := 0 // instances that may be in flight, were there no windows
	for i := range fan.steps {
		st := &fan.steps[i]
		ended := st.succeeded + st.failed + st.canceled
		for n, count := range []int{
			st.Count - ended - st.inFlight, st.scheduled, st.inFlight - st.scheduled, st.succeeded, st.failed, st.canceled,
		} {
			f.statuses[n] += count
		}
		if ended < st.Count {
			f.ready[st.Queue] += st.scheduled
		}
		left := st.inFlight
		if st.missing == 0 {
			left = st.Count - ended
		}
		open += left
		if st.Concurrency > 0 {
			f.ofSteps.add(min(st.Concurrency, left), st.inFlight)
		}
	}
	if window > 0 {
		f.ofRuns.add(min(window, open), fan.inFlight)
	}
}

func (w *windowFigures) add(limit, inFlight int) {
	w.limit, w.inFlight = w.limit+limit, w.inFlight+inFlight
}

// most keeps the names with the most, and adds the others up.
func most(of map[string]int, keep int) map[string]int {
	if len(of) <= keep {
		return of
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b))
	})
	kept := make(map[string]int, keep)
	for i, name := range names {
		if i >= keep-1 {
			kept[otherQueues] += of[name]
			continue
		}
		kept[name] = of[name]
	}
	return kept
}

var (
	stepsByStatus   = prometheus.NewDesc("berth_steps", "Step instances of the runs in progress, by status.", []string{"status"}, nil)
	stepsReady      = prometheus.NewDesc("berth_steps_ready", "Step instances that were published to a queue and not taken yet.", []string{"queue"}, nil)
	windowsLimit    = prometheus.NewDesc("berth_step_windows_limit", "How many step instances the windows of steps (concurrency), and those of runs (max_concurrent_steps), let be in flight, of those that are left and may go.", []string{"of"}, nil)
	windowsInFlight = prometheus.NewDesc("berth_step_windows_in_flight", "How many step instances are in flight in these windows.", []string{"of"}, nil)
)

// stepCollector tells the newest figures; nothing while there are none, since this
// candidate does not lead.
type stepCollector struct{ newest atomic.Pointer[stepFigures] }

// Describe is for [prometheus.Collector].
func (c *stepCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{stepsByStatus, stepsReady, windowsLimit, windowsInFlight} {
		ch <- d
	}
}

// Collect is for [prometheus.Collector].
func (c *stepCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.newest.Load()
	if f == nil {
		return
	}
	tell := func(d *prometheus.Desc, n int, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	for i, s := range step.Statuses {
		tell(stepsByStatus, f.statuses[i], string(s))
	}
	for queue, n := range f.ready {
		tell(stepsReady, n, queue)
	}
	for of, w := range map[string]windowFigures{"step": f.ofSteps, "run": f.ofRuns} {
		tell(windowsLimit, w.limit, of)
		tell(windowsInFlight, w.inFlight, of)
	}
}
