package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/pool"
)

func claimsCommand() *cli.Command {
	return &cli.Command{
		Name:        "claims",
		Category:    operating,
		Usage:       "see the claims, and take them back",
		Subcommands: []*cli.Command{claimsListCommand(), claimsWhyCommand(), claimsRevokeCommand()},
	}
}

// onClaim runs a command whose one argument is a claim.
func onClaim(c *cli.Context, do func(admin *berth.Admin, p *printer, id string) error) error {
	given, err := args(c, "the id of a claim")
	if err != nil {
		return err
	}
	if err := pool.ValidateClaim(given[0]); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connect(c, func(admin *berth.Admin) error { return do(admin, p, given[0]) })
}
