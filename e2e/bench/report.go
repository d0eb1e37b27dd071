//go:build linux

package main

import (
	"fmt"
	"io"

	"github.com/berthhq/berth/internal/bench"
)

// report holds the results, and the verdicts on them.
type report struct {
	*bench.Report[*row]
	Targets []verdict `json:"targets"`

	show func(io.Writer, *report)
}

// table writes the figures and the verdicts for people.
func (r *report) table(w io.Writer) {
	r.show(w, r)
	fmt.Fprintln(w)
	writeVerdicts(w, r.Targets)
}

// row holds the results of one case. Figures that do not apply are nil.
type row struct {
	bench.Row
	// Queued is the number of runs in the queue.
	Queued int `json:"queued,omitempty"`
	// Workers run so many Steps in each load, each worker up to Concurrency at a time.
	Workers     int `json:"workers,omitempty"`
	Concurrency int `json:"concurrency,omitempty"`
	// Places is how many steps all workers together run at a time, if they have different numbers.
	Places int `json:"places,omitempty"`
	Steps  int `json:"steps,omitempty"`
	// Queues are how many queues the steps are in, and each worker takes from one of them; 0
	// is one queue.
	Queues int `json:"queues,omitempty"`
	// Window is how many steps are published or running at most; 0 is no bound.
	Window int `json:"window,omitempty"`
	// StepMS is how long each step takes, in milliseconds.
	StepMS float64 `json:"step_ms,omitempty"`

	Submissions *submissionFigures `json:"submissions,omitempty"`
	Admissions  *admissionFigures  `json:"admissions,omitempty"`
	// Plan is the time that a plan takes.
	Plan   *bench.Latency `json:"plan,omitempty"`
	Leader *leaderFigures `json:"leader,omitempty"`

	StepLoads *stepLoads `json:"step_loads,omitempty"`

	// others are all rows of the report by name, once they are judged.
	others map[string]*row
}

// selected returns the rows that the configuration selects. It is an error if there are
// none.
func selected(cfg *bench.Config, rows []*row) ([]*row, error) {
	var some []*row
	for _, r := range rows {
		if cfg.Selects(r.Name) && (!cfg.Quick || hasTarget(r.Name)) {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return nil, bench.ErrNoCase
	}
	return some, nil
}

// Summary returns the figures in a few words.
func (r *row) Summary() []string {
	switch {
	case r.Submissions != nil:
		return []string{fmt.Sprintf("%.0f/s", r.Submissions.PerSecond), fmt.Sprintf("%.2f × %s", r.Ratio.Median, r.Reference.What)}
	case r.Admissions != nil:
		return []string{fmt.Sprintf("seen in %s", r.Admissions.Seen), fmt.Sprintf("%.2f × a plain put", r.Admissions.SeenToPut.Median)}
	case r.Plan != nil:
		return []string{r.Plan.String()}
	case r.Leader != nil:
		return []string{fmt.Sprintf("%.1f MB of heap, %.1f MB resident", r.Leader.Heap, r.Leader.Resident)}
	case r.StepLoads != nil:
		return []string{fmt.Sprintf("%.0f/s", r.StepLoads.Own.PerSecond), fmt.Sprintf("%.2f × %s", r.Ratio.Median, r.Reference.What)}
	}
	return r.Row.Summary()
}
