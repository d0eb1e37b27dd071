package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

func claimsListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the claims that hold slots, and those that wait",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pool", Usage: "only those of a `POOL`"},
			&cli.StringFlag{Name: "host", Usage: "only those of a `HOST`"},
		},
		Action: claimsList,
	}
}

func claimsList(c *cli.Context) error {
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
		if name := c.String("pool"); name != "" {
			if _, err := r.Pool(name); err != nil {
				return err
			}
		}
		holders, waiters := r.Claims()
		holders = keep(holders, func(h pool.HolderStatus) bool { return wanted(c, h.Pools, h.Host) })
		waiters = keep(waiters, func(w pool.WaiterStatus) bool { return wanted(c, w.Pools, w.Host) })
		all := listOf(holders, heldClaim)
		all.Items = append(all.Items, listOf(waiters, waitingClaim).Items...)
		return p.print(all, func(out *page) { claimsTable(out, all.Items) })
	})
}

// wanted tells whether a claim is to be listed.
func wanted(c *cli.Context, pools map[string]int, host string) bool {
	name := c.String("pool")
	_, ok := pools[name]
	return (name == "" || ok) && (c.String("host") == "" || host == c.String("host"))
}

func keep[T any](all []T, f func(T) bool) []T {
	var kept []T
	for _, v := range all {
		if f(v) {
			kept = append(kept, v)
		}
	}
	return kept
}

func claimsTable(out *page, all []sidecar.Claim) {
	var rows [][]string
	for _, c := range all {
		since := c.ClaimedAt
		if c.State == sidecar.StateWaiting {
			since = c.QueuedAt
		}
		rows = append(rows, []string{c.ID, run.PoolList(c.Pools), c.State, c.RunID, c.StepKey, c.Host, text.Ago(out.now, since), c.Reason})
	}
	out.table("there are no claims", []string{"CLAIM", "SLOTS", "STATE", "RUN", "STEP", "HOST", "SINCE", "REASON"}, rows)
}
