//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/store"
)

// The kinds of load of steps. What each is compared with is in brackets.
const (
	baseline  = "baseline"  // no limit exists (the floor of claims)
	unlimited = "unlimited" // steps name a task that has no limit, others have one (no task)
	limited   = "enabled"   // all are of one task, whose limit does not bind (no task)
	mixed     = "mixed"     // one of a hundred is of such a task (no task)
	binding   = "binding"   // all are of one task, whose limit binds (no task)
	highest   = "high"      // as enabled, with more workers, steps and slots (no task)
	few       = "few"       // as enabled, with as many steps at a time in all as the limit of binding (no task)
	busy      = "busy"      // as enabled, with different numbers of workers, which are all full (no task)
	paced     = "paced"     // as busy, but few steps are published at a time (no task)
)

const (
	// stepWorkers × stepConcurrency is the usual size: so many workers, each with so
	// many instances at a time.
	stepWorkers, stepConcurrency = 4, 10
	// highWorkers × highConcurrency is in flight at most under highLimit, which is more
	// than twice that, so that it does not bind.
	highWorkers, highConcurrency, highLimit = 8, 30, 500
	// looseLimit is twice what is in flight at the usual size, and does not bind: an
	// instance that has ended releases its slot while the next is being taken.
	looseLimit = 2 * stepWorkers * stepConcurrency
	// tightLimit is a quarter of what would be in flight.
	tightLimit = 10
	// mixedOf is how many steps there are for one that is limited.
	mixedOf = 100
	// floorClients is how many clients the floor has that the baseline is compared
	// with.
	floorClients = 64
	// stepRetries let a load end well in which an attempt is lost: how many were is
	// reported.
	stepRetries = 3
	// pacedWindow × pacedStep are the paced steps: so many are published or running at a
	// time, and each takes so long, so that most places of the workers are free.
	pacedWindow, pacedStep = 32, 200 * time.Millisecond
	// pacedShare is the part of the usual steps that are done so slowly.
	pacedShare = 10
	// maxWorkers bounds the workers of a case.
	maxWorkers = 256
	// singleShare is the part of the usual steps that a worker does with one at a time.
	singleShare = 10
)

// workerNumbers are the numbers of workers that share a queue in the cases busy and paced.
var workerNumbers = []int{4, 8, 16, 32, 64}

// limitedTask is the task that has a limit, and freeTask one that has none.
const limitedTask, freeTask = "limited", "free"

// Bounds and defaults of the number of steps in a load. The case with the most workers
// has more: fullHighSteps with --full, quickHighSteps with --quick.
const (
	minSteps         = mixedOf
	maxSteps         = step.MaxItems
	defaultSteps     = 10_000
	quickSteps       = 2_000
	defaultHighSteps = 20_000
	quickHighSteps   = 4_000
	fullHighSteps    = 100_000
)

// stepsSuite measures steps.
func stepsSuite() suite {
	return suite{
		name: "steps", usage: "measure steps and workers, without limits of tasks and with them",
		description: "Runs of steps that do nothing: no process is started for them. Each case runs in\n" +
			"alternation with the same steps without a task on the same workers; the baseline,\n" +
			"for which no limit exists, with the floor of claims at 64 clients.\n\n" +
			"  baseline   4 workers, 10 at a time (4w/10r); no pool exists\n" +
			"  unlimited  the steps name a task that has no limit, where another one has\n" +
			"  enabled    all are of one task with limit 80: twice what is in flight, since a\n" +
			"             slot is released while the next is taken. It does not bind\n" +
			"  mixed      1 of 100 is of a task with limit 10, evenly among the others\n" +
			"  binding    all are of one task with limit 10, a quarter of what could run\n" +
			"  few        enabled, with places for 10 in all: what binding is compared with\n" +
			"  1w/1r      enabled, one at a time: what a slot adds where nothing is shared\n" +
			"  high       8 workers, 30 at a time, one task with limit 500, which does not bind\n" +
			"  busy       4 to 64 workers, 10 at a time, one task with a limit that does not bind:\n" +
			"             what a step costs if more workers share a queue\n" +
			"  paced      the same with steps that take about 200ms, 32 of them at a time: most places\n" +
			"             are free, and workers are woken for single steps\n\n" +
			"Workers and the coordinator run in this process, each on connections and under a\n" +
			"host name of its own. All writes of the etcd are counted, also those of others.",
		flags: append(bench.Flags("measure only what has a target, in 3 rounds of 2,000 steps, and 4,000 for 8 workers",
			"`TIME` of the floor in a round; steps take as long as they take", "enabled/4w/10r"),
			&cli.IntFlag{Name: "steps", Value: defaultSteps, Usage: "`NUMBER` of steps in each load of 4 workers, 100 to 100000"},
			&cli.IntSliceFlag{Name: "workers", Value: cli.NewIntSlice(workerNumbers...), Usage: "`NUMBERS` of workers of the cases busy and paced, comma-separated"},
			&cli.IntFlag{Name: "queues", Value: 1, Usage: "`NUMBER` of queues of the cases busy and paced; each worker takes from one"},
			&cli.BoolFlag{Name: "full", Usage: fmt.Sprintf("give 8 workers %d steps, not %d", fullHighSteps, defaultHighSteps)},
		),
		config: rowsConfig,
		plan: ofRows(func(c *cli.Context, cfg *bench.Config) ([]*row, error) {
			steps, high := stepNumbers(c)
			return stepRows(cfg, steps, high, c.IntSlice("workers"), c.Int("queues"))
		}, writeSteps),
	}
}

