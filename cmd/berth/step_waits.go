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
)

// outlookOf is how the commands see what the waits of instances depend on: all of it is read
// from etcd.
func outlookOf(s run.Store) *step.Outlook {
	return &step.Outlook{
		Candidates: s.Candidates,
		Workers:    func(ctx context.Context) ([]step.Worker, bool, error) { return seenWorkers(ctx, s) },
		Space: func(ctx context.Context) (*pool.Space, error) {
			pools, err := pool.Read(ctx, s.Backend, s.Keys)
			if err != nil {
				return nil, store.Problem("the pools could not be read", err)
			}
			return pools.Space(), nil
		},
	}
}

// seenWorkers reads which workers are seen, and whether there may be others.
func seenWorkers(ctx context.Context, s run.Store) (workers []step.Worker, blind bool, err error) {
	found, err := store.ReadAll(ctx, s.Backend, s.Keys.Hosts())
	if err != nil {
		return nil, false, store.Problem("the hosts could not be read", err)
	}
	var seen []lease.PresenceRecord
	for _, kv := range found.KVs {
		h, err := lease.DecodePresence(s.Keys, string(kv.Key), kv.Value)
		if err != nil { // it may be a worker of a newer version
			blind = true
			continue
		}
		seen = append(seen, h)
	}
	active, err := stepsOf(s).Active(ctx)
	if err != nil {
		return nil, false, err
	}
	states, _, err := stepsOf(s).WorkerStates(ctx)
	return step.WorkersOf(seen, active, states), blind, err
}

// readWaits reads what the steps of a run wait for.
func readWaits(ctx context.Context, s run.Store, o *step.Overview) ([]*step.Wait, error) {
	a, err := outlookOf(s).Around(ctx, o.Has)
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
	a, err := outlookOf(s).Around(ctx, o.Has)
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
	text, _, _ := strings.Cut(first.Text, " (in ") // which would be told anew each second
	if first.Kind != step.WaitNotBefore {
		text = first.Text
	}
	return " (" + text + ")"
}
