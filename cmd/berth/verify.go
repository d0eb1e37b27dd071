package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:     "verify",
		Category: operating,
		Usage:    "check what is in etcd against berth's invariants",
		Description: "No pool holds more than its limit if one of its holders came after the limit\n" +
			"was set; every claim is whole; everything that is held ends with a lease; every\n" +
			"value can be read. Claims and waiters of instances that are not seen are listed:\n" +
			"they end with their leases, and only one whose lease etcd does not have is a\n" +
			"violation. Exits with 1 if something is not so. Changes nothing.",
		Action: onEtcd(verify),
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
	// with their leases, which nobody renews; those on a lease that etcd does not have
	// are among the violations.
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

// orphanedOf finds what no instance owns that is seen, and what of that would never end.
func orphanedOf(r *request, holders []pool.HolderStatus, waiters []pool.WaiterStatus) ([]orphanedRecord, []pool.Violation, error) {
	seen, err := seenInstances(r)
	if err != nil {
		r.say("warning: %v", err)
	}
	all := []orphanedRecord{}
	var leases []store.LeaseID
	for _, h := range holders {
		if !seen[h.Host+"/"+h.Instance] && h.Host != "" && h.Bind != run.BindBridge {
			all = append(all, orphanedRecord{Claim: h.Claim, State: inspect.ClaimHeld, Host: h.Host, Instance: h.Instance})
			leases = append(leases, h.Lease)
		}
	}
	for _, w := range waiters {
		if !seen[w.Host+"/"+w.Instance] {
			all = append(all, orphanedRecord{Claim: w.Claim, State: inspect.ClaimWaiting, Host: w.Host, Instance: w.Instance})
			leases = append(leases, w.Lease)
		}
	}
	if len(leases) == 0 {
		return all, nil, nil
	}
	ends, err := r.LeaseEnds(r.ctx(), leases)
	if err != nil {
		return nil, nil, err
	}
	var ended []store.LeaseID
	for i, id := range leases {
		left, known := ends[id]
		switch {
		case left > 0 && all[i].State == inspect.ClaimHeld:
			all[i].Expires = text.About(left)
		case known && left == 0 && id != 0: // on no lease it is a violation anyway
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	stuck, err := r.Stuck(r.ctx(), slices.Compact(ended))
	return all, stuck, err
}

func verify(r *request) error {
	all, err := r.read(r.ctx())
	if err != nil {
		return err
	}
	holders, waiters := all.Claims()
	orphaned, stuck, err := orphanedOf(r, holders, waiters)
	if err != nil {
		return err
	}
	found := verifyRecord{
		Revision: all.Revision(), Pools: len(all.Pools()), Claims: len(holders), Waiting: len(waiters),
		Violations: append(append([]pool.Violation{}, all.Verify()...), stuck...), Orphaned: orphaned,
	}
	if err := r.print(found, func(out *page) { verifyText(out, found) }); err != nil {
		return err
	}
	if len(found.Violations) > 0 {
		return status(problem.ExitFailure)
	}
	return nil
}

func verifyText(out *page, r verifyRecord) {
	out.line("checked %s, %s and %d waiting at revision %d", text.Count(r.Pools, "pool"), text.Count(r.Claims, "claim"), r.Waiting, r.Revision)
	for _, o := range r.Orphaned {
		what := "is held by " + o.Host + "/" + o.Instance + ", which is not seen: its slots are free when its lease ends"
		switch {
		case o.State == inspect.ClaimWaiting:
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
