package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/sidecar/api"
)

func poolsCommand() *cli.Command {
	return &cli.Command{
		Name:     "pools",
		Category: operating,
		Usage:    "list, create and change pools",
		Subcommands: []*cli.Command{
			poolsListCommand(), poolsInfoCommand(), poolsSetCommand(),
			poolsDeleteCommand(), poolsPauseCommand(), poolsResumeCommand(),
		},
	}
}

func poolsListCommand() *cli.Command {
	return &cli.Command{
		Name:   "list",
		Usage:  "list all pools",
		Action: onEtcd(poolsList),
	}
}

func poolsList(r *request) error {
	all, err := r.Pools(r.ctx())
	if err != nil {
		return err
	}
	list := inspect.ListOf(all, inspect.PoolOf)
	return r.print(list, func(out *page) { poolsTable(out, list.Items) })
}

func poolsTable(out *page, pools []inspect.Pool) {
	var rows [][]string
	for _, p := range pools {
		limit, lease := pool.LimitText(p.Limit), text.Duration(time.Duration(p.LeaseDuration))
		switch {
		case p.Status == inspect.PoolDeleted || p.Status == inspect.PoolUnreadable:
			limit, lease = "", ""
		case p.Limit == pool.Closed:
			limit = "0" // the status says the rest
		}
		rows = append(rows, []string{p.Name, limit, strconv.Itoa(p.Claimed), strconv.Itoa(p.Waiting), lease, p.Status})
	}
	out.table("there are no pools; 'berth pools set NAME LIMIT' creates one",
		[]string{"POOL", "LIMIT", "CLAIMED", "WAITING", "LEASE", "STATUS"}, rows)
}

func poolsInfoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "show a pool with its holders and waiters",
		ArgsUsage: "POOL",
		Action:    onEtcd(poolsInfo, poolArgument),
	}
}

func poolsInfo(r *request) error {
	detail, err := r.Detail(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	return r.print(detail, func(out *page) {
		poolText(out, detail.Pool)
		out.gap()
		holdersTable(out, detail.Holders)
		if n := detail.ExpiriesUnknown; n > 0 {
			out.line("(etcd did not report in time when the leases of %s end)", text.Count(n, "holder"))
		}
		if len(detail.Waiters) > 0 {
			out.gap()
			waitersTable(out, detail.Waiters)
		}
	})
}

func poolText(out *page, p inspect.Pool) {
	rows := [][]string{{"pool", p.Name}, {"status", p.Status}}
	if p.Problem != "" {
		rows = append(rows, []string{"problem", p.Problem})
	}
	if !p.Deleted && p.Problem == "" {
		rows = append(rows,
			[]string{"limit", pool.LimitText(p.Limit)},
			[]string{"lease", leaseText(time.Duration(p.LeaseDuration))},
			[]string{"reserve", pool.ReserveText(time.Duration(p.ReserveAfter))})
	}
	rows = append(rows, []string{"claimed", strconv.Itoa(p.Claimed)}, []string{"waiting", strconv.Itoa(p.Waiting)})
	if p.Waiting > 0 {
		rows = append(rows, []string{"dispatcher", inspect.DispatcherText(p.Dispatcher)})
	}
	out.columns(rows)
}

// leaseText returns a lease duration with the outage that it survives.
func leaseText(d time.Duration) string {
	return fmt.Sprintf("%s (%s)", text.Duration(d), survivesText(d))
}

// survivesText says how long etcd can be unavailable before claims are lost.
func survivesText(d time.Duration) string {
	return "survives an etcd outage of about " + text.About(inspect.Survives(d))
}

func holdersTable(out *page, holders []api.Holder) {
	var rows [][]string
	for _, h := range holders {
		expires := ""
		if h.ExpiresIn > 0 {
			expires = "in " + text.About(time.Duration(h.ExpiresIn))
		}
		rows = append(rows, []string{h.Claim, h.RunID, h.StepKey, h.Host, strconv.Itoa(h.Slots), text.Ago(out.now, h.Since), expires})
	}
	out.table("no slots are held", []string{"CLAIM", "RUN", "STEP", "HOST", "SLOTS", "SINCE", "EXPIRES"}, rows)
}

func waitersTable(out *page, waiters []api.Waiter) {
	var rows [][]string
	for _, w := range waiters {
		rows = append(rows, []string{
			strconv.Itoa(w.Position), w.Claim, w.RunID, w.StepKey, w.Host,
			strconv.Itoa(w.Slots), strconv.Itoa(w.Priority), text.Ago(out.now, w.Since), w.Reason,
		})
	}
	out.table("no claim waits", []string{"POS", "WAITING", "RUN", "STEP", "HOST", "SLOTS", "PRI", "SINCE", "REASON"}, rows)
}

func poolsSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "create or change a pool",
		ArgsUsage: "POOL [LIMIT]",
		Description: `LIMIT is a number of slots, 0 to close the pool, or -1 for no limit. A new pool needs one.
Settings that no flag names are not changed. A lower limit stops no holder: no more slots
are granted until enough are released.`,
		Flags: wayFlags(
			&cli.StringFlag{Name: "lease-duration", Usage: "`TIME` after which the slots of a dead holder are free", DefaultText: unchanged + ", " + text.Duration(pool.DefaultLeaseDuration) + " in a new pool"},
			&cli.StringFlag{Name: "reserve-after", Usage: "`TIME` after which no later waiter passes a waiter; 0 for at once, -1 for never", DefaultText: unchanged + ", " + text.Duration(pool.DefaultReserveAfter) + " in a new pool"},
		),
		Action: handle(poolsSet, poolArgument, argument{name: "a limit", optional: true}),
	}
}

