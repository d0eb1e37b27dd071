package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

// revokeWait is what a host has to stop a holder, and a while for the way.
const revokeWait = pool.RevokeGrace + 5*time.Second

// revokeLook is how often it is looked at meanwhile.
const revokeLook = 200 * time.Millisecond

func claimsRevokeCommand() *cli.Command {
	return &cli.Command{
		Name:      "revoke",
		Usage:     "take a claim back",
		ArgsUsage: "CLAIM",
		Description: "Asks the claim's host to stop the holder and to give the slots back, and waits\n" +
			"until that is done. With --force the slots are free at once; the old holder may\n" +
			"still run then, and what it writes can only be told by its fence.\n" +
			"CLAIM is an id, or HOST/INSTANCE/ID where several instances hold one id.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "free the slots at once, whatever the holder does"},
			&cli.DurationFlag{Name: "wait", Value: revokeWait, Usage: "longest `TIME` to wait until it is gone; 0 for not at all"},
		},
		Action: func(c *cli.Context) error { return onClaim(c, claimsRevoke(c)) },
	}
}

func claimsRevoke(c *cli.Context) func(*berth.Admin, *printer, string) error {
	return func(admin *berth.Admin, p *printer, id string) error {
		if err := refuseWaiter(c, admin, id); err != nil {
			return err
		}
		done, err := admin.Revoke(c.Context, id, c.Bool("force"))
		if err != nil {
			return err
		}
		gone := done.Forced
		if wait := c.Duration("wait"); !gone && wait > 0 {
			if gone, err = waitGone(c.Context, admin, done, wait); err != nil {
				return err
			}
			if !gone {
				return notGone(c.Context, admin, done, wait)
			}
		}
		r := sidecar.Revocation{
			ID: done.Claim, Host: done.Host, Instance: done.Instance, Fence: done.Fence, Forced: done.Forced, Detail: revokedText(done, gone),
		}
		return p.print(r, func(out *page) { out.line("claim %s: %s", r.ID, r.Detail) })
	}
}

func revokedText(r pool.Revocation, gone bool) string {
	switch {
	case r.Forced:
		return fmt.Sprintf("its slots are free; the old holder on %s may still run; fence %d", r.Host, r.Fence)
	case gone:
		return "given back by " + r.Host
	}
	return "asked back from " + r.Host
}

// refuseWaiter explains that a claim in line can't be revoked: nothing is held.
func refuseWaiter(c *cli.Context, admin *berth.Admin, id string) error {
	r, err := admin.Read(c.Context)
	if err != nil {
		return err
	}
	w, err := r.Why(id)
	if err == nil && w.Waiter != nil {
		return problem.New(problem.Invalid, "claim %q holds nothing, it waits: stop whoever waits on %s to take it out of line", id, w.Waiter.Host)
	}
	return err
}

// waitGone waits until a claim is held no more, and tells whether that came
// about in time.
func waitGone(ctx context.Context, admin *berth.Admin, done pool.Revocation, wait time.Duration) (bool, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	tick := time.NewTicker(revokeLook)
	defer tick.Stop()
	for {
		r, err := admin.Read(ctx)
		if err != nil {
			return false, err
		}
		if w, err := r.Why(done.Claim); err != nil || w.Fenced(done.Fence) == nil {
			return true, nil
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// notGone says what can be expected of a claim that is still held: if its instance is
// not seen, nobody renews its lease.
func notGone(ctx context.Context, admin *berth.Admin, done pool.Revocation, wait time.Duration) error {
	name := done.Host + "/" + done.Instance
	expect := "its instance " + name + " is seen, and has not released it: its log may say why; --force frees the slots at once"
	seen, err := seenInstances(ctx, admin)
	switch {
	case err != nil:
		expect = "its instance " + name + " has not released it; --force frees the slots at once"
	case !seen[name]:
		expect = "its instance " + name + " is not seen; the slots are free when the lease ends, or at once with --force"
	}
	return problem.New(problem.ClaimTimeout, "claim %q is still held after %s: %s", done.Claim, text.Duration(wait), expect)
}

// seenInstances returns the instances that are up, as HOST/INSTANCE.
func seenInstances(ctx context.Context, admin *berth.Admin) (map[string]bool, error) {
	hosts, err := admin.Hosts(ctx)
	seen := map[string]bool{}
	for _, h := range hosts {
		seen[h.Host+"/"+h.Instance] = true
	}
	return seen, err
}
