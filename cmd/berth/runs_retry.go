package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
)

func runsRetryCommand() *cli.Command {
	return &cli.Command{
		Name:      "retry",
		Usage:     "queue a run once more that has failed or was canceled",
		ArgsUsage: "RUN",
		Description: "It goes back to its old place in the queue. Of its steps only those are run again that\n" +
			"have not succeeded, with as many retries as at first.",
		Action: func(c *cli.Context) error {
			return onRun(c, func(s run.Store, p *printer, id string) error {
				r, err := stepsOf(s).Retry(c.Context, s, id)
				if err != nil {
					return err
				}
				return p.print(sidecar.RunOf(r), func(out *page) { out.line("run %s is queued again", r.ID) })
			})
		},
	}
}

// cancelStep cancels one step instance of a run.
func cancelStep(c *cli.Context) func(run.Store, *printer, string) error {
	return func(s run.Store, p *printer, id string) error {
		which, err := parseWhose(c.String("step"))
		if err != nil {
			return err
		}
		i, err := stepsOf(s).Cancel(c.Context, s, store.StepID{Run: id, Step: which.step, Index: max(0, which.index)})
		if err != nil {
			return err
		}
		record := canceledStep{Run: i.Run, Step: i.Step, Index: i.Index, Status: string(i.Status)}
		return p.print(record, func(out *page) {
			if i.Status == step.Running {
				out.line("step %s of run %s is being stopped by its worker", i.Text(), i.Run)
				return
			}
			out.line("step %s of run %s is canceled", i.Text(), i.Run)
		})
	}
}

// canceledStep is a step instance that was canceled, in JSON. One that is running still
// is being stopped.
type canceledStep struct {
	Run    string `json:"run"`
	Step   string `json:"step"`
	Index  int    `json:"index"`
	Status string `json:"status"`
}