func poolsSet(r *request) error {
	change, err := poolChange(r.Context, r.args[1:])
	if err != nil {
		return err
	}
	return way{r: r}.change(
		func(w way) error { return w.setPool(r.args[0], change) },
		func() error { return setPool(r, r.args[0], change) },
	)
}

// poolChange reads what the command line says of a pool: at most one limit, and flags.
func poolChange(c *cli.Context, limit []string) (pool.Change, error) {
	var change pool.Change
	if len(limit) > 0 {
		n, err := pool.ParseLimit(limit[0])
		if err != nil {
			return change, usagef("LIMIT %s", problem.Of(err).Message)
		}
		change.Limit = &n
	} else if !slices.ContainsFunc([]string{"lease-duration", "reserve-after"}, c.IsSet) {
		return change, usagef("a limit is missing: give LIMIT, or a setting to change, such as --lease-duration")
	}
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
	return change, ofLine(change.Validate())
}

func setPool(r *request, name string, change pool.Change) error {
	before, err := r.Pool(r.ctx(), name)
	if err != nil && problem.CodeOf(err) != problem.PoolNotFound {
		return err
	}
	set := r.SetPool
	if change.Limit == nil { // the pool exists
		set = r.ChangePool
	}
	put, err := set(r.ctx(), name, change)
	if err != nil {
		return err
	}
	after, err := r.Pool(r.ctx(), name)
	if err != nil {
		return err
	}
	warnOfExcess(r.Context, after.Status)
	return r.print(inspect.PoolOf(after.Status), func(out *page) { setText(out, name, put, before.Spec, before.SpecRevision != 0) })
}

// setText says what has changed of a pool, if it was known before.
func setText(out *page, name string, put pool.Put, before pool.Spec, known bool) {
	switch {
	case put.Created:
		out.line("pool '%s' created: %s", name, audit.SpecText(put.Spec))
	case put.Spec == before || !known:
		out.line("pool '%s' unchanged: %s", name, audit.SpecText(put.Spec))
	default:
		out.line("pool '%s' changed: %s", name, strings.Join(specChanges(before, put.Spec), ", "))
	}
	out.line("leases of its claims: %s; %s", text.Duration(put.Spec.LeaseDuration), survivesText(put.Spec.LeaseDuration))
}

// warnOfExcess warns if more slots are claimed than the limit.
func warnOfExcess(c *cli.Context, p pool.Status) {
	if p.Limit != pool.Unlimited && p.Claimed > p.Limit {
		more := p.Claimed - p.Limit
		say(c, "warning: %s of '%s' %s claimed, above its limit of %d; no holder is stopped, and no slots are granted until %d %s released",
			text.Count(p.Claimed, "slot"), p.Name, are(p.Claimed), p.Limit, more, are(more))
	}
}

// specChanges says what differs between two specs of a pool.
func specChanges(old, new pool.Spec) []string {
	var all []string
	differs := func(what, a, b string) {
		if a != b {
			all = append(all, what+" "+a+" → "+b)
		}
	}
	differs("limit", pool.LimitText(old.Limit), pool.LimitText(new.Limit))
	differs("lease", text.Duration(old.LeaseDuration), text.Duration(new.LeaseDuration))
	differs("reserve", pool.ReserveText(old.ReserveAfter), pool.ReserveText(new.ReserveAfter))
	switch {
	case new.Paused && !old.Paused:
		all = append(all, "paused")
	case old.Paused && !new.Paused:
		all = append(all, "resumed")
	}
	return all
}

