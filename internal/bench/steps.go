package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// The kinds of load of steps. What each is compared with is in brackets.
const (
	baseline  = "baseline"  // no limit exists (the floor of claims)
	unlimited = "unlimited" // steps name a task that has no limit, others have one (no task)
	limited   = "enabled"   // all are of one task, whose limit does not bind (no task)
	mixed     = "mixed"     // one of a hundred is of such a task (no task)
	binding   = "binding"   // all are of one task, whose limit binds (no task)
	high      = "high"      // as enabled, with more workers, steps and slots (no task)
)

const (
	// stepWorkers × stepRoom is the usual size: so many workers, each with so many
	// instances at a time.
	stepWorkers, stepRoom = 4, 10
	// highWorkers × highRoom is in flight at most under highLimit, which is more than
	// twice that, so that it does not bind.
	highWorkers, highRoom, highLimit = 8, 30, 500
	// looseLimit is twice what is in flight at the usual size, and does not bind: an
	// instance that has ended gives its slot back while the next is being taken.
	looseLimit = 2 * stepWorkers * stepRoom
	// tightLimit is a quarter of what would be in flight.
	tightLimit = 10
	// mixedOf is how many steps there are for one that is limited.
	mixedOf = 100
	// floorClients is how many clients the floor has that the baseline is compared
	// with.
	floorClients = 64
	// stepRetries keep a figure of a load in which an attempt is lost: how many were is
	// reported.
	stepRetries = 3
	// singleShare is which part of the usual steps one worker does that has one at a
	// time.
	singleShare = 10
)

// limitedTask is the task that has a limit, and freeTask one that has none.
const limitedTask, freeTask = "limited", "free"

func (c *Config) stepCases() []Case {
	usual := func(kind string, limit int) Case { return stepCase(kind, stepWorkers, stepRoom, c.Steps, limit) }
	return []Case{
		usual(baseline, 0),
		usual(unlimited, looseLimit),
		usual(limited, looseLimit),
		usual(mixed, tightLimit),
		usual(binding, tightLimit),
		stepCase(limited, 1, 1, max(minSteps, c.Steps/singleShare), looseLimit),
		stepCase(high, highWorkers, highRoom, c.HighSteps, highLimit),
	}
}

func stepCase(kind string, workers, room, steps, limit int) Case {
	return Case{
		Name: fmt.Sprintf("%s/%dw/%dr", kind, workers, room),
		Kind: kind, Workers: workers, Room: room, Steps: steps, Limit: limit,
	}
}

// stepSpecs are the steps of a run of n instances that do nothing.
func stepSpecs(kind string, n int) []step.Spec {
	switch kind {
	case unlimited:
		return []step.Spec{fanOf("steps", n, freeTask)}
	case limited, binding, high:
		return []step.Spec{fanOf("steps", n, limitedTask)}
	case mixed:
		return mixedSpecs(n)
	}
	return []step.Spec{fanOf("steps", n, "")}
}

// plainSpecs are the same without tasks.
func plainSpecs(kind string, n int) []step.Spec {
	specs := stepSpecs(kind, n)
	for i := range specs {
		specs[i].Task = step.Task{}
	}
	return specs
}

// mixedSpecs has one of a hundred limited, evenly among the others: a run's steps are
// taken in their order, so each hundred are two steps.
func mixedSpecs(n int) []step.Spec {
	var specs []step.Spec
	pieces := min(max(1, n/mixedOf), step.MaxSteps/2)
	for i := range pieces {
		size := share(n, pieces, i)
		some := max(1, size/mixedOf)
		specs = append(specs,
			fanOf(fmt.Sprintf("free-%d", i), size-some, freeTask),
			fanOf(fmt.Sprintf("limited-%d", i), some, limitedTask))
	}
	return specs
}

func fanOf(name string, n int, task string) step.Spec {
	return step.Spec{
		Name: name, Task: step.Task{Name: task}, Command: []string{"true"}, Retries: stepRetries,
		Items: &step.Items{Range: &step.Range{From: 1, To: int64(n), By: 1}},
	}
}

// stepPool is the pool that a case has: that of the limited task. Without a limit it has
// none.
func (c Case) stepPool() string {
	if c.Limit == 0 {
		return ""
	}
	return step.TaskPool(limitedTask)
}

// stepPair is a round of steps: the reference, and the case. The floor is no steps.
type stepPair struct {
	floor    outcome
	ref, own stepOutcome
}

