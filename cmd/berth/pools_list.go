package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func poolsListCommand() *cli.Command {
	return &cli.Command{
		Name:   "list",
		Usage:  "list all pools",
		Action: poolsList,
	}
}

func poolsList(c *cli.Context) error {
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
		pools := r.Pools()
		return p.print(listOf(pools, poolRecord), func(out *page) { poolsTable(out, pools) })
	})
}

func poolsTable(out *page, pools []pool.Status) {
	var rows [][]string
	for _, p := range pools {
		name := p.Name
		if state := stateText(p); state != "open" && state != "closed" {
			name += " (" + state + ")"
		}
		limit, lease := limitText(p.Limit), text.Duration(p.LeaseDuration)
		if p.Deleted || p.Problem != "" {
			limit, lease = "", ""
		}
		rows = append(rows, []string{name, limit, strconv.Itoa(p.Claimed), strconv.Itoa(p.Waiting), lease})
	}
	out.table("there are no pools; 'berth pools set NAME LIMIT' makes one",
		[]string{"POOL", "LIMIT", "CLAIMED", "WAITING", "LEASE"}, rows)
}