func poolsPauseCommand() *cli.Command {
	return &cli.Command{
		Name:      "pause",
		Usage:     "grant no more slots of a pool; holders and waiters stay",
		ArgsUsage: "POOL",
		Flags:     wayFlags(),
		Action:    pausing(true, "is paused: its holders keep their slots, its waiters wait"),
	}
}

func poolsResumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "grant slots of a paused pool again",
		ArgsUsage: "POOL",
		Flags:     wayFlags(),
		Action:    pausing(false, "grants slots"),
	}
}

// pausing returns the action of a command that pauses or resumes a pool.
func pausing(paused bool, now string) cli.ActionFunc {
	return handle(func(r *request) error {
		return way{r: r}.change(
			func(w way) error { return w.pausePool(paused, now) },
			func() error { return setPaused(r, paused, now) },
		)
	}, poolArgument)
}

func setPaused(r *request, paused bool, now string) error {
	name := r.args[0]
	if _, err := r.PausePool(r.ctx(), name, paused); err != nil {
		return err
	}
	d, err := r.Pool(r.ctx(), name)
	if err != nil {
		return err
	}
	return r.print(inspect.PoolOf(d.Status), func(out *page) { out.line("pool '%s' %s", name, now) })
}

func poolsDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete a pool; its holders keep their slots, its waiters are refused",
		ArgsUsage: "POOL",
		Flags:     wayFlags(),
		Action: handle(func(r *request) error {
			return way{r: r}.change(func(w way) error { return w.deletePool() }, func() error { return poolsDelete(r) })
		}, poolArgument),
	}
}

// deletedRecord is a deleted pool in JSON.
type deletedRecord struct {
	Name    string `json:"name"`
	Claimed int    `json:"claimed"` // slots still held
	Holders int    `json:"holders"`
	Waiters int    `json:"waiters"` // refused
}

func poolsDelete(r *request) error {
	name := r.args[0]
	d, err := r.Pool(r.ctx(), name)
	if err != nil {
		return err
	}
	if err := r.DeletePool(r.ctx(), name); err != nil {
		return err
	}
	return printDeleted(r.printer, deletedRecord{Name: name, Claimed: d.Claimed, Holders: len(d.Holders), Waiters: len(d.Waiters)})
}

func printDeleted(p *printer, record deletedRecord) error {
	return p.print(record, func(out *page) {
		out.line("pool '%s' deleted", record.Name)
		if record.Holders > 0 {
			out.line("%s still held by %s, until released or expired", text.Count(record.Claimed, "slot"), text.Count(record.Holders, "claim"))
		}
		if record.Waiters > 0 {
			out.line("%s refused that waited", text.Count(record.Waiters, "claim"))
		}
	})
}

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:     "verify",
		Category: operating,
		Usage:    "check the state in etcd against the invariants",
		Description: `Checks that no pool grants more slots than its limit (a lowered limit aside), that every
claim is complete, that everything that is held ends with a lease, and that every value
can be read. Claims and waiters of instances that are gone are listed as orphaned: they
end with their leases, and are a violation only if etcd does not have the lease.

Exits with 1 if an invariant is violated. Changes nothing.`,
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
	// with their leases, which are not renewed; those on a lease that etcd does not have
	// are among the violations.
	Orphaned []orphanedRecord `json:"orphaned"`
}

type orphanedRecord struct {
	Claim    string `json:"claim"`
	Status   string `json:"status"`
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
			all = append(all, orphanedRecord{Claim: h.Claim, Status: inspect.ClaimHeld, Host: h.Host, Instance: h.Instance})
			leases = append(leases, h.Lease)
		}
	}
	for _, w := range waiters {
		if !seen[w.Host+"/"+w.Instance] {
			all = append(all, orphanedRecord{Claim: w.Claim, Status: inspect.ClaimWaiting, Host: w.Host, Instance: w.Instance})
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
		case left > 0 && all[i].Status == inspect.ClaimHeld:
			all[i].Expires = text.About(left)
		case known && left == 0 && id != 0: // on no lease it is a violation anyway
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	stuck, err := list.Stuck(r.ctx(), r.etcd.Backend, r.etcd.Keys, slices.Compact(ended))
	return all, stuck, err
}

func verify(r *request) error {
	all, err := r.etcd.Read(r.ctx())
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
		case o.Status == inspect.ClaimWaiting:
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
