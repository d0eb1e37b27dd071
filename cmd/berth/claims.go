package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func claimsCommand() *cli.Command {
	return &cli.Command{
		Name:        "claims",
		Category:    operating,
		Usage:       "list, explain and revoke claims",
		Subcommands: []*cli.Command{claimsListCommand(), claimsInfoCommand(), claimsWhyCommand(), claimsRevokeCommand()},
	}
}

func claimsListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the claims that hold slots or wait for them",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pool", Usage: "only claims of `POOL`"},
			&cli.StringFlag{Name: "host", Usage: "only claims of `HOST`"},
		},
		Action: handle(func(r *request) error {
			if name := r.String("pool"); name != "" {
				if err := pool.ValidateName(name); err != nil {
					return ofLine(err)
				}
			}
			return r.connect(func() error { return claimsList(r) })
		}),
	}
}

func claimsList(r *request) error {
	all, err := r.etcd.Read(r.ctx())
	if err != nil {
		return err
	}
	if name := r.String("pool"); name != "" {
		if _, err := all.Pool(name); err != nil {
			return err
		}
	}
	holders, waiters := all.Claims()
	holders = keep(holders, func(h pool.HolderStatus) bool { return wanted(r, h.Pools, h.Host) })
	waiters = keep(waiters, func(w pool.WaiterStatus) bool { return wanted(r, w.Pools, w.Host) })
	shown := inspect.ListOf(holders, inspect.HeldClaimOf)
	shown.Items = append(shown.Items, inspect.ListOf(waiters, inspect.WaitingClaimOf).Items...)
	return r.print(shown, func(out *page) { claimsTable(out, shown.Items) })
}

