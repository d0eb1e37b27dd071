package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
)

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
