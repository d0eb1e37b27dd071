package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:     "verify",
		Category: operating,
		Usage:    "check what is in etcd against berth's invariants",
		Description: "No pool holds more than its limit if one of its holders came after the limit\n" +
			"was set; every claim is whole; everything that is held ends with a lease; every\n" +
			"value can be read. Claims of instances that are not seen are listed: they end with\n" +
			"their leases. Exits with 1 if something is not so. Changes nothing.",
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
	// Orphaned are the claims and waiters of instances that are not seen. They end
	// with their leases, which nobody renews.
	Orphaned []orphanedRecord `json:"orphaned"`
}

type orphanedRecord struct {
	Claim    string `json:"claim"`
	State    string `json:"state"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// Expires is when the lease of a claim that is held ends; empty if that is not known.
	Expires string `json:"expires,omitempty"`
}

// orphanedOf finds what no instance owns that is seen.
func orphanedOf(c *cli.Context, admin *berth.Admin, holders []pool.HolderStatus, waiters []pool.WaiterStatus) ([]orphanedRecord, error) {
	seen, err := seenInstances(c.Context, admin)
	if err != nil {
		say(c, "warning: %v", err)
	}
	all := []orphanedRecord{}
	var held []pool.HolderStatus
	for _, h := range holders {
		if !seen[h.Host+"/"+h.Instance] && h.Host != "" && h.Bind != run.BindBridge {
			held = append(held, h)
		}
	}
	if len(held) > 0 {
		ends, err := leaseEndsOf(c, admin, held)
		if err != nil {
			return nil, err
		}
		for _, h := range held {
			r := orphanedRecord{Claim: h.Claim, State: sidecar.StateHeld, Host: h.Host, Instance: h.Instance}
			if left := ends[h.Lease]; left > 0 {
				r.Expires = text.About(left)
			}
			all = append(all, r)
		}
	}
	for _, w := range waiters {
		if !seen[w.Host+"/"+w.Instance] {
			all = append(all, orphanedRecord{Claim: w.Claim, State: sidecar.StateWaiting, Host: w.Host, Instance: w.Instance})
		}
	}
	return all, nil
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
		holders, waiters := r.Claims()
		orphaned, err := orphanedOf(c, admin, holders, waiters)
		if err != nil {
			return err
		}
		found := verifyRecord{
			Revision: r.Revision(), Pools: len(r.Pools()), Claims: len(holders), Waiting: len(waiters),
			Violations: append([]pool.Violation{}, r.Verify()...), Orphaned: orphaned,
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
	out.line("checked %s, %s and %d waiting at revision %d", text.Count(r.Pools, "pool"), text.Count(r.Claims, "claim"), r.Waiting, r.Revision)
	for _, o := range r.Orphaned {
		what := "is held by " + o.Host + "/" + o.Instance + ", which is not seen: its slots are free when its lease ends"
		switch {
		case o.State == sidecar.StateWaiting:
			what = "waits for " + o.Host + "/" + o.Instance + ", which is not seen"
		case o.Expires != "":
			what += ", in " + o.Expires
		}
		out.line("orphaned: claim %s %s", o.Claim, what)
	}
	if len(r.Violations) == 0 {
		out.line("all invariants hold")
		return
	}
	out.line("%s:", text.Count(len(r.Violations), "violation"))
	for _, v := range r.Violations {
		out.line("  %s: %s", v.Key, v.Problem)
	}
}
