package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:     "verify",
		Category: operating,
		Usage:    "check what is in etcd against berth's invariants",
		Description: "No pool holds more than its limit if one of its holders came after the limit\n" +
			"was set; every claim is whole; everything that is held ends with a lease; every\n" +
			"value can be read. Exits with 1 if something is not so. Changes nothing.",
		Action: verify,
	}
}

// verifyRecord is what was found, in JSON.
type verifyRecord struct {
	Revision   int64            `json:"revision"`
	Pools      int              `json:"pools"`
	Claims     int              `json:"claims"`
	Waiting    int              `json:"waiting"`
	Violations []pool.Violation `json:"violations"`
}

func verify(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connect(c, func(admin *berth.Admin) error {
		r, err := admin.Read(c.Context)
		if err != nil {
			return err
		}
		if _, err := admin.Hosts(c.Context); err != nil {
			say(c, "warning: %v", err)
		}
		holders, waiters := r.Claims()
		found := verifyRecord{
			Revision: r.Revision(), Pools: len(r.Pools()), Claims: len(holders), Waiting: len(waiters),
			Violations: append([]pool.Violation{}, r.Verify()...),
		}
		if err := p.print(found, func(out *page) { verifyText(out, found) }); err != nil {
			return err
		}
		if len(found.Violations) > 0 {
			return status(problem.ExitFailure)
		}
		return nil
	})
}

func verifyText(out *page, r verifyRecord) {
	out.line("checked %s, %s and %d waiting at revision %d", count(r.Pools, "pool"), count(r.Claims, "claim"), r.Waiting, r.Revision)
	if len(r.Violations) == 0 {
		out.line("all invariants hold")
		return
	}
	out.line("%s:", count(len(r.Violations), "violation"))
	for _, v := range r.Violations {
		out.line("  %s: %s", v.Key, v.Problem)
	}
}
