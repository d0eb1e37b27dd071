package inspect

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/revoke"
)

// Reader reads the state of berth. Its parts are read one after another, so what it
// returns of two of them can differ by what happened between.
type Reader struct {
	Source
	Runs  run.Store
	Steps step.Store
	// Audit records the actions of operators.
	Audit audit.Log
}

// Source is where a [Reader] reads pools and instances, and an [Operator] changes pools: a
// client of berth shares what it reads with other callers, and a [Snapshot] reads etcd for each.
type Source interface {
	audit.Source
	Pools(context.Context) ([]pool.Status, error)
	Claims(context.Context) ([]pool.HolderStatus, []pool.WaiterStatus, error)
	Space(context.Context) (*pool.Space, error)
	// Hosts returns the instances that have a presence key. The error is also about
	// keys that can't be read: they are left out of the list, which is not empty then.
	Hosts(context.Context) ([]lease.PresenceRecord, error)
	LeaseEnds(context.Context, []store.LeaseID) (map[store.LeaseID]time.Duration, error)
}

// Snapshot is the [Source] of processes that are no instance: each method reads etcd.
type Snapshot struct {
	Backend store.Backend
	Keys    store.Keys
}

// Read reads all pools at one revision.
func (s Snapshot) Read(ctx context.Context) (*list.State, error) {
	r, err := list.Read(ctx, s.Backend, s.Keys)
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	return r, nil
}

// Pools implements [Source].
func (s Snapshot) Pools(ctx context.Context) ([]pool.Status, error) {
	r, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	return r.Pools(), nil
}

// Pool implements [Source].
func (s Snapshot) Pool(ctx context.Context, name string) (pool.Detail, error) {
	r, err := s.Read(ctx)
	if err != nil {
		return pool.Detail{}, err
	}
	return r.Pool(name)
}

// Claims implements [Source].
func (s Snapshot) Claims(ctx context.Context) ([]pool.HolderStatus, []pool.WaiterStatus, error) {
	r, err := s.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	holders, waiters := r.Claims()
	return holders, waiters, nil
}

// Why implements [Source].
func (s Snapshot) Why(ctx context.Context, claim string) (pool.Why, error) {
	r, err := s.Read(ctx)
	if err != nil {
		return pool.Why{}, err
	}
	return r.Why(claim)
}

// Space implements [Source].
func (s Snapshot) Space(ctx context.Context) (*pool.Space, error) {
	r, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	return r.Space(), nil
}

// Hosts implements [Source].
func (s Snapshot) Hosts(ctx context.Context) ([]lease.PresenceRecord, error) {
	return lease.Instances(ctx, s.Backend, s.Keys)
}

// LeaseEnds implements [Source].
func (s Snapshot) LeaseEnds(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error) {
	return lease.Ends(ctx, s.Backend, ids)
}

func (s Snapshot) registry() registry.Registry {
	return registry.Registry{Backend: s.Backend, Keys: s.Keys}
}

// SetPool implements [Source].
func (s Snapshot) SetPool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	return s.registry().Set(ctx, name, change)
}

// ChangePool implements [Source].
func (s Snapshot) ChangePool(ctx context.Context, name string, change pool.Change) (pool.Put, error) {
	return s.registry().Change(ctx, name, change)
}

// DeletePool implements [Source].
func (s Snapshot) DeletePool(ctx context.Context, name string, condition store.Condition) error {
	_, err := s.registry().Delete(ctx, name, condition)
	return err
}

// Revoke implements [Source].
func (s Snapshot) Revoke(ctx context.Context, claim string, force bool, may ...pool.May) (pool.Revocation, error) {
	return revoke.Revoker{Backend: s.Backend, Keys: s.Keys}.Revoke(ctx, claim, force, may...)
}

// NewReader returns a [Reader] of a source. Logger logs the actions of operators; it may be
// nil.
func NewReader(s Source, runs run.Store, steps step.Store, logger hclog.Logger) *Reader {
	return &Reader{
		Source: s, Runs: runs, Steps: steps,
		Audit: audit.Log{Backend: runs.Backend, Keys: runs.Keys, Retention: runs.Journal.Retention(), Logger: logger},
	}
}

// NewSnapshot returns a [Reader] that reads etcd. Its stores write with the journal.
func NewSnapshot(runs run.Store) *Reader {
	steps := step.Store{Backend: runs.Backend, Keys: runs.Keys, Journal: runs.Journal, Group: &store.Group{}}
	return NewReader(Snapshot{runs.Backend, runs.Keys}, runs, steps, nil)
}

// Detail returns a pool with its holders and waiters. When the leases of holders end
// is left out as far as etcd does not report it in time.
func (r *Reader) Detail(ctx context.Context, name string) (PoolDetail, error) {
	p, err := r.Pool(ctx, name)
	if err != nil {
		return PoolDetail{}, err
	}
	shown := p.Holders[:min(len(p.Holders), MaxListed)]
	ids := make([]store.LeaseID, len(shown))
	for i, h := range shown {
		ids[i] = h.Lease
	}
	ends, _ := r.LeaseEnds(ctx, ids) // the record counts what is missing
	return PoolDetailOf(p, ends), nil
}