// measureSteps measures a case in alternation with the same without limits, on the same
// workers; the baseline with the floor.
func (r *runner) measureSteps(ctx context.Context, row *Row) (err error) {
	f, err := labeled(ctx, "case", func(ctx context.Context) (*fleet, error) { return r.openFleet(ctx, row.Case) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	var floor load
	if row.Kind == baseline {
		d, err := r.openFloor(floorClients, 1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		floor = load{door: d, clients: floorClients, measure: r.cfg.Duration}
	}
	before, err := ownMemory()
	if err != nil {
		before = memoryUse{} // not known on this system
	}
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // from here on there is a new peak
	var pairs []stepPair
	for range r.cfg.Rounds {
		p, err := r.stepRound(ctx, row, f, floor)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
	}
	row.fillSteps(pairs)
	return r.fillSizes(ctx, row.StepLoads, before)
}

func (r *runner) stepRound(ctx context.Context, row *Row, f *fleet, floor load) (p stepPair, err error) {
	if row.Kind == baseline {
		if p.floor, err = labeled(ctx, "reference", floor.round); err != nil {
			return p, fmt.Errorf("floor: %w", err)
		}
	} else {
		p.ref, err = labeled(ctx, "reference", func(ctx context.Context) (stepOutcome, error) {
			return f.load(ctx, row.Kind, row.Case.Steps, plainSpecs)
		})
		if err != nil {
			return p, fmt.Errorf("without limits: %w", err)
		}
	}
	p.own, err = labeled(ctx, "case", func(ctx context.Context) (stepOutcome, error) {
		return f.load(ctx, row.Kind, row.Case.Steps, stepSpecs)
	})
	return p, err
}

const (
	// stepPatience is how long a load may take, and stepPatienceEach how long for each
	// step.
	stepPatience     = time.Minute
	stepPatienceEach = 10 * time.Millisecond
	// warmSteps is the part of a load that is run before it, and does not count: what
	// the one before has left to do is done by then, and leases are there.
	warmSteps = 10
)

// stepOutcome is what one load came to.
type stepOutcome struct {
	perSecond      float64
	perWorker      []float64
	take, complete []time.Duration
	counts         stepCounts // from the submission to the last release
	released       int        // claims of slots that were given back
	inVain         int        // attempts that did not end well
}

// load runs n steps in a run, after some that do not count.
func (f *fleet) load(ctx context.Context, kind string, n int, specs func(kind string, n int) []step.Spec) (stepOutcome, error) {
	if _, err := f.once(ctx, specs(kind, max(minSteps, n/warmSteps))); err != nil {
		return stepOutcome{}, err
	}
	return f.once(ctx, specs(kind, n))
}

// once runs steps and waits until nothing of them is left.
func (f *fleet) once(ctx context.Context, specs []step.Spec) (o stepOutcome, err error) {
	g, err := step.NewGraph(specs)
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepPatience+time.Duration(g.Total())*stepPatienceEach)
	defer cancel()
	if err := f.rest(ctx); err != nil {
		return o, err
	}
	before, err := f.count(ctx)
	if err != nil {
		return o, err
	}
	for _, w := range f.workers {
		w.jobs.times()
	}
	id := newID()
	if _, _, err := f.steps.Submit(ctx, f.runs, id, run.Spec{}, g); err != nil {
		return o, err
	}
	begun := time.Now()
	r, err := f.ends.wait(ctx, id)
	switch {
	case err != nil:
		return o, err
	case r.Status != run.Succeeded:
		_, why := f.attempts(ctx, id)
		return o, errors.Join(fmt.Errorf("the run is %s: %s", r.Status, r.Error), why)
	}
	if err := f.rest(ctx); err != nil {
		return o, err
	}
	after, err := f.count(ctx)
	if err != nil {
		return o, err
	}
	o.counts = after.minus(before)
	o.released = int(o.counts.claims) // nothing is held any more
	if err := f.sum(&o, begun, g.Total()); err != nil {
		return o, err
	}
	attempts, err := f.attempts(ctx, id)
	if err != nil {
		return o, err
	}
	o.inVain = attempts - g.Total()
	return o, f.tidy(ctx, id)
}

// sum takes the workers' times. If a step was done twice or never, they mean nothing.
func (f *fleet) sum(o *stepOutcome, begun time.Time, n int) error {
	var last time.Time
	var counts []int
	for _, w := range f.workers {
		t := w.jobs.times()
		o.take, o.complete = append(o.take, t.take...), append(o.complete, t.complete...)
		counts = append(counts, len(t.complete))
		if t.last.After(last) {
			last = t.last
		}
	}
	if len(o.take) != n || len(o.complete) != n {
		return fmt.Errorf("%d steps were begun and %d have ended, of %d", len(o.take), len(o.complete), n)
	}
	seconds := last.Sub(begun).Seconds()
	if seconds <= 0 {
		return fmt.Errorf("%d steps have ended before they were all submitted: too few to measure", n)
	}
	o.perSecond = float64(n) / seconds
	for _, c := range counts {
		o.perWorker = append(o.perWorker, float64(c)/seconds)
	}
	slices.Sort(o.perWorker)
	return nil
}

// attempts counts those of a run's steps. A step that has failed is an error.
func (f *fleet) attempts(ctx context.Context, id string) (n int, err error) {
	all, err := store.ReadAll(ctx, f.conn, f.steps.Keys.Steps(id))
	if err != nil {
		return 0, err
	}
	for _, kv := range all.KVs {
		i, err := step.Decode(f.steps.Keys, kv)
		switch {
		case err != nil:
			return 0, err
		case i.Status == step.Failed:
			return 0, fmt.Errorf("attempt %d of %s on %s: %s", i.Attempt, i.Text(), i.Executor.Host, i.Error)
		}
		n += i.Attempt
	}
	return n, nil
}
