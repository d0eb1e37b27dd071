package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func poolsSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "make a pool, or change one",
		ArgsUsage: "POOL LIMIT",
		Description: "LIMIT is a number of slots, 0 to close the pool, or -1 for no limit.\n" +
			"What no flag says stays as it is. A lower limit stops nobody: until enough\n" +
			"slots are given back, no more are granted.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "lease-duration", Usage: "`TIME` after which a dead holder's slots are free", DefaultText: unchanged + ", " + text.Duration(pool.DefaultLeaseDuration) + " in a new pool"},
			&cli.StringFlag{Name: "reserve-after", Usage: "`TIME` in line after which nobody passes any more; 0 for at once, -1 for never", DefaultText: unchanged + ", " + text.Duration(pool.DefaultReserveAfter) + " in a new pool"},
		},
		Action: poolsSet,
	}
}

func poolsSet(c *cli.Context) error {
	given, err := args(c, "the name of a pool", "a limit")
	if err != nil {
		return err
	}
	change, err := poolChange(c, given[1])
	if err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connect(c, func(admin *berth.Admin) error { return setPool(c, admin, p, given[0], change) })
}

// poolChange reads what the command line says of a pool.
func poolChange(c *cli.Context, limit string) (pool.Change, error) {
	var change pool.Change
	n, err := strconv.Atoi(limit)
	if err != nil {
		return change, usagef("%q is no limit: it is a number of slots, 0 (closed) or -1 (unlimited)", limit)
	}
	change.Limit = &n
	if c.IsSet("lease-duration") {
		d, err := time.ParseDuration(c.String("lease-duration"))
		if err != nil {
			return change, usagef("--lease-duration can't be %q: it is a duration such as 30s, 5m or 1h30m", c.String("lease-duration"))
		}
		change.LeaseDuration = &d
	}
	if c.IsSet("reserve-after") {
		d, err := pool.ParseReserveAfter(c.String("reserve-after"))
		if err != nil {
			return change, usagef("--reserve-after can't be %q: it is a duration such as 30s or 5m, 0 or -1", c.String("reserve-after"))
		}
		change.ReserveAfter = &d
	}
	return change, nil
}

func setPool(c *cli.Context, admin *berth.Admin, p *printer, name string, change pool.Change) error {
	before, err := readPool(c, admin, name)
	if err != nil && problem.CodeOf(err) != problem.PoolNotFound {
		return err
	}
	put, err := admin.SetPool(c.Context, name, change)
	if err != nil {
		return err
	}
	after, err := readPool(c, admin, name)
	if err != nil {
		return err
	}
	warnOfExcess(c, after.Status)
	return p.print(poolRecord(after.Status), func(out *page) {
		switch {
		case put.Created:
			out.line("pool '%s' made: %s", name, specText(put.Spec))
		case put.Spec == before.Spec || before.SpecRevision == 0:
			out.line("pool '%s' stays as it is: %s", name, specText(put.Spec))
		default:
			out.line("pool '%s' changed: %s", name, strings.Join(specChanges(before.Spec, put.Spec), ", "))
		}
		out.line("its claims have leases of %s: %s", text.Duration(put.Spec.LeaseDuration), survivesText(put.Spec.LeaseDuration))
	})
}

// warnOfExcess tells if more is claimed than the limit allows.
func warnOfExcess(c *cli.Context, p pool.Status) {
	if p.Limit != pool.Unlimited && p.Claimed > p.Limit {
		more := p.Claimed - p.Limit
		say(c, "warning: %s of '%s' %s claimed, above its limit of %d; nobody is stopped, and nothing is granted until %d %s given back",
			text.Count(p.Claimed, "slot"), p.Name, are(p.Claimed), p.Limit, more, are(more))
	}
}

// specText says what a pool is like.
func specText(s pool.Spec) string {
	parts := []string{"limit " + limitText(s.Limit), "lease " + text.Duration(s.LeaseDuration), "reserve " + reserveText(s.ReserveAfter)}
	if s.Paused {
		parts = append(parts, "paused")
	}
	return strings.Join(parts, ", ")
}

// specChanges says what differs between two specs of a pool.
func specChanges(old, new pool.Spec) []string {
	var all []string
	differs := func(what, a, b string) {
		if a != b {
			all = append(all, what+" "+a+" → "+b)
		}
	}
	differs("limit", limitText(old.Limit), limitText(new.Limit))
	differs("lease", text.Duration(old.LeaseDuration), text.Duration(new.LeaseDuration))
	differs("reserve", reserveText(old.ReserveAfter), reserveText(new.ReserveAfter))
	switch {
	case new.Paused && !old.Paused:
		all = append(all, "paused")
	case old.Paused && !new.Paused:
		all = append(all, "resumed")
	}
	return all
}