// stepNumbers returns how many steps a load has, and how many that of the case with the
// most workers.
func stepNumbers(c *cli.Context) (steps, high int) {
	steps, high = c.Int("steps"), defaultHighSteps
	if c.Bool("quick") {
		high = quickHighSteps
		if !c.IsSet("steps") {
			steps = quickSteps
		}
	}
	if c.Bool("full") {
		high = fullHighSteps
	}
	return steps, high
}

// stepRows returns the rows of steps that the configuration selects. Those of the kinds busy
// and paced are for each number of workers, which share so many queues evenly.
func stepRows(cfg *bench.Config, steps, high int, workers []int, queues int) ([]*row, error) {
	if err := errors.Join(cfg.Fill(), bench.InRange("steps", steps, minSteps, maxSteps)); err != nil {
		return nil, err
	}
	for _, n := range workers {
		if err := errors.Join(bench.InRange("workers", n, 1, maxWorkers), bench.InRange("queues", queues, 1, min(n, pacedWindow))); err != nil {
			return nil, err
		}
	}
	usual := func(kind string, limit int) *row { return stepRow(kind, stepWorkers, stepConcurrency, steps, limit) }
	rows := []*row{
		usual(baseline, 0),
		usual(unlimited, looseLimit),
		usual(limited, looseLimit),
		usual(mixed, tightLimit),
		usual(binding, tightLimit),
		fewRow(steps),
		stepRow(limited, 1, 1, max(minSteps, steps/singleShare), looseLimit),
		stepRow(highest, highWorkers, highConcurrency, high, highLimit),
	}
	for _, n := range workers {
		rows = append(rows, stepRow(busy, n, stepConcurrency, steps, 2*n*stepConcurrency).over(queues))
	}
	for _, n := range workers {
		r := stepRow(paced, n, stepConcurrency, max(minSteps, steps/pacedShare), 2*n*stepConcurrency).over(queues)
		r.Window, r.Hold, r.StepMS = pacedWindow, pacedStep, bench.Millis(pacedStep)
		rows = append(rows, r)
	}
	return selected(cfg, rows)
}

func stepRow(kind string, workers, concurrency, steps, limit int) *row {
	return &row{
		Row: bench.Row{Case: bench.Case{
			Name: fmt.Sprintf("%s/%dw/%dr", kind, workers, concurrency), Kind: kind, Limit: limit,
		}},
		Workers: workers, Concurrency: concurrency, Steps: steps,
	}
}

// fewRow returns the row whose workers have as many places in all as the limit of binding.
func fewRow(steps int) *row {
	most := (tightLimit + stepWorkers - 1) / stepWorkers
	r := stepRow(few, stepWorkers, most, steps, 2*stepWorkers*most)
	r.Name, r.Places = fmt.Sprintf("%s/%dw", few, stepWorkers), tightLimit
	return r
}

// placesOf returns how many steps the i-th worker runs at a time.
func (r *row) placesOf(i int) int {
	if r.Places > 0 {
		return bench.Share(r.Places, r.Workers, i)
	}
	return r.Concurrency
}

// over spreads a row over queues.
func (r *row) over(queues int) *row {
	if queues > 1 {
		r.Name, r.Queues = fmt.Sprintf("%s/%dq", r.Name, queues), queues
	}
	return r
}

// queue names the queue of the i-th worker, or step.
func (r *row) queue(i int) string {
	if r.Queues == 0 {
		return step.DefaultQueue
	}
	return fmt.Sprintf("bench-%d", i%r.Queues)
}

// specs spreads the steps that a function returns over the queues of the row.
func (r *row) specs(of func(kind string, n int) []step.Spec) func(kind string, n int) []step.Spec {
	if r.Queues == 0 {
		return of
	}
	return func(kind string, n int) []step.Spec {
		var all []step.Spec
		for i := range r.Queues {
			for _, s := range of(kind, bench.Share(n, r.Queues, i)) {
				s.Name, s.Queue = fmt.Sprintf("%s-%d", s.Name, i), r.queue(i)
				s.Concurrency = bench.Share(s.Concurrency, r.Queues, i)
				all = append(all, s)
			}
		}
		return all
	}
}

