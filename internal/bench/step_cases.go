package bench

import (
	"fmt"

	"github.com/berthhq/berth/coordinator/step"
)

// The kinds of load of steps. What each is compared with is in brackets.
const (
	baseline  = "baseline"  // no limit exists (the floor of claims)
	unlimited = "unlimited" // steps name a task that has no limit, others have one (no task)
	limited   = "enabled"   // all are of one task, whose limit does not bind (no task)
	mixed     = "mixed"     // one of a hundred is of such a task (no task)
	binding   = "binding"   // all are of one task, whose limit binds (no task)
	high      = "high"      // as enabled, with more workers, steps and slots (no task)
)

const (
	// stepWorkers × stepRoom is the usual size: so many workers, each with so many
	// instances at a time.
	stepWorkers, stepRoom = 4, 10
	// highWorkers × highRoom is in flight at most under highLimit, which is more than
	// twice that, so that it does not bind.
	highWorkers, highRoom, highLimit = 8, 30, 500
	// looseLimit is twice what is in flight at the usual size, and does not bind: an
	// instance that has ended gives its slot back while the next is being taken.
	looseLimit = 2 * stepWorkers * stepRoom
	// tightLimit is a quarter of what would be in flight.
	tightLimit = 10
	// mixedOf is how many steps there are for one that is limited.
	mixedOf = 100
	// floorClients is how many clients the floor has that the baseline is compared
	// with.
	floorClients = 64
	// stepRetries keep a figure of a load in which an attempt is lost: how many were is
	// reported.
	stepRetries = 3
	// singleShare is which part of the usual steps one worker does that has one at a
	// time.
	singleShare = 10
)

// limitedTask is the task that has a limit, and freeTask one that has none.
const limitedTask, freeTask = "limited", "free"

func (c *Config) stepCases() []Case {
	usual := func(kind string, limit int) Case { return stepCase(kind, stepWorkers, stepRoom, c.Steps, limit) }
	return []Case{
		usual(baseline, 0),
		usual(unlimited, looseLimit),
		usual(limited, looseLimit),
		usual(mixed, tightLimit),
		usual(binding, tightLimit),
		stepCase(limited, 1, 1, max(minSteps, c.Steps/singleShare), looseLimit),
		stepCase(high, highWorkers, highRoom, c.HighSteps, highLimit),
	}
}

func stepCase(kind string, workers, room, steps, limit int) Case {
	return Case{
		Name: fmt.Sprintf("%s/%dw/%dr", kind, workers, room),
		Kind: kind, Workers: workers, Room: room, Steps: steps, Limit: limit,
	}
}

// stepSpecs are the steps of a run of n instances that do nothing.
func stepSpecs(kind string, n int) []step.Spec {
	switch kind {
	case unlimited:
		return []step.Spec{fanOf("steps", n, freeTask)}
	case limited, binding, high:
		return []step.Spec{fanOf("steps", n, limitedTask)}
	case mixed:
		return mixedSpecs(n)
	}
	return []step.Spec{fanOf("steps", n, "")}
}

// plainSpecs are the same without tasks.
func plainSpecs(kind string, n int) []step.Spec {
	specs := stepSpecs(kind, n)
	for i := range specs {
		specs[i].Task = step.Task{}
	}
	return specs
}

// mixedSpecs has one of a hundred limited, evenly among the others: a run's steps are
// taken in their order, so each hundred are two steps.
func mixedSpecs(n int) []step.Spec {
	var specs []step.Spec
	pieces := min(max(1, n/mixedOf), step.MaxSteps/2)
	for i := range pieces {
		size := share(n, pieces, i)
		some := max(1, size/mixedOf)
		specs = append(specs,
			fanOf(fmt.Sprintf("free-%d", i), size-some, freeTask),
			fanOf(fmt.Sprintf("limited-%d", i), some, limitedTask))
	}
	return specs
}

func fanOf(name string, n int, task string) step.Spec {
	return step.Spec{
		Name: name, Task: step.Task{Name: task}, Command: []string{"true"}, Retries: stepRetries,
		Items: &step.Items{Range: &step.Range{From: 1, To: int64(n), By: 1}},
	}
}

// stepPool is the pool that a case has: that of the limited task. Without a limit it has
// none.
func (c Case) stepPool() string {
	if c.Limit == 0 {
		return ""
	}
	return step.TaskPool(limitedTask)
}
