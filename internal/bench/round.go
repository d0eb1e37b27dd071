package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/berthhq/berth/internal/instance"
)

// profileLabel states in a CPU profile what is berth's part ("case") and what that of
// its reference ("reference").
const profileLabel = "load"

// Labeled calls a function under a label in profiles.
func Labeled[T any](ctx context.Context, name string, do func(context.Context) (T, error)) (result T, err error) {
	pprof.Do(ctx, pprof.Labels(profileLabel, name), func(ctx context.Context) { result, err = do(ctx) })
	return result, err
}

// Rounds are the outcomes of a load and of its reference, by round.
type Rounds struct{ Reference, Own []Outcome }

// Alternate measures a load in alternation with its reference, which what names.
func Alternate(ctx context.Context, rounds int, own, reference Load, what string) (all Rounds, err error) {
	for range rounds {
		o, err := Labeled(ctx, "reference", reference.Round)
		if err != nil {
			return all, fmt.Errorf("%s: %w", what, err)
		}
		all.Reference = append(all.Reference, o)
		if o, err = Labeled(ctx, "case", own.Round); err != nil {
			return all, err
		}
		all.Own = append(all.Own, o)
	}
	return all, nil
}

// Ratio is the throughput as a multiple of the reference's.
func (a Rounds) Ratio() *Spread {
	return a.compare(func(ref, own Outcome) float64 { return own.PerSecond / ref.PerSecond })
}

// ClaimToPut is the p50 of claims as a multiple of that of the reference's.
func (a Rounds) ClaimToPut() *Spread {
	return a.compare(func(ref, own Outcome) float64 { return P50(own.Claim) / P50(ref.Claim) })
}

func (a Rounds) transferToPut() *Spread {
	return a.compare(func(ref, own Outcome) float64 { return P50(own.transfer) / P50(ref.Claim) })
}

// used is the share of the time of so many slots in which they were in use.
func (a Rounds) used(slots int) *Spread {
	return a.compare(func(_, own Outcome) float64 { return own.inUse / float64(slots) })
}

func (a Rounds) compare(figure func(ref, own Outcome) float64) *Spread {
	var values []float64
	for i, own := range a.Own {
		values = append(values, figure(a.Reference[i], own))
	}
	return SpreadOf(values)
}

// Combine returns the median throughput of loads and the samples of all.
func Combine(all []Outcome) Outcome {
	var o Outcome
	var rates []float64
	for _, each := range all {
		rates = append(rates, each.PerSecond)
		o.Claim = append(o.Claim, each.Claim...)
		o.Release = append(o.Release, each.Release...)
		o.held = append(o.held, each.held...)
		o.transfer = append(o.transfer, each.transfer...)
		o.waiting = append(o.waiting, each.waiting...)
		o.withoutSlot = max(o.withoutSlot, each.withoutSlot)
	}
	o.PerSecond = Median(rates)
	return o
}

// ReferenceOf returns the figures of a reference from its rounds.
func ReferenceOf(what string, rounds []Outcome) *Reference {
	o := Combine(rounds)
	return &Reference{What: what, PerSecond: o.PerSecond, Put: Summarize(o.Claim), Delete: Summarize(o.Release)}
}

// measureRounds measures a case in alternation with its reference.
func (r *Runner) measureRounds(ctx context.Context, row *Row) (err error) {
	own, ref, what, err := r.openLoads(ctx, row.Case)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.Driver.Close(), own.Driver.Close()) }()
	all, err := Alternate(ctx, r.Rounds, own, ref, what)
	if err == nil {
		row.fill(what, all)
	}
	return err
}

// fill computes the figures of a row from its rounds.
func (r *Row) fill(what string, all Rounds) {
	own := Combine(all.Own)
	r.Reference = ReferenceOf(what, all.Reference)
	r.PerSecond, r.Ratio = own.PerSecond, all.Ratio()
	r.Claim, r.Release = Summarize(own.Claim), Summarize(own.Release)
	r.ClaimToPut = all.ClaimToPut()
	if r.Hold > 0 {
		r.Held = Summarize(own.held)
	}
	if r.Kind == uneven {
		r.Wait = &Wait{Longest: r.Claim.Max, Fair: Millis(r.fairWait()), WithoutSlot: Millis(own.withoutSlot)}
	}
	if r.slots() > 0 {
		r.Transfer, r.Used, r.TransferToPut = Summarize(own.transfer), all.used(r.slots()), all.transferToPut()
	}
}

// openLoads makes the load of a case and the load that it is compared with, and names
// the latter.
func (r *Runner) openLoads(ctx context.Context, c Case) (own, ref Load, what string, err error) {
	if err := r.openPools(ctx, c); err != nil {
		return own, ref, "", err
	}
	own = Load{Clients: c.Clients, Hold: c.Hold, slots: c.slots(), Duration: r.Duration * time.Duration(c.factor)}
	own.Driver, err = Labeled(ctx, "case", func(ctx context.Context) (Driver, error) {
		if c.API == HTTPAPI {
			return r.openSidecars(ctx, c.Hosts, c.claim())
		}
		return r.openInstances(ctx, c.Hosts, c.claim())
	})
	if err != nil {
		return own, ref, "", err
	}
	if d, ok := own.Driver.(*instances); ok && c.Kind == uneven {
		own.host, d.host = c.host, c.host
	}
	switch c.Kind {
	case bigLimit:
		return own, smallLimit(own), fmt.Sprintf("limit %d", ampleLimit), nil
	case transfer:
		what = "floor/1c/1h"
		ref, err = r.SlowFloor(own)
	default:
		what = fmt.Sprintf("floor/%dc/%dh", c.Clients, c.Hosts)
		ref, err = r.Floor(c.Clients, c.Hosts)
	}
	if err != nil {
		err = errors.Join(err, own.Driver.Close())
	}
	return own, ref, what, err
}

// openPools creates the pools that a case needs.
func (r *Runner) openPools(ctx context.Context, c Case) error {
	err := r.SetPools(ctx, c.pools(), c.Limit)
	if err == nil && c.Kind == bigLimit {
		err = r.SetPools(ctx, []string{smallPool}, ampleLimit)
	}
	return err
}

// smallPool is the pool that one with a huge limit is compared with.
const smallPool = "bench-small"

// smallLimit returns the same load on that pool, through the same instances: others
// would have to follow both pools.
func smallLimit(own Load) Load {
	d := own.Driver.(*instances)
	own.Driver = d.borrow(len(d.clients), instance.Slots{smallPool: 1})
	return own
}