// WhyRun explains what a run waits for. An unknown run is a RunNotFound problem.
func (r *Reader) WhyRun(ctx context.Context, id string) (RunWhy, error) {
	one, err := r.Runs.Get(ctx, id)
	if err != nil {
		return RunWhy{}, err
	}
	w := &run.Why{Run: one}
	if one.Status == run.Queued {
		if w, err = r.whyQueued(ctx, one); err != nil {
			return RunWhy{}, err
		}
	}
	holds, err := r.holds(ctx, w.Run)
	if err != nil {
		return RunWhy{}, err
	}
	why := RunWhyOf(w, holds)
	if b := w.Run.Block; one.Status == run.Queued && b != nil && b.Kind == run.BlockPool {
		why.Holders, err = r.holders(ctx, w.Run.Pools)
	}
	return why, err
}

// maxHolders bounds the holders that are named of one pool.
const maxHolders = 10

// holders returns the holders of pools that have too few free slots for a claim.
func (r *Reader) holders(ctx context.Context, slots map[string]int) (all []HolderRef, err error) {
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		p, err := r.Pool(ctx, name)
		switch {
		case problem.CodeOf(err) == problem.PoolNotFound:
			continue
		case err != nil:
			return nil, err
		case p.Limit == pool.Unlimited || p.Claimed+slots[name] <= p.Limit:
			continue
		}
		for _, h := range p.Holders[:min(len(p.Holders), maxHolders)] {
			all = append(all, HolderRef{Pool: name, Claim: h.Claim, Host: h.Host, RunID: h.Run, StepKey: h.Step, Slots: h.Slots})
		}
	}
	return all, nil
}

func (r *Reader) whyQueued(ctx context.Context, one *run.Run) (*run.Why, error) {
	all, err := r.Runs.Others(ctx, one.ID)
	if err != nil {
		return nil, err
	}
	space, err := r.Space(ctx)
	if err != nil {
		return nil, err
	}
	if w := all.Why(one.ID, space, time.Now()); w != nil {
		return w, nil
	}
	one, err = r.Runs.Get(ctx, one.ID) // it was deleted, or can't be read any more
	return &run.Why{Run: one}, err
}

// Outlook returns how the reader sees what the waits of step instances depend on.
func (r *Reader) Outlook() *step.Outlook {
	return &step.Outlook{
		Candidates: r.Runs.Candidates,
		Workers: func(ctx context.Context) ([]step.Worker, bool, error) {
			f, err := r.fleet(ctx)
			if err != nil {
				return nil, false, err
			}
			return f.StepWorkers(), len(f.Bad) > 0, nil
		},
		Space: r.Space,
	}
}

// Waits returns what the steps of a run wait for: nil for a step that does not wait.
func (r *Reader) Waits(ctx context.Context, o *step.Overview) ([]*step.Wait, error) {
	a, err := r.Outlook().Around(ctx, o.Has)
	if err != nil {
		return nil, err
	}
	return o.Waits(a), nil
}

// holds returns what the steps of a run in progress wait for.
func (r *Reader) holds(ctx context.Context, one *run.Run) ([]step.Hold, error) {
	if one.Steps == 0 || !one.Status.InProgress() {
		return nil, nil
	}
	o, err := r.Steps.Overview(ctx, one.ID)
	if err != nil {
		return nil, err
	}
	waits, err := r.Waits(ctx, o)
	return o.Holds(waits), err
}

const (
	// maxExplained bounds the runs of a list whose steps are read, and maxExplainedSteps
	// the step instances of such a run: all of their states are read.
	maxExplained, maxExplainedSteps = 20, 1000
)

// Explain adds to the runs of a list what their steps wait for. It reads the first
// [maxExplained] of them that are in progress and small enough.
func (r *Reader) Explain(ctx context.Context, runs []Run) error {
	var around *step.Around
	explained := 0
	for i := range runs {
		one := &runs[i]
		if one.Steps == 0 || one.Steps > maxExplainedSteps || !run.Status(one.Status).InProgress() || explained == maxExplained {
			continue
		}
		explained++
		if around == nil {
			a, err := r.Outlook().Around(ctx, func(step.Status) bool { return true })
			if err != nil {
				return err
			}
			around = &a
		}
		o, err := r.Steps.Overview(ctx, one.ID)
		switch {
		case problem.CodeOf(err) == problem.RunNotFound, problem.CodeOf(err) == problem.CorruptValue:
			continue // it was deleted since, or its own page says what can't be read
		case err != nil:
			return err
		}
		one.SetHolds(o.Holds(o.Waits(*around)))
	}
	return nil
}