// wanted reports whether a claim is to be listed.
func wanted(r *request, pools map[string]int, host string) bool {
	name := r.String("pool")
	_, ok := pools[name]
	return (name == "" || ok) && (r.String("host") == "" || host == r.String("host"))
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

func claimsTable(out *page, all []inspect.Claim) {
	var rows [][]string
	for _, c := range all {
		since := c.ClaimedAt
		if c.Status == inspect.ClaimWaiting {
			since = c.QueuedAt
		}
		rows = append(rows, []string{c.ID, run.PoolList(c.Pools), c.Status, c.RunID, c.StepKey, c.Host, c.ClaimedBy, text.Ago(out.now, since), c.Reason})
	}
	out.table("there are no claims", []string{"CLAIM", "SLOTS", "STATUS", "RUN", "STEP", "HOST", "CLAIMED BY", "SINCE", "REASON"}, rows)
}

// revokeWait is what a host has to stop a holder, and a while for the way.
const revokeWait = pool.RevokeGrace + 5*time.Second

// revokePoll is how often the claim is read meanwhile.
const revokePoll = 200 * time.Millisecond

func claimsRevokeCommand() *cli.Command {
	return &cli.Command{
		Name:      "revoke",
		Usage:     "revoke a claim: stop its holder and free its slots",
		ArgsUsage: "CLAIM",
		Description: `Asks the host of the claim to stop the holder and release the slots, and waits until that
is done. With --force the slots are free at once. The old holder may still run then, and
only the fencing token of a pool of one slot keeps its writes apart from those of the next
holder.

CLAIM is an id, or HOST/INSTANCE/ID if several instances hold the same id.`,
		Flags: wayFlags(
			&cli.BoolFlag{Name: "force", Usage: "free the slots at once, even if the holder still runs"},
			waitFlag("longest `TIME` to wait for the release; 0 does not wait", revokeWait),
		),
		Action: handle(func(r *request) error {
			wait, err := r.wait()
			if err != nil {
				return err
			}
			return way{r: r}.change(
				func(w way) error { return w.revokeClaim(wait) },
				func() error { return claimsRevoke(r, wait) },
			)
		}, claimArgument),
	}
}

func claimsRevoke(r *request, wait time.Duration) error {
	id := r.args[0]
	w, err := r.Why(r.ctx(), id)
	if err != nil {
		return err
	}
	if w.Waiter != nil {
		return holdsNothing(id, w.Waiter.Host)
	}
	done, err := r.RevokeClaim(r.ctx(), id, r.Bool("force"))
	if err != nil {
		return err
	}
	gone := done.Forced
	if !gone && wait > 0 {
		gone, err = waitGone(r.ctx(), wait, func() (bool, error) {
			all, err := r.etcd.Read(r.ctx())
			if err != nil {
				return false, err
			}
			w, err := all.Why(done.Claim)
			return err != nil || w.Fenced(done.Fence) == nil, nil
		})
		if err != nil {
			return err
		}
		if !gone {
			seen, err := seenInstances(r)
			return notGone(done, seen, err, wait)
		}
	}
	return printRevoked(r.printer, done, gone)
}

// printRevoked prints what was done to a claim, and whether it is gone.
func printRevoked(p *printer, done pool.Revocation, gone bool) error {
	record := inspect.Revocation{
		ID: done.Claim, Host: done.Host, Instance: done.Instance, Fence: int64(done.Fence), Forced: done.Forced, Detail: revokedText(done, gone),
	}
	return p.print(record, func(out *page) { out.line("claim %s: %s", record.ID, record.Detail) })
}

func revokedText(r pool.Revocation, gone bool) string {
	switch {
	case r.Unnotified:
		return fmt.Sprintf("its slots are free; etcd is full, so %s was not notified and the old holder may still run; fence %d", r.Host, r.Fence)
	case r.Forced:
		return fmt.Sprintf("its slots are free; the old holder on %s may still run; fence %d", r.Host, r.Fence)
	case gone:
		return "released by " + r.Host
	}
	return "revocation requested from " + r.Host
}

// holdsNothing returns the error for a waiting claim, which holds nothing to revoke.
func holdsNothing(id, host string) error {
	return problem.New(problem.Invalid, "claim %q holds no slots, it waits: stop the process that waits on %s", id, host)
}

// waitGone waits until gone reports that a claim is no longer held, and reports whether that
// came about in time.
func waitGone(ctx context.Context, wait time.Duration, gone func() (bool, error)) (bool, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	tick := time.NewTicker(revokePoll)
	defer tick.Stop()
	for {
		if is, err := gone(); is || err != nil {
			return is, err
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

// notGone returns the error for a claim that is still held. If its instance is none of those
// that were seen, its lease is not renewed. unread is why these could not be read.
func notGone(done pool.Revocation, seen map[string]bool, unread error, wait time.Duration) error {
	name := done.Host + "/" + done.Instance
	expect := "its instance " + name + " is live, and has not released it: its log may say why; --force frees the slots at once"
	switch {
	case unread != nil:
		expect = "its instance " + name + " has not released it; --force frees the slots at once"
	case !seen[name]:
		expect = "its instance " + name + " is gone; the slots are free when the lease ends, or at once with --force"
	}
	return problem.New(problem.ClaimTimeout, "claim %q is still held after %s: %s", done.Claim, text.Duration(wait), expect)
}

// seenInstances returns the instances that are up, as HOST/INSTANCE.
func seenInstances(r *request) (map[string]bool, error) {
	hosts, err := r.Hosts(r.ctx())
	seen := map[string]bool{}
	for _, h := range hosts {
		seen[h.Host+"/"+h.Instance] = true
	}
	return seen, err
}

func claimsInfoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "show a claim",
		ArgsUsage: "CLAIM",
		Action:    onEtcd(claimsInfo, claimArgument),
	}
}

func claimsInfo(r *request) error {
	w, err := r.Why(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	claim := inspect.WhyOf(w).Claim
	var expires time.Duration
	if w.Held != nil {
		ends, err := r.LeaseEnds(r.ctx(), []store.LeaseID{w.Held.Lease})
		if err != nil {
			return err
		}
		expires = ends[w.Held.Lease]
	}
	return r.print(claim, func(out *page) { claimText(out, claim, expires) })
}

func claimText(out *page, c inspect.Claim, expires time.Duration) {
	since := c.ClaimedAt
	if c.Status == inspect.ClaimWaiting {
		since = c.QueuedAt
	}
	rows := [][]string{
		{"claim", c.ID}, {"status", c.Status}, {"reason", c.Reason}, {"since", text.Ago(out.now, since)},
		{"slots", run.PoolList(c.Pools)}, {"holder", holderText(c)}, {"claimed by", c.ClaimedBy},
	}
	if c.Status == inspect.ClaimWaiting {
		rows = append(rows, []string{"position", strconv.Itoa(c.Position)}, []string{"priority", strconv.Itoa(c.Priority)})
	} else {
		rows = append(rows, []string{"fence", strconv.FormatInt(c.Fence, 10)})
	}
	if expires > 0 {
		rows = append(rows, []string{"expires", "in " + text.About(expires) + ", unless renewed"})
	}
	out.columns(withValues(rows))
}

func claimsWhyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "show what a claim waits for, and which claims are in its way",
		ArgsUsage: "CLAIM",
		Action:    onEtcd(claimsWhy, claimArgument),
	}
}

func claimsWhy(r *request) error {
	w, err := r.Why(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	why := inspect.WhyOf(w)
	return r.print(why, func(out *page) { claimWhyText(out, why) })
}

func claimWhyText(out *page, w inspect.Why) {
	if w.Reason == nil {
		out.line("claim %s does not wait: it holds %s", w.Claim.ID, run.PoolList(w.Claim.Pools))
		return
	}
	rows := [][]string{
		{"claim", w.Claim.ID}, {"status", w.Claim.Status}, {"since", text.Ago(out.now, w.Claim.QueuedAt)},
		{"slots", run.PoolList(w.Claim.Pools)}, {"holder", holderText(w.Claim)}, {"claimed by", w.Claim.ClaimedBy}, {"reason", w.Reason.Text},
		{"position", strconv.Itoa(w.Reason.Position) + " of " + strconv.Itoa(w.Reason.Waiting)},
		{"priority", strconv.Itoa(w.Claim.Priority)},
	}
	rows = append(rows, []string{"dispatcher", inspect.DispatcherText(w.Reason.Dispatcher)})
	out.columns(rows)
	holdersInTheWay(out, w.Reason.Holders)
}

// holdersInTheWay shows the holders of slots that are short.
func holdersInTheWay(out *page, holders []inspect.HolderRef) {
	if len(holders) == 0 {
		return
	}
	var rows [][]string
	for _, h := range holders {
		rows = append(rows, []string{h.Pool, h.Claim, h.RunID, h.StepKey, h.Host, strconv.Itoa(h.Slots)})
	}
	out.gap()
	out.table("", []string{"POOL", "HELD BY", "RUN", "STEP", "HOST", "SLOTS"}, rows)
}

// holderText says who a claim belongs to.
func holderText(r inspect.Claim) string {
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
