package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
)

func poolsPauseCommand() *cli.Command {
	return &cli.Command{
		Name:      "pause",
		Usage:     "grant nothing more of a pool; its holders and its line stay",
		ArgsUsage: "POOL",
		Action: func(c *cli.Context) error {
			return setPaused(c, (*berth.Admin).PausePool, "is paused: its holders go on, its line waits")
		},
	}
}

func poolsResumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "end a pause",
		ArgsUsage: "POOL",
		Action: func(c *cli.Context) error {
			return setPaused(c, (*berth.Admin).ResumePool, "grants slots")
		},
	}
}

func setPaused(c *cli.Context, set func(*berth.Admin, context.Context, string) error, now string) error {
	return onPool(c, func(admin *berth.Admin, p *printer, name string) error {
		if err := set(admin, c.Context, name); err != nil {
			return err
		}
		d, err := readPool(c, admin, name)
		if err != nil {
			return err
		}
		return p.print(poolRecord(d.Status), func(out *page) { out.line("pool '%s' %s", name, now) })
	})
}
