package main

import (
	"context"
	"os"
	"os/user"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
)

// workerControlCommands are drain, stop and resume.
func workerControlCommands() []*cli.Command {
	const stays = " It stays so, also when it\nrestarts, until 'berth worker resume'. The worker sees that in etcd, whatever host it is on;\n" +
		"who has asked is kept among the actions, which the page /actions lists."
	reason := &cli.StringFlag{Name: "reason", Usage: "`TEXT` that says why, kept with the worker"}
	command := func(verb, usage, description string) *cli.Command {
		return &cli.Command{
			Name: verb, Usage: usage, ArgsUsage: "HOST/INSTANCE", Description: description,
			Flags:  []cli.Flag{reason},
			Action: func(c *cli.Context) error { return workerControl(c, verb) },
		}
	}
	return []*cli.Command{
		command("drain", "have a worker take nothing new", "What it has goes on."+stays),
		command("stop", "have a worker take nothing new, and stop what it has",
			"Its commands get TERM, and KILL after its grace. What has retries left is tried by\nother workers, the rest is canceled. Its process goes on, and takes nothing."+stays),
		command("resume", "have a worker take steps again", "Undoes drain and stop, also of a worker that is not there now."),
	}
}

func workerControl(c *cli.Context, verb string) error {
	given, err := args(c, "a worker")
	if err != nil {
		return err
	}
	id, err := step.ParseWorkerID(given[0])
	if err != nil {
		return usagef("%s", problem.New(problem.Invalid, "%w", err))
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	by := step.WorkerState{By: "an operator", Reason: c.String("reason")}
	if u, err := user.Current(); err == nil {
		by.By = u.Username
	}
	by.From, _ = os.Hostname()
	return connectRuns(c, func(s run.Store) error {
		hosts := func(ctx context.Context) ([]sidecar.Host, error) { return readHosts(ctx, s) }
		w, changed, err := sidecar.ControlWorker(c.Context, s, stepsOf(s), hosts, verb, id, by)
		if err != nil {
			return err
		}
		return p.print(w, func(out *page) {
			line := "worker " + id.String() + " is " + w.State
			if !changed {
				line += " already"
			}
			if w.Active > 0 && w.State != string(step.Working) {
				line += ", with " + text.Count(w.Active, "step instance")
			}
			if w.Gone {
				line += "; it is not seen now"
			}
			out.line("%s", line)
		})
	})
}
