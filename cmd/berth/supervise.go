package main

import (
	"github.com/urfave/cli/v2"

	workerchild "github.com/berthhq/berth/sidecar/worker/child"
)

// superviseCommand is what a worker starts beside each command that it runs. It is
// no command for people, and does nothing for them.
func superviseCommand() *cli.Command {
	return &cli.Command{
		Name:      workerchild.Verb,
		Hidden:    true,
		Usage:     "run the command of a step beside a worker, which starts this by itself",
		ArgsUsage: "DIR",
		Action: func(c *cli.Context) error {
			given, err := args(c, "the folder that a worker has made for a command")
			if err != nil {
				return err
			}
			return workerchild.Supervise(given[0])
		},
	}
}
