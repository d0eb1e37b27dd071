package main

import (
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

func claimsWhyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "tell what a claim holds, or why it waits",
		ArgsUsage: "CLAIM",
		Action:    func(c *cli.Context) error { return onClaim(c, claimsWhy(c)) },
	}
}

func claimsWhy(c *cli.Context) func(*berth.Admin, *printer, string) error {
	return func(admin *berth.Admin, p *printer, id string) error {
		r, err := admin.Read(c.Context)
		if err != nil {
			return err
		}
		w, err := r.Why(id)
		if err != nil {
			return err
		}
		record := whyRecord(w)
		if w.Held == nil {
			return p.print(record, func(out *page) { waitsText(out, record) })
		}
		ends, err := leaseEndsOf(c, admin, []pool.HolderStatus{*w.Held})
		if err != nil {
			return err
		}
		return p.print(record, func(out *page) { heldText(out, record.Claim, ends[w.Held.Lease]) })
	}
}

func heldText(out *page, r sidecar.Claim, expires time.Duration) {
	rows := [][]string{
		{"claim", r.ID}, {"state", r.State}, {"since", text.Ago(out.now, r.ClaimedAt)}, {"slots", run.PoolList(r.Pools)},
		{"holder", holderText(r)}, {"fence", strconv.FormatInt(r.Fence, 10)},
	}
	if expires > 0 {
		rows = append(rows, []string{"expires", "in " + text.About(expires) + ", unless renewed"})
	}
	out.columns(rows)
}

// waitsText says why a claim waits, and who is in its way.
func waitsText(out *page, w sidecar.Why) {
	r := w.Claim
	out.columns([][]string{
		{"claim", r.ID}, {"state", r.State}, {"since", text.Ago(out.now, r.QueuedAt)}, {"slots", run.PoolList(r.Pools)},
		{"holder", holderText(r)}, {"reason", w.Reason.Text},
		{"position", strconv.Itoa(w.Reason.Position) + " of " + strconv.Itoa(w.Reason.Line)},
		{"priority", strconv.Itoa(r.Priority)},
	})
	var holders [][]string
	for _, h := range w.Reason.Holders {
		holders = append(holders, []string{h.Pool, h.Claim, h.RunID, h.StepKey, h.Host, strconv.Itoa(h.Slots)})
	}
	if len(holders) > 0 {
		out.gap()
		out.table("", []string{"POOL", "HELD BY", "RUN", "STEP", "HOST", "SLOTS"}, holders)
	}
}

// holderText says who a claim belongs to.
func holderText(r sidecar.Claim) string {
	text := r.Host + "/" + r.Instance
	if r.PID != 0 {
		text += ", pid " + strconv.Itoa(r.PID)
	}
	if r.RunID != "" {
		text += ", run " + r.RunID
	}
	if r.StepKey != "" {
		text += ", step " + r.StepKey
	}
	for _, key := range sortedNames(r.Labels) {
		text += ", " + key + "=" + r.Labels[key]
	}
	return text
}
