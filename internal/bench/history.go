package bench

import (
	"context"
	"errors"
	"fmt"
)

// historySample is how many claims are measured at either end of a history.
const historySample = 50_000

// History compares the throughput after many claims with that at the beginning.
type History struct {
	Claims int `json:"claims"`
	// Sample is how many claims were measured at either end.
	Sample int `json:"sample"`
	// First and Last are claims per second, FirstFloor and LastFloor what the
	// floor did just before.
	First      float64 `json:"first_per_second"`
	Last       float64 `json:"last_per_second"`
	FirstFloor float64 `json:"first_floor_per_second"`
	LastFloor  float64 `json:"last_floor_per_second"`
	// The size of the database, and how much of it is not free pages, in
	// megabytes.
	FirstDatabase float64 `json:"first_database_mb"`
	LastDatabase  float64 `json:"last_database_mb"`
	LastInUse     float64 `json:"last_database_in_use_mb"`
}

// measureHistory compares the throughput after very many claims with that of the
// first.
func (r *Runner) measureHistory(ctx context.Context, row *Row) (err error) {
	own, ref, _, err := r.openLoads(ctx, row.Case)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.Driver.Close(), own.Driver.Close()) }()

	h := &History{Claims: r.Config.History, Sample: min(historySample, r.Config.History/10)}
	if h.First, h.FirstFloor, err = sample(ctx, own, ref, h.Sample); err != nil {
		return err
	}
	if h.FirstDatabase, _, err = r.Database(ctx); err != nil {
		return err
	}
	own.count = h.Claims - h.Sample
	if _, err = own.run(ctx); err != nil {
		return err
	}
	if h.Last, h.LastFloor, err = sample(ctx, own, ref, h.Sample); err != nil {
		return err
	}
	if h.LastDatabase, h.LastInUse, err = r.Database(ctx); err != nil {
		return err
	}
	row.History = h
	return nil
}

// sample measures the floor, and then claims until there are so many.
func sample(ctx context.Context, own, ref Load, claims int) (perSecond, floor float64, err error) {
	f, err := ref.run(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("floor: %w", err)
	}
	own.count = claims
	o, err := own.run(ctx)
	return o.PerSecond, f.PerSecond, err
}
