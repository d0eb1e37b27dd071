package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/pool"
)

func poolsCommand() *cli.Command {
	return &cli.Command{
		Name:     "pools",
		Category: operating,
		Usage:    "see and change the pools",
		Subcommands: []*cli.Command{
			poolsListCommand(), poolsInfoCommand(), poolsSetCommand(),
			poolsDeleteCommand(), poolsPauseCommand(), poolsResumeCommand(),
		},
	}
}

// onPool runs a command whose one argument is a pool.
func onPool(c *cli.Context, do func(admin *berth.Admin, p *printer, name string) error) error {
	given, err := args(c, "the name of a pool")
	if err != nil {
		return err
	}
	if err := pool.ValidateName(given[0]); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connect(c, func(admin *berth.Admin) error { return do(admin, p, given[0]) })
}

// readPool returns a pool as it is now.
func readPool(c *cli.Context, admin *berth.Admin, name string) (pool.Detail, error) {
	r, err := admin.Read(c.Context)
	if err != nil {
		return pool.Detail{}, err
	}
	return r.Pool(name)
}

// stateText says in a word what a pool does with claims.
func stateText(p pool.Status) string {
	switch {
	case p.Problem != "":
		return "unreadable"
	case p.Deleted:
		return "deleted"
	case p.Paused:
		return "paused"
	case p.Limit == pool.Closed:
		return "closed"
	}
	return "open"
}
