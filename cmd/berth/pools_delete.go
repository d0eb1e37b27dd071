package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/text"
)

func poolsDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete a pool; its holders keep their slots, its line is refused",
		ArgsUsage: "POOL",
		Action:    func(c *cli.Context) error { return onPool(c, poolsDelete(c)) },
	}
}

// deletedRecord is a deleted pool in JSON.
type deletedRecord struct {
	Name    string `json:"name"`
	Claimed int    `json:"claimed"` // slots still held
	Holders int    `json:"holders"`
	Waiters int    `json:"waiters"` // refused
}

func poolsDelete(c *cli.Context) func(*berth.Admin, *printer, string) error {
	return func(admin *berth.Admin, p *printer, name string) error {
		d, err := readPool(c, admin, name)
		if err != nil {
			return err
		}
		if err := admin.DeletePool(c.Context, name); err != nil {
			return err
		}
		r := deletedRecord{Name: name, Claimed: d.Claimed, Holders: len(d.Holders), Waiters: len(d.Waiters)}
		return p.print(r, func(out *page) {
			out.line("pool '%s' deleted", name)
			if r.Holders > 0 {
				out.line("%s still held by %s, until given back or expired", text.Count(r.Claimed, "slot"), text.Count(r.Holders, "claim"))
			}
			if r.Waiters > 0 {
				out.line("%s in line refused", text.Count(r.Waiters, "claim"))
			}
		})
	}
}
