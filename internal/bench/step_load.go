package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

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
