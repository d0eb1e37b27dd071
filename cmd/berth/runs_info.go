package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
)

func runsInfoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "show a run, and how its steps go",
		ArgsUsage: "RUN",
		Description: `The steps are a tree: each stands below one that it needs. In the progress of a step
'#' is what has succeeded, '!' what has failed, 'x' what was canceled and '>' what runs;
what is not begun is left empty. Of what has failed the first are listed, all of it with
-o json. 'berth runs logs' has the output.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on until the run has ended, and show what changes"},
		},
		Action: func(c *cli.Context) error {
			return onRun(c, func(s run.Store, p *printer, id string) error {
				if !c.Bool("watch") {
					return showRun(c.Context, s, p, id)
				}
				if p.format != "table" {
					return usagef("--watch is for people: it goes with no --output but table")
				}
				return watchRun(c, s, p, id)
			})
		},
	}
}

// showRun prints a run with its steps.
func showRun(ctx context.Context, s run.Store, p *printer, id string) error {
	most := failuresShown
	if p.format != "table" {
		most = 0 // programs get all
	}
	d, err := readRun(ctx, s, id, most)
	if d == nil {
		return err
	}
	if printErr := p.print(d.record(), func(out *page) { detailText(out, d) }); printErr != nil {
		return printErr
	}
	return err
}

func runText(out *page, r sidecar.Run) {
	times := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return text.Ago(out.now, t) + " (" + t.Local().Format(time.DateTime) + ")"
	}
	rows := [][]string{
		{"run", r.ID}, {"name", r.Name}, {"status", r.Status}, {"reason", reasonOf(r)},
		{"owner", r.Owner}, {"priority", strconv.Itoa(r.Priority)}, {"tags", pairsText(r.Tags)}, {"labels", pairsText(r.Labels)},
		{"pools", run.PoolList(r.Pools)}, {"claim", r.Claim},
		{"steps", stepsText(r)},
		{"retries", retriesText(r)}, {"not before", timeText(r.NotBefore)},
		{"queued", times(r.QueuedAt)}, {"admitted", times(r.AdmittedAt)}, {"started", times(r.StartedAt)}, {"ended", times(r.EndedAt)},
		{"executor", executorText(r)},
	}
	if r.Fence != 0 {
		rows = append(rows, []string{"fence", strconv.FormatInt(r.Fence, 10)})
	}
	out.columns(withValues(rows))
}

// timeText is a time as it can be given; empty if there is none.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// stepsText says how many step instances a run has, and how many at a time.
func stepsText(r sidecar.Run) string {
	if r.Steps == 0 {
		return ""
	}
	s := text.Count(r.Steps, "instance")
	if r.MaxConcurrentSteps > 0 {
		s += fmt.Sprintf(", at most %d in flight", r.MaxConcurrentSteps)
	}
	if r.MaxStepsPerTick > 0 {
		s += fmt.Sprintf(", at most %d published in one tick", r.MaxStepsPerTick)
	}
	return s
}

// retriesText says how often a run may be tried again, and has been. Of one with steps
// it is they that are tried again.
func retriesText(r sidecar.Run) string {
	if r.Steps > 0 {
		return ""
	}
	s := strconv.Itoa(r.Retries)
	if r.Lost > 0 {
		s += ", " + text.Count(r.Lost, "executor") + " lost"
	}
	return s
}

func executorText(r sidecar.Run) string {
	if r.Executor == nil {
		return ""
	}
	text := r.Executor.Host + "/" + r.Executor.Instance
	if r.Executor.Name != "" {
		text += ", " + r.Executor.Name
	}
	return text + ", attempt " + strconv.Itoa(r.Attempt)
}
