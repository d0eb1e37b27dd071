package coordinator

import (
	"context"
	"time"

	"github.com/berthhq/berth/coordinator/step"
)

// taskEvery is how often pools of tasks that nothing uses are searched, and how long after the
// last run that uses a pool it is kept for the next.
const taskEvery = 10 * time.Second

// taskDeleter deletes the pools of tasks whose limits runs have declared, and that nothing uses.
// It works asynchronously: ticks do not wait for it.
type taskDeleter struct {
	cfg   Config
	asked chan step.TaskUse
	// at is when the pools were last searched. It belongs to the leader's loop.
	at time.Time
}

func newTaskDeleter(cfg Config) *taskDeleter {
	return &taskDeleter{cfg: cfg, asked: make(chan step.TaskUse, 1)}
}

// search has the unused pools deleted, if that is due.
func (d *taskDeleter) search(s *state, now time.Time) {
	if now.Sub(d.at) < taskEvery || len(d.asked) > 0 {
		return
	}
	d.at = now
	if use, known := s.taskUse(now); known {
		d.asked <- use
	}
}

func (d *taskDeleter) run(ctx context.Context) error {
	troubled := false
	steps := step.Store{Backend: d.cfg.Backend, Keys: d.cfg.Keys}
	for {
		select {
		case use := <-d.asked:
			try, cancel := context.WithTimeout(ctx, 5*writeTimeout)
			deleted, err := steps.DeleteUnusedTasks(try, use)
			cancel()
			for _, name := range deleted {
				d.cfg.Logger.Info("deleted the pool of a task: no run uses it", "pool", name)
			}
			if err != nil && ctx.Err() == nil && !troubled { // once in a row
				d.cfg.Logger.Warn("pools of tasks that no run uses could not be deleted, trying again", "error", err)
			}
			troubled = err != nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// taskUse returns which pools are used by runs that have not ended, or only just. It is not
// known if the record of a run cannot be read.
//
// A run whose graph is not known may have declared limits, but not before it was submitted.
func (s *state) taskUse(now time.Time) (use step.TaskUse, known bool) {
	use = step.TaskUse{Pools: map[string]bool{}, Before: s.rev + 1}
	for key := range s.bad {
		if key != s.keys.Limits() {
			return use, false
		}
	}
	for id, r := range s.runs {
		ended := r.Status.Ended()
		if ended && now.Sub(r.EndedAt) >= taskEvery {
			continue
		}
		for name := range r.Pools {
			use.Pools[name] = true
		}
		switch g := s.steps.graphs[id]; {
		case r.Steps == 0:
		case g != nil && s.steps.written[id] > r.Created:
			use.Add(g)
		case !ended:
			use.Before = min(use.Before, r.Created)
		}
	}
	return use, true
}
