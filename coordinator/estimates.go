package coordinator

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/coordinator/run"
)

const (
	// estimateEvery is how often queued runs are looked through for estimates: each costs as much as
	// there are runs.
	estimateEvery = 10 * time.Second
	// estimateFirst is how many runs at the front of the queue are, and maxEstimates how many runs
	// have an estimate at a time.
	estimateFirst, maxEstimates = 20, 100
)

// estimates measures how good the estimates of 'runs why' are: it keeps the first one of some queued
// runs until they are admitted. It knows those of its own term only.
type estimates struct {
	ratio prometheus.Histogram
	first map[string]estimated // by run
	at    time.Time            // when the queue was looked through last
}

// estimated is the time at which an estimate was made, and the estimate.
type estimated struct {
	at time.Time
	in time.Duration
}

// reset forgets the estimates of an earlier term: its runs may have waited without a leader.
func (e *estimates) reset() { e.first, e.at = map[string]estimated{}, time.Time{} }

// due reports whether the queue is to be looked through.
func (e *estimates) due(now time.Time) bool { return now.Sub(e.at) >= estimateEvery }

// note makes the estimates of runs at the front of the queue that have none, and forgets those of
// runs that are not queued any longer.
func (e *estimates) note(all run.All, now time.Time) {
	e.at = now
	maps.DeleteFunc(e.first, func(id string, _ estimated) bool {
		r := all.Get(id)
		return r == nil || r.Status != run.Queued
	})
	queue := all.Queue()
	for _, r := range queue[:min(len(queue), estimateFirst)] {
		if _, known := e.first[r.ID]; known || len(e.first) >= maxEstimates {
			continue
		}
		if in := all.Why(r.ID, nil, now).Estimate.In; in > 0 {
			e.first[r.ID] = estimated{now, in}
		}
	}
}

// admitted observes the wait of a run that had an estimate.
func (e *estimates) admitted(id string, now time.Time) {
	if was, ok := e.first[id]; ok {
		delete(e.first, id)
		e.ratio.Observe(float64(now.Sub(was.at)) / float64(was.in))
	}
}

// estimate notes the estimates of queued runs, if that is due.
func (l *leader) estimate(now time.Time) {
	if l.state.queue.Len() == 0 || !l.metrics.estimates.due(now) {
		return
	}
	all := run.All{Runs: make([]*run.Run, 0, len(l.state.runs))}
	for _, id := range slices.Sorted(maps.Keys(l.state.runs)) {
		all.Runs = append(all.Runs, l.state.runs[id])
	}
	l.metrics.estimates.note(all, now)
}
