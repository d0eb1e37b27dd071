package bench

import (
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/sidecar/worker"
)

// stampError is what is taken off the times since a record's: they are whole
// milliseconds, and so half of one early.
const stampError = time.Millisecond / 2

// noops is the runner of one worker, whose jobs have ended when they begin: no process,
// no folder. It takes the worker's times.
type noops struct {
	over chan struct{} // closed: all jobs have ended

	mu sync.Mutex // guards what follows
	stepTimes
}

func newNoops() *noops {
	r := &noops{over: make(chan struct{})}
	close(r.over)
	return r
}

// stepTimes are those of the instances that a worker has had.
type stepTimes struct {
	// take is from the decision to take an instance until it was begun, and complete
	// from its end until that was known to be written.
	take, complete []time.Duration
	// last is when the last one was complete.
	last time.Time
}

// Start begins a job, and ends it.
func (r *noops) Start(_ string, t *step.Taken, _, _ time.Duration) (worker.Job, error) {
	took := max(0, time.Since(t.StartedAt)-stampError)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take = append(r.take, took)
	return &noop{r: r}, nil
}

// Open finds none: nothing outlives the worker.
func (r *noops) Open(string, *step.Taken) (worker.Job, error) { return nil, nil }

// times returns what was taken so far, and begins anew.
func (r *noops) times() stepTimes {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.stepTimes
	r.stepTimes = stepTimes{}
	return t
}

// noop is one job. The worker asks for its output when it begins to write how it has
// ended, and lets go of it when that was written.
type noop struct {
	r      *noops
	ending time.Time
}

func (j *noop) Done() <-chan struct{} { return j.r.over }
func (j *noop) Outcome() step.Outcome { return step.Outcome{Status: step.Succeeded} }
func (j *noop) Stop(string)           {}
func (j *noop) Trust(time.Duration)   {}

// Output is none.
func (j *noop) Output(int) []byte {
	j.ending = time.Now()
	return nil
}

// Close tells that the end is known.
func (j *noop) Close() {
	if j.ending.IsZero() {
		return
	}
	now := time.Now()
	j.r.mu.Lock()
	defer j.r.mu.Unlock()
	j.r.complete = append(j.r.complete, now.Sub(j.ending))
	j.r.last = now
}
