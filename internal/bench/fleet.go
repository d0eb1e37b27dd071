package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/worker"
)

const (
	// fleetLook is how often it is looked whether workers have come to rest.
	fleetLook = 2 * time.Millisecond
	// eventsKept is how long the workers' events are kept at the least; nobody reads
	// them.
	eventsKept = 10 * time.Minute
)

// fleet is all that runs steps, in this process: a coordinator that leads, and workers
// on hosts of their own names, each part on connections of its own.
type fleet struct {
	r       *runner
	leader  *leader
	conn    *connection // of who submits
	runs    run.Store
	steps   step.Store
	ends    *runWatch
	workers []*stepWorker
	pool    string // that was made for it, if one was
	// registries count what the parts do.
	registries []prometheus.Gatherer
	// logged are the leases of what was logged.
	logged map[store.LeaseID]bool
}

// stepWorker is one worker.
type stepWorker struct {
	*worker.Worker
	client *berth.Client
	jobs   *noops
	*part
}

// openFleet starts all that a case needs.
func (r *runner) openFleet(ctx context.Context, c Case) (_ *fleet, err error) {
	f := &fleet{r: r, logged: map[store.LeaseID]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.pool = c.stepPool(); f.pool != "" {
		if err := r.setPools(ctx, []string{f.pool}, c.Limit); err != nil {
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
		if err := f.hire(ctx, i, c.Room); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// hire starts a worker that has so many instances at a time.
func (f *fleet) hire(ctx context.Context, i, room int) error {
	reg := prometheus.NewRegistry()
	o := f.r.options()
	o.Host, o.Instance, o.Role = fmt.Sprintf("bench-%d", i+1), worker.Role, worker.Role
	o.Capacity, o.Queues, o.Registerer = room, []string{step.DefaultQueue}, reg
	client, err := berth.Open(ctx, o)
	if err != nil {
		return err
	}
	w := &stepWorker{client: client, jobs: newNoops()}
	w.Worker = worker.New(worker.Config{
		Client: client, Queues: []string{step.DefaultQueue}, Concurrency: room, Runner: w.jobs,
		Retention: eventsKept, Registerer: reg,
	})
	w.part = start(ctx, w.Run)
	f.workers, f.registries = append(f.workers, w), append(f.registries, reg)
	return nil
}

// rest waits until no worker has anything, slots included, and all have seen which
// pools there are.
func (f *fleet) rest(ctx context.Context) error {
	for _, w := range f.workers {
		for {
			rests, err := w.rests(ctx)
			if err != nil {
				return err
			}
			if rests && (f.pool == "" || w.client.HasPool(f.pool)) {
				break
			}
			select {
			case <-time.After(fleetLook):
			case <-w.done:
				return fmt.Errorf("a worker has ended: %w", w.err)
			case <-ctx.Done():
				return fmt.Errorf("a worker has not come to rest: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

func (w *stepWorker) rests(ctx context.Context) (bool, error) {
	if w.Active() > 0 {
		return false, nil
	}
	held, err := w.client.Held(ctx)
	return len(held) == 0, err
}

// close ends everything, and deletes what there is.
func (f *fleet) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
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
	errs = append(errs, f.noteLogged(ctx), f.r.wipe(ctx, f.r.prefix))
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

// noteLogged notes the leases of the events that are there.
func (f *fleet) noteLogged(ctx context.Context) error {
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

// tidy deletes a run, as if it had never been.
func (f *fleet) tidy(ctx context.Context, id string) error {
	if err := f.noteLogged(ctx); err != nil {
		return err
	}
	k := f.r.keys()
	return f.r.wipe(ctx, k.Run(id), k.Graph(id), k.Works(id), k.Events(id), k.Canceled(id))
}

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
