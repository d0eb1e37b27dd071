package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

// aroundSteps reads what the waits of a run's instances depend on beside the run, as far
// as any of them waits for it.
func aroundSteps(ctx context.Context, s run.Store, o *step.Overview) (a step.Around, err error) {
	if o.Has(step.Requested) {
		candidates, err := s.Candidates(ctx)
		if err != nil {
			return a, err
		}
		a.Leaderless = len(candidates) == 0
	}
	if !o.Has(step.Scheduled) {
		return a, nil
	}
	found, err := store.ReadAll(ctx, s.Backend, s.Keys.Hosts())
	if err != nil {
		return a, store.Problem("the hosts could not be read", err)
	}
	var seen []lease.PresenceRecord
	for _, kv := range found.KVs {
		h, err := lease.DecodePresence(s.Keys, string(kv.Key), kv.Value)
		if err != nil { // it may be a worker of a newer version
			a.Blind = true
			continue
		}
		seen = append(seen, h)
	}
	active, err := stepsOf(s).Active(ctx)
	if err != nil {
		return a, err
	}
	a.Workers = sidecar.WorkersOf(seen, active)
	pools, err := pool.Read(ctx, s.Backend, s.Keys)
	if err != nil {
		return a, store.Problem("the pools could not be read", err)
	}
	a.Space = pools.Space()
	return a, nil
}

// readWaits reads what the steps of a run wait for.
func readWaits(ctx context.Context, s run.Store, o *step.Overview) ([]*step.Wait, error) {
	a, err := aroundSteps(ctx, s, o)
	if err != nil {
		return nil, err
	}
	return o.Waits(a), nil
}

// holdsOf reads what is in the way of the steps of a run in progress.
func holdsOf(ctx context.Context, s run.Store, r *run.Run) ([]step.Hold, error) {
	if r.Steps == 0 || !r.Status.InProgress() {
		return nil, nil
	}
	o, err := stepsOf(s).Overview(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	waits, err := readWaits(ctx, s, o)
	return o.Holds(waits), err
}

// instanceWait says what an instance waits for, empty if it does not wait.
func instanceWait(ctx context.Context, s run.Store, o *step.Overview, i *step.Instance) (string, error) {
	a, err := aroundSteps(ctx, s, o)
	if err != nil {
		return "", err
	}
	for n := range o.Steps {
		if o.Steps[n].Shape.Name != i.Step {
			continue
		}
		if w := o.WaitOf(n, i, a); w != nil {
			return w.Text, nil
		}
	}
	return "", nil
}

// holdsShown is how many reasons people are shown for what waits of a run.
const holdsShown = 10

// holdsTable shows what is in the way of steps.
func holdsTable(out *page, holds []step.Hold) {
	var rows [][]string
	for _, h := range holds[:min(len(holds), holdsShown)] {
		rows = append(rows, []string{strconv.Itoa(h.Count), strings.Join(few(h.Steps, mostNames), ", "), h.Text})
	}
	out.table("", []string{"WAITING", "OF", "FOR"}, rows)
	if more := len(holds) - holdsShown; more > 0 {
		out.line("… and %d more", more)
	}
}

// holdText says in a line of progress what is in the way: nothing while it comes and
// goes with what runs.
func (v *runView) holdText(fine bool) string {
	holds := v.overview.Holds(v.waits)
	if len(holds) == 0 {
		return ""
	}
	first := holds[0]
	counts, _ := total(v.overview.Steps)
	if !fine && counts[step.Running] > 0 && first.Kind != step.WaitNoWorker && first.Kind != step.WaitCoordinator {
		return ""
	}
	return " (" + first.Text + ")"
}
