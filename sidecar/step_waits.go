package sidecar

import (
	"context"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/lease"
)

// WorkersOf are the workers among the instances that are seen, with what they execute.
func WorkersOf(seen []lease.PresenceRecord, active []step.Active) (workers []step.Worker) {
	counts := activeByName(active)
	for _, h := range seen {
		if h.Capacity > 0 {
			workers = append(workers, step.Worker{Queues: h.Queues, Capacity: h.Capacity, Active: counts[[2]string{h.Host, h.Instance}].Steps})
		}
	}
	return workers
}

func activeByName(active []step.Active) map[[2]string]step.Active {
	counts := make(map[[2]string]step.Active, len(active))
	for _, a := range active {
		counts[[2]string{a.Host, a.Instance}] = a
	}
	return counts
}

// around is what the waits of a run's instances depend on, as far as it can be had and
// they have any of the statuses.
func (s *session) around(ctx context.Context, has func(step.Status) bool) (a step.Around, err error) {
	if has(step.Requested) {
		candidates, err := s.runs.store.Candidates(ctx)
		if err != nil {
			return a, err
		}
		a.Leaderless = len(candidates) == 0
	}
	if !has(step.Scheduled) {
		return a, nil
	}
	seen, err := s.client.Hosts(ctx)
	if err != nil && len(seen) == 0 {
		return a, err
	}
	a.Blind = err != nil // one that can't be read may be a worker
	active, err := s.runs.steps.Active(ctx)
	if err != nil {
		return a, err
	}
	a.Workers = WorkersOf(seen, active)
	a.Space, err = s.client.Space(ctx)
	return a, err
}

// waits are what the steps of a run wait for.
func (s *session) waits(ctx context.Context, o *step.Overview) ([]*step.Wait, error) {
	a, err := s.around(ctx, o.Has)
	if err != nil {
		return nil, err
	}
	return o.Waits(a), nil
}

// StepsWaiting is [StepsOf] with what the steps wait for.
func StepsWaiting(o *step.Overview, waits []*step.Wait) StepList {
	list := StepsOf(o)
	for n, w := range waits {
		if w != nil {
			list.Items[n].BlockReason, list.Items[n].BlockKind = w.Text, string(w.Kind)
		}
	}
	return list
}

// StepHoldsOf tells what is in the way of steps.
func StepHoldsOf(holds []step.Hold) (all []StepHold) {
	for _, h := range holds {
		all = append(all, StepHold{Steps: h.Steps, Instances: h.Count, BlockReason: h.Text, BlockKind: string(h.Kind)})
	}
	return all
}

// holds are what is in the way of the steps of a run in progress.
func (s *session) holds(ctx context.Context, r *run.Run) ([]step.Hold, error) {
	if r.Steps == 0 || !r.Status.InProgress() {
		return nil, nil
	}
	o, err := s.runs.steps.Overview(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	waits, err := s.waits(ctx, o)
	return o.Holds(waits), err
}
