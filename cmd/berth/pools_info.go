package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

func poolsInfoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "show a pool, who holds its slots, and who waits",
		ArgsUsage: "POOL",
		Action:    func(c *cli.Context) error { return onPool(c, poolsInfo(c)) },
	}
}

func poolsInfo(c *cli.Context) func(*berth.Admin, *printer, string) error {
	return func(admin *berth.Admin, p *printer, name string) error {
		d, err := readPool(c, admin, name)
		if err != nil {
			return err
		}
		ends, err := leaseEndsOf(c, admin, d.Holders)
		if err != nil {
			return err
		}
		detail := poolDetail(d, ends)
		return p.print(detail, func(out *page) {
			poolText(out, d.Status)
			out.gap()
			holdersTable(out, detail.Holders)
			if n := detail.ExpiriesUnknown; n > 0 {
				out.line("(when %d of these leases end, etcd did not tell in time)", n)
			}
			if len(detail.Waiters) > 0 {
				out.gap()
				lineTable(out, detail.Waiters)
			}
		})
	}
}

// leaseEndsOf tells how long the leases of holders still live.
func leaseEndsOf(c *cli.Context, admin *berth.Admin, holders []pool.HolderStatus) (leaseEnds, error) {
	ids := make([]store.LeaseID, len(holders))
	for i, h := range holders {
		ids[i] = h.Lease
	}
	return admin.LeaseEnds(c.Context, ids)
}

func poolText(out *page, p pool.Status) {
	rows := [][]string{{"pool", p.Name}, {"state", stateText(p)}}
	if p.Problem != "" {
		rows = append(rows, []string{"problem", p.Problem})
	}
	if !p.Deleted && p.Problem == "" {
		rows = append(rows,
			[]string{"limit", limitText(p.Limit)},
			[]string{"lease", leaseText(p.LeaseDuration)},
			[]string{"reserve", reserveText(p.ReserveAfter)})
	}
	out.columns(append(rows,
		[]string{"claimed", strconv.Itoa(p.Claimed)},
		[]string{"waiting", strconv.Itoa(p.Waiting)}))
}

// leaseText tells a lease duration and what it is good for.
func leaseText(d time.Duration) string {
	return fmt.Sprintf("%s (%s)", text.Duration(d), survivesText(d))
}

// survivesText tells how long etcd can be away without harm.
func survivesText(d time.Duration) string {
	return "survives an etcd outage of about " + text.About(survives(d))
}

func holdersTable(out *page, holders []sidecar.Holder) {
	var rows [][]string
	for _, h := range holders {
		expires := ""
		if h.ExpiresIn > 0 {
			expires = "in " + text.About(time.Duration(h.ExpiresIn))
		}
		rows = append(rows, []string{h.Claim, h.RunID, h.StepKey, h.Host, strconv.Itoa(h.Slots), text.Ago(out.now, h.Since), expires})
	}
	out.table("nobody holds slots", []string{"CLAIM", "RUN", "STEP", "HOST", "SLOTS", "SINCE", "EXPIRES"}, rows)
}

func lineTable(out *page, waiters []sidecar.Waiter) {
	var rows [][]string
	for _, w := range waiters {
		rows = append(rows, []string{
			strconv.Itoa(w.Position), w.Claim, w.RunID, w.StepKey, w.Host,
			strconv.Itoa(w.Slots), strconv.Itoa(w.Priority), text.Ago(out.now, w.Since), w.Reason,
		})
	}
	out.table("nobody waits", []string{"POS", "WAITING", "RUN", "STEP", "HOST", "SLOTS", "PRI", "SINCE", "REASON"}, rows)
}
