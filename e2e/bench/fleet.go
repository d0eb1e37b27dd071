//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/worker"
)

const (
	// fleetPoll is how often it is checked whether workers are idle.
	fleetPoll = 2 * time.Millisecond
	// eventsKept is how long the workers' events are kept at least; nothing reads them.
	eventsKept = 10 * time.Minute
)

// fleet is everything that runs steps, in this process: a coordinator that leads, and
// workers under host names of their own, each part on connections of its own.
type fleet struct {
	r       *runner
	leader  *leader
	conn    *connection // of the submitting client
	runs    run.Store
	steps   step.Store
	ends    *runWatch
	workers []*stepWorker
	pool    string // that was created for it, if any
	opened  time.Time
	meter   *bench.Meter // of etcd and this process
	// registries count the requests of the parts.
	registries []prometheus.Gatherer
	// logged are the leases of events.
	logged map[store.LeaseID]bool
}

// stepWorker is one worker.
type stepWorker struct {
	*worker.Worker
	client *instance.Client
	jobs   *noops
	*part
}

// openFleet starts what a case needs.
func (r *runner) openFleet(ctx context.Context, c *row) (_ *fleet, err error) {
	f := &fleet{r: r, logged: map[store.LeaseID]bool{}, opened: time.Now(), meter: r.Meter(os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.pool = c.stepPool(); f.pool != "" {
		if err := r.SetPools(ctx, []string{f.pool}, c.Limit); err != nil {
			return nil, err
		}
	}
	if f.conn, err = r.connect(); err != nil {
		return nil, err
	}
	f.runs = r.runs(f.conn)
	f.steps = step.Store{Backend: f.conn, Keys: f.runs.Keys, Journal: f.runs.Journal, Group: &store.Group{}}
	if f.ends, err = r.watchRuns(ctx, run.Status.Ended); err != nil {
		return nil, err
	}
	if f.leader, err = r.lead(ctx); err != nil {
		return nil, err
	}
	f.registries = append(f.registries, f.conn.requests, f.leader.conn.requests)
	for i := range c.Workers {
		if err := f.addWorker(ctx, i, c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// addWorker starts a worker of a case.
func (f *fleet) addWorker(ctx context.Context, i int, c *row) error {
	reg := prometheus.NewRegistry()
	o := f.r.Options()
	o.Host, o.Instance, o.Role = fmt.Sprintf("bench-%d", i+1), worker.Role, worker.Role
	o.Capacity, o.Queues, o.Registerer = c.placesOf(i), []string{c.queue(i)}, reg
	client, err := instance.Open(ctx, o)
	if err != nil {
		return err
	}
	w := &stepWorker{client: client, jobs: newNoops(c.Hold)}
	w.Worker = worker.New(worker.Config{
		Client: client, Queues: []string{c.queue(i)}, Concurrency: c.placesOf(i), Runner: w.jobs,
		Retention: eventsKept, Registerer: reg,
	})
	w.part = start(ctx, w.Run)
	f.workers, f.registries = append(f.workers, w), append(f.registries, reg)
	return nil
}

// idle waits until no worker has an instance or a slot, and all have seen the pool.
func (f *fleet) idle(ctx context.Context) error {
	for _, w := range f.workers {
		for {
			idle, err := w.idle(ctx)
			if err != nil {
				return err
			}
			if idle && (f.pool == "" || w.client.HasPool(f.pool)) {
				break
			}
			select {
			case <-time.After(fleetPoll):
			case <-w.done:
				return fmt.Errorf("a worker has ended: %w", w.err)
			case <-ctx.Done():
				return fmt.Errorf("a worker is not idle: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

func (w *stepWorker) idle(ctx context.Context) (bool, error) {
	if w.Active() > 0 {
		return false, nil
	}
	held, err := w.client.Held(ctx)
	return len(held) == 0, err
}

// close stops everything, and deletes all keys.
func (f *fleet) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), bench.CloseTimeout)
	defer cancel()
	var errs []error
	for _, w := range f.workers {
		errs = append(errs, w.close(ctx))
	}
	if f.ends != nil {
		errs = append(errs, f.ends.close())
	}
	if f.leader != nil {
		errs = append(errs, f.leader.close())
	}
	errs = append(errs, f.keepLogged(ctx), f.r.Wipe(ctx, f.r.Prefix))
	if f.conn != nil {
		for id := range f.logged {
			if err := f.conn.Revoke(ctx, id); err != nil && !errors.Is(err, store.ErrLeaseNotFound) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, f.conn.close())
	}
	return errors.Join(errs...)
}

func (w *stepWorker) close(ctx context.Context) error {
	idle := w.Drain(ctx)
	w.Worker.Stop(ctx)
	select {
	case <-idle:
	case <-w.done:
	case <-ctx.Done():
	}
	w.stop()
	now, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	return w.client.Close(now)
}

// keepLogged adds the leases of the events that exist.
func (f *fleet) keepLogged(ctx context.Context) error {
	if f.conn == nil {
		return nil
	}
	all, err := store.ReadAll(ctx, f.conn, f.r.keys().EventsAll())
	if err != nil {
		return err
	}
	for _, kv := range all.KVs {
		if kv.Lease != 0 {
			f.logged[store.LeaseID(kv.Lease)] = true
		}
	}
	return nil
}

// tidy deletes a run with everything that belongs to it.
func (f *fleet) tidy(ctx context.Context, id string) error {
	if err := f.keepLogged(ctx); err != nil {
		return err
	}
	k := f.r.keys()
	return f.r.Wipe(ctx, k.Run(id), k.Graph(id), k.Works(id), k.Events(id), k.Canceled(id))
}

// stampError is subtracted from times since that in a record: those are in whole
// milliseconds, and so half of one too early on average.
const stampError = time.Millisecond / 2

// noops is the runner of one worker, whose jobs do nothing: no process, no folder. It
// records the worker's times.
type noops struct {
	hold time.Duration // how long a job takes on average: see [spread]
	over chan struct{} // closed: jobs that take no time have ended

	mu sync.Mutex // guards what follows
	stepTimes
}

func newNoops(hold time.Duration) *noops {
	r := &noops{hold: hold, over: make(chan struct{})}
	close(r.over)
	return r
}

// stepTimes are the times of the instances that a worker has had.
type stepTimes struct {
	// take is the time from the decision to take an instance until it was begun, and
	// complete that from its end until the worker knew that this was written.
	take, complete []time.Duration
	// published is the time from its publication until it was begun.
	published []time.Duration
	// last is when the last one was complete.
	last time.Time
}

// Start begins a job.
func (r *noops) Start(_ string, t *step.Taken, _, _ time.Duration) (worker.Job, error) {
	took, published := max(0, time.Since(t.StartedAt)-stampError), max(0, time.Since(t.Ready.ScheduledAt)-stampError)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take, r.published = append(r.take, took), append(r.published, published)
	j := &noop{r: r, over: r.over}
	if r.hold > 0 {
		over := make(chan struct{})
		j.over = over
		time.AfterFunc(spread(r.hold, t.Ready.Number), func() { close(over) })
	}
	return j, nil
}

// spread returns how long the n-th job takes: from half the time to one and a half, evenly, so
// that those that begin together do not end together.
func spread(hold time.Duration, n int) time.Duration {
	_, part := math.Modf(float64(n) * math.Phi)
	return time.Duration((part + 0.5) * float64(hold))
}

// Open returns nil: no job outlives the worker.
func (r *noops) Open(string, *step.Taken) (worker.Job, error) { return nil, nil }

// times returns the times so far, and forgets them.
func (r *noops) times() stepTimes {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.stepTimes
	r.stepTimes = stepTimes{}
	return t
}

// noop is one job. The worker reads its output when it begins to write how the job has
// ended, and closes it when that was written.
type noop struct {
	r      *noops
	over   <-chan struct{} // closed when it has ended
	ending time.Time
}

func (j *noop) Done() <-chan struct{} { return j.over }
func (j *noop) Outcome() step.Outcome { return step.Outcome{Status: step.Succeeded} }
func (j *noop) Stop(string)           {}
func (j *noop) Extend(time.Duration)  {}

// Output returns nothing, and records when it was called.
func (j *noop) Output(int) []byte {
	j.ending = time.Now()
	return nil
}

// Close records that the end was written.
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
