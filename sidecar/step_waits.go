package sidecar

import (
	"context"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// outlook is how this session sees what the waits of instances depend on.
func (s *session) outlook() *step.Outlook {
	return &step.Outlook{Candidates: s.runs.store.Candidates, Workers: s.workers, Space: step.SpaceOf(s.client)}
}

// workers are those that are seen, and whether there may be others.
func (s *session) workers(ctx context.Context) (workers []step.Worker, blind bool, err error) {
	seen, err := s.client.Hosts(ctx)
	if err != nil && len(seen) == 0 {
		return nil, false, err
	}
	blind = err != nil // one that can't be read may be a worker
	active, err := s.runs.steps.Active(ctx)
	if err != nil {
		return nil, false, err
	}
	states, _, err := s.runs.steps.WorkerStates(ctx)
	return step.WorkersOf(seen, active, states), blind, err
}

// waits are what the steps of a run wait for.
func (s *session) waits(ctx context.Context, o *step.Overview) ([]*step.Wait, error) {
	a, err := s.outlook().Around(ctx, o.Has)
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
