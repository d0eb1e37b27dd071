package bench

import (
	"context"
	"errors"
	"fmt"
)

const (
	// historySample is how many claims are measured at either end of a history.
	historySample = 50_000
	// minHistory makes the two ends worth comparing.
	minHistory = 100
)

// measureHistory compares the throughput after very many claims with that of
// the first.
func (r *runner) measureHistory(ctx context.Context, row *Row) (err error) {
	own, err := r.openCase(ctx, row.Case)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.door.close()) }()
	ref, _, err := r.openReference(row.Case, own)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.door.close()) }()

	h := &History{Claims: r.cfg.History, Sample: min(historySample, r.cfg.History/10)}
	if h.First, h.FirstFloor, err = sample(ctx, own, ref, h.Sample); err != nil {
		return err
	}
	if h.FirstDatabase, _, err = r.database(ctx); err != nil {
		return err
	}
	own.count = h.Claims - h.Sample
	if _, err = own.run(ctx); err != nil {
		return err
	}
	if h.Last, h.LastFloor, err = sample(ctx, own, ref, h.Sample); err != nil {
		return err
	}
	if h.LastDatabase, h.LastInUse, err = r.database(ctx); err != nil {
		return err
	}
	row.History = h
	return nil
}

// sample measures the floor and then so many claims.
func sample(ctx context.Context, own, ref load, claims int) (perSecond, floor float64, err error) {
	f, err := ref.run(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("floor: %w", err)
	}
	own.count = claims
	o, err := own.run(ctx)
	return o.perSecond, f.perSecond, err
}

// database returns the size of the first endpoint's database in megabytes, and
// how much of that is in use.
func (r *runner) database(ctx context.Context) (size, inUse float64, err error) {
	s, err := r.status(ctx)
	if err != nil {
		return 0, 0, err
	}
	return float64(s.DbSize) / (1 << 20), float64(s.DbSizeInUse) / (1 << 20), nil
}