// stepSpecs are the steps of a run of n instances.
func stepSpecs(kind string, n int) []step.Spec {
	switch kind {
	case unlimited:
		return []step.Spec{fanOf("steps", n, freeTask)}
	case limited, binding, few, highest, busy:
		return []step.Spec{fanOf("steps", n, limitedTask)}
	case paced:
		spec := fanOf("steps", n, limitedTask)
		spec.Concurrency = pacedWindow
		return []step.Spec{spec}
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

// mixedSpecs returns steps of which one of a hundred is limited, evenly among the
// others: a run's steps are taken in their order, so each hundred are two steps.
func mixedSpecs(n int) []step.Spec {
	var specs []step.Spec
	pieces := min(max(1, n/mixedOf), step.MaxSteps/2)
	for i := range pieces {
		size := bench.Share(n, pieces, i)
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

// stepPool returns the pool of a case, that of the limited task. Without a limit there
// is none.
func (r *row) stepPool() string {
	if r.Limit == 0 {
		return ""
	}
	return step.TaskPool(limitedTask)
}

// stepRound is a round of steps: the reference, which for the baseline is the floor, and
// the case.
type stepRound struct {
	floor    bench.Outcome
	ref, own stepOutcome
}

// measureSteps measures a case in alternation with the same without limits, on the same
// workers; the baseline with the floor.
func (r *runner) measureSteps(ctx context.Context, row *row) (err error) {
	f, err := bench.Labeled(ctx, "case", func(ctx context.Context) (*fleet, error) { return r.openFleet(ctx, row) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	var floor bench.Load
	if row.Kind == baseline {
		if floor, err = r.Floor(floorClients, 1); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, floor.Driver.Close()) }()
	}
	idle, err := r.MeasureIdle(ctx, f.meter)
	if err != nil {
		return err
	}
	before, err := ownMemory()
	if err != nil {
		before = memoryUse{} // not known on this system
	}
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // resets the peak
	var rounds []stepRound
	for range r.Rounds {
		p, err := r.measureRound(ctx, row, f, floor)
		if err != nil {
			return err
		}
		rounds = append(rounds, p)
	}
	row.fillSteps(rounds, idle)
	return r.fillSizes(ctx, row.StepLoads, before)
}

func (r *runner) measureRound(ctx context.Context, row *row, f *fleet, floor bench.Load) (p stepRound, err error) {
	if row.Kind == baseline {
		if p.floor, err = bench.Labeled(ctx, "reference", floor.Round); err != nil {
			return p, fmt.Errorf("floor: %w", err)
		}
	} else {
		p.ref, err = bench.Labeled(ctx, "reference", func(ctx context.Context) (stepOutcome, error) {
			return f.load(ctx, row.Kind, row.Steps, row.specs(plainSpecs))
		})
		if err != nil {
			return p, fmt.Errorf("without limits: %w", err)
		}
	}
	p.own, err = bench.Labeled(ctx, "case", func(ctx context.Context) (stepOutcome, error) {
		return f.load(ctx, row.Kind, row.Steps, row.specs(stepSpecs))
	})
	return p, err
}

const (
	// stepPatience is how long a load may take, and stepPatienceEach how long for each
	// step.
	stepPatience     = time.Minute
	stepPatienceEach = 10 * time.Millisecond
	// warmSteps is the part of a load that is run before it, and does not count: then
	// the work of the load before is finished, and leases exist.
	warmSteps = 10
)

// stepOutcome is what was measured of one load.
type stepOutcome struct {
	perSecond      float64
	perWorker      []float64
	take, complete []time.Duration
	published      []time.Duration // until begun
	counts         stepCounts      // from the submission to the last release
	released       int             // claims of slots that were released
	inVain         int             // attempts that did not end well
}

// load runs n steps in a run, after some that do not count.
func (f *fleet) load(ctx context.Context, kind string, n int, specs func(kind string, n int) []step.Spec) (stepOutcome, error) {
	if _, err := f.once(ctx, specs(kind, max(minSteps, n/warmSteps))); err != nil {
		return stepOutcome{}, err
	}
	return f.once(ctx, specs(kind, n))
}

// once runs steps, and waits until none of them is left.
func (f *fleet) once(ctx context.Context, specs []step.Spec) (o stepOutcome, err error) {
	g, err := step.NewGraph(specs)
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepPatience+time.Duration(g.Total())*stepPatienceEach)
	defer cancel()
	if err := f.idle(ctx); err != nil {
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
	if err := f.idle(ctx); err != nil {
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

// sum adds the workers' times. If a step was done twice or never, they mean nothing.
func (f *fleet) sum(o *stepOutcome, begun time.Time, n int) error {
	var last time.Time
	var counts []int
	for _, w := range f.workers {
		t := w.jobs.times()
		o.take, o.complete = append(o.take, t.take...), append(o.complete, t.complete...)
		o.published = append(o.published, t.published...)
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

// attempts counts the attempts of a run's steps. A step that has failed is an error.
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
