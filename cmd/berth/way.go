package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// wayFlags are the flags of commands that change something through a sidecar or in etcd.
func wayFlags(own ...cli.Flag) []cli.Flag {
	return append(own, config.Flags(config.Access)...)
}

// way is how a command changes something: through a sidecar, or in etcd.
type way struct {
	r       *request
	sidecar *client.Client // nil for etcd
}

// change changes something: through the sidecar of the settings if there is one, and otherwise in etcd. Through is
// nil if no sidecar can do it.
func (w way) change(through func(way) error, direct func() error) error {
	r := w.r
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Access)
	if err != nil {
		return err
	}
	r.changes = !r.Bool("dry-run")
	switch {
	case s.Sidecar == "":
		return r.connect(direct)
	case through == nil:
		if err := w.refuseSidecar(); err != nil {
			return err
		}
		return r.connect(direct)
	}
	c, err := dialSidecar(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return err
	}
	defer c.Close()
	w.say("the sidecar at " + s.Sidecar)
	err = through(way{r, c})
	if p := (*problem.Error)(nil); errors.As(err, &p) {
		return sidecarProblem(err, s.Sidecar)
	}
	return err // nil, or no error of the sidecar
}

// refuseSidecar refuses a sidecar for a command that no sidecar can carry out. In a settings file, it is for
// other commands.
func (w way) refuseSidecar() error {
	switch {
	case w.r.IsSet("sidecar"):
		return usagef("this command works in etcd only, and --sidecar is given: leave it out to change what is in etcd")
	case os.Getenv("BERTH_SIDECAR") != "":
		return usagef("this command works in etcd only, and BERTH_SIDECAR is set: unset it to change what is in etcd")
	}
	return nil
}

// say reports where a change is made, once.
func (w way) say(where string) {
	if r := w.r; r.changes {
		r.changes = false
		r.say("this changes %s", where)
	}
}

// setPool is [setPool] through the sidecar.
func (w way) setPool(name string, change pool.Change) error {
	r, c := w.r, w.sidecar
	before, err := c.Pool(r.ctx(), name)
	exists := err == nil && !before.Deleted
	if err != nil && problem.CodeOf(err) != problem.PoolNotFound {
		return err
	}
	ch := changeOf(change)
	set := c.SetPool
	if exists || change.Limit == nil {
		set = c.ChangePool
	}
	after, err := set(r.ctx(), name, ch)
	if err != nil {
		return err
	}
	warnOfExcess(r.Context, pool.Status{Name: name, Spec: specOf(*after), Claimed: after.Claimed})
	put := pool.Put{Spec: specOf(*after), Created: !exists}
	was := pool.Spec{}
	if exists {
		was = specOf(before.Pool)
	}
	return r.print(*after, func(out *page) { setText(out, name, put, was, exists) })
}

// changeOf returns the change of a pool as a request to a sidecar.
func changeOf(ch pool.Change) api.PoolChange {
	return api.PoolChange{
		Limit: ch.Limit, LeaseDuration: (*api.Duration)(ch.LeaseDuration), ReserveAfter: (*api.Duration)(ch.ReserveAfter),
		Paused: ch.Paused,
	}
}

// declared reads and changes through the sidecar what a file can declare.
func (w way) declared() declared {
	c, ctx := w.sidecar, w.r.ctx()
	return declared{
		pools: func() ([]pool.Status, error) {
			all, err := c.Pools(ctx)
			is := make([]pool.Status, len(all))
			for i, p := range all {
				is[i] = pool.Status{Name: p.Name, Spec: specOf(p), Claimed: p.Claimed, Deleted: p.Deleted, Problem: p.Problem}
			}
			return is, err
		},
		limits: func() (run.Limits, error) {
			l, err := c.Limits(ctx)
			if err != nil {
				return run.Limits{}, err
			}
			return limitsIn(l), nil
		},
		setLimits: func(change run.LimitsChange) error {
			_, _, err := w.changeLimits(change)
			return err
		},
		setPool: func(p poolPlan) error {
			set := c.ChangePool
			if p.Action == creates {
				set = c.SetPool
			}
			_, err := set(ctx, p.Name, changeOf(p.change))
			return err
		},
		deletePool: func(name string) error { return c.DeletePool(ctx, name) },
	}
}

// specOf returns the settings of a pool as a sidecar has answered them.
func specOf(p api.Pool) pool.Spec {
	return pool.Spec{
		Limit: p.Limit, LeaseDuration: time.Duration(p.LeaseDuration), ReserveAfter: time.Duration(p.ReserveAfter),
		Paused: p.Paused,
	}
}

// pausePool pauses or resumes a pool through the sidecar.
func (w way) pausePool(paused bool, now string) error {
	r, c := w.r, w.sidecar
	do := c.ResumePool
	if paused {
		do = c.PausePool
	}
	p, err := do(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	return r.print(*p, func(out *page) { out.line("pool '%s' %s", p.Name, now) })
}

// deletePool deletes a pool through the sidecar.
func (w way) deletePool() error {
	r, c := w.r, w.sidecar
	d, err := c.Pool(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	if err := c.DeletePool(r.ctx(), d.Name); err != nil {
		return err
	}
	return printDeleted(r.printer, deletedRecord{Name: d.Name, Claimed: d.Claimed, Holders: len(d.Holders), Waiters: len(d.Waiters)})
}

// cancelRun cancels a run through the sidecar.
func (w way) cancelRun(onlyQueued bool) error {
	r, c := w.r, w.sidecar
	why, err := w.reasonOrBy("canceled")
	if err != nil {
		return err
	}
	one, err := c.CancelRun(r.ctx(), r.args[0], api.RunCancel{Reason: why, QueuedOnly: onlyQueued})
	if err != nil {
		return err
	}
	return r.print(*one, func(out *page) {
		stops := ""
		if one.Executor != nil && !one.StartedAt.IsZero() {
			stops = "; its executor on host '" + one.Executor.Host + "' stops with its next heartbeat"
		}
		out.line("run %s is canceled: %s%s", one.ID, one.Error, stops)
	})
}

// reasonOrBy is [reasonOrBy] through the sidecar.
func (w way) reasonOrBy(done string) (string, error) {
	return reasonOr(w.r.Context, func() (string, error) {
		id, err := w.sidecar.Whoami(w.r.ctx())
		if err != nil {
			return "", err
		}
		return done + " by " + id.Identity, nil
	})
}

// retryRun retries a run through the sidecar.
func (w way) retryRun() error {
	r, c := w.r, w.sidecar
	why, err := w.reasonOrBy("retried")
	if err != nil {
		return err
	}
	before, err := c.Run(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	after, err := c.RetryRun(r.ctx(), before.ID, api.RunRetry{Reason: why})
	if err != nil {
		return err
	}
	if now := (&run.Run{ID: after.ID, Record: run.Record{Status: run.Status(after.Status)}}); !run.Status(before.Status).Ended() {
		return now.Retriable() // nothing was queued again
	}
	return r.print(*after, func(out *page) { out.line("run %s is queued again", after.ID) })
}

// limitsTries bounds how often a change of limits is tried while others change them.
const limitsTries = 5

// setLimits is [setLimits] through the sidecar.
func (w way) setLimits(change run.LimitsChange) error {
	before, now, err := w.changeLimits(change)
	if err != nil {
		return err
	}
	used, err := w.usedOf(now)
	if err != nil {
		return err
	}
	return printLimits(w.r, before, now, used)
}

// changeLimits changes limits through the sidecar, and returns those before and after.
func (w way) changeLimits(change run.LimitsChange) (before, now run.Limits, err error) {
	r, c := w.r, w.sidecar
	for try := 1; ; try++ {
		was, err := c.Limits(r.ctx())
		if err != nil {
			return before, now, err
		}
		before = limitsIn(was)
		wanted := api.LimitsChange{MaxConcurrentRuns: change.MaxConcurrentRuns}
		if len(change.Tags) > 0 { // the sidecar replaces all
			wanted.Tags = []api.TagLimit{}
			for _, t := range change.Apply(before).Tags {
				wanted.Tags = append(wanted.Tags, api.TagLimit(t))
			}
		}
		is, err := c.ChangeLimits(r.ctx(), wanted, client.IfMatch(was.Revision))
		if problem.CodeOf(err) == problem.Precondition && try < limitsTries {
			continue
		}
		if err != nil {
			return before, now, err
		}
		return before, limitsIn(is), nil
	}
}

// usedOf is [usedOf] through the sidecar.
func (w way) usedOf(l run.Limits) ([]usedLimit, error) {
	all, _, err := w.sidecar.Runs(w.r.ctx(), client.RunFilter{Statuses: []string{string(run.NotStarted), string(run.Running)}})
	if err != nil {
		return nil, err
	}
	runs := make([]*run.Run, len(all))
	for i, one := range all {
		runs[i] = &run.Run{ID: one.ID, Record: run.Record{Spec: run.Spec{Tags: one.Tags}}}
	}
	return usedLimits(runs, l), nil
}

// limitsIn returns limits as a sidecar has answered them.
func limitsIn(l *api.Limits) run.Limits {
	limits := run.Limits{MaxConcurrentRuns: l.MaxConcurrentRuns}
	for _, t := range l.Tags {
		limits.Tags = append(limits.Tags, run.TagLimit(t))
	}
	return limits
}

// wakeSource is [sourceWake] through the sidecar.
func (w way) wakeSource(wait time.Duration) error {
	r := w.r
	poll, err := w.sidecar.WakeSource(r.ctx(), r.args[0], wait)
	switch {
	case err != nil || wait == 0:
		return err
	case poll == nil:
		return &statusError{problem.ExitTimeout, notPolled(r.args[0], wait)}
	}
	return printPoll(r.printer, *poll)
}

// revokeClaim is [claimsRevoke] through the sidecar.
func (w way) revokeClaim(wait time.Duration) error {
	r, c := w.r, w.sidecar
	claim, err := w.claim(r.args[0])
	if err != nil {
		return err
	}
	if claim.Status == api.ClaimWaiting {
		return holdsNothing(r.args[0], claim.Host)
	}
	did, err := c.RevokeOn(r.ctx(), claim.Host, claim.Instance, claim.ID, r.Bool("force"))
	if err != nil {
		return err
	}
	done := pool.Revocation{Claim: did.ID, Host: did.Host, Instance: did.Instance, Fence: store.Fence(did.Fence), Forced: did.Forced}
	gone := done.Forced
	if !gone && wait > 0 {
		if gone, err = waitGone(r.ctx(), wait, func() (bool, error) { return w.isGone(done) }); err != nil {
			return err
		}
		if !gone {
			hosts, err := c.Hosts(r.ctx())
			seen := map[string]bool{}
			for _, h := range hosts {
				seen[h.Host+"/"+h.Instance] = true
			}
			return notGone(done, seen, err, wait)
		}
	}
	return printRevoked(r.printer, done, gone)
}

// claim returns a claim that an id names, or HOST/INSTANCE/ID.
func (w way) claim(name string) (*api.Claim, error) {
	parts := strings.Split(name, "/")
	if len(parts) == 1 {
		why, err := w.sidecar.Why(w.r.ctx(), name)
		if err != nil {
			return nil, err
		}
		return &why.Claim, nil
	}
	all, err := w.sidecar.Claims(w.r.ctx(), client.ClaimFilter{Host: parts[0]})
	if err != nil {
		return nil, err
	}
	for _, claim := range all {
		if claim.Host+"/"+claim.Instance+"/"+claim.ID == name {
			return &claim, nil
		}
	}
	return nil, problem.New(problem.ClaimNotFound, "no claim %q is held or waits; 'berth claims list' lists the claims", name)
}

// isGone reports whether a revoked claim is no longer held.
func (w way) isGone(done pool.Revocation) (bool, error) {
	claim, err := w.claim(w.r.args[0])
	if problem.CodeOf(err) == problem.ClaimNotFound {
		return true, nil
	}
	return err == nil && claim.Fence != int64(done.Fence), err
}

// submit is [asked.queue] through the sidecar.
func (w way) submit(a *asked, wait time.Duration) error {
	r, c := w.r, w.sidecar
	_, unknown := c.Run(r.ctx(), a.ID)
	one, err := c.SubmitRun(r.ctx(), requestOf(a))
	switch {
	case err != nil && a.Placed != nil:
		return a.Placed(err)
	case err != nil:
		return err
	}
	if unknown == nil {
		r.say("run %s was submitted before; it is %s", one.ID, one.Status)
	}
	show := func(one *api.Run) error { return r.print(*one, func(out *page) { out.line("%s", one.ID) }) }
	if wait == 0 || r.format == "table" { // the id is of use while it runs
		if err := show(one); err != nil || wait == 0 {
			return err
		}
	}
	late := func() error { return notEnded(one.ID, wait) }
	if err := r.within(wait, late, func(ctx context.Context) error {
		return w.followRun(ctx, one.ID)
	}); err != nil {
		return err
	}
	if one, err = c.Run(r.ctx(), one.ID); err != nil {
		return err
	}
	end := endText(&run.Run{ID: one.ID, Record: run.Record{Status: run.Status(one.Status), Error: one.Error}})
	if r.format != "table" {
		err = show(one)
	}
	switch {
	case err != nil:
		return err
	case run.Status(one.Status) != run.Succeeded:
		return errors.New(end + w.failureText(one))
	case r.format == "table":
		r.say("%s", end)
	}
	return nil
}

// requestOf returns what is submitted as the request to a sidecar.
func requestOf(a *asked) api.RunRequest {
	s := a.Spec
	return api.RunRequest{
		ID: a.ID, Name: s.Name, Tags: s.Tags, Labels: s.Labels, Owner: s.Owner, Priority: s.Priority, Retries: s.Retries,
		NotBefore: s.NotBefore, Delay: api.Duration(s.Delay), Pools: s.Pools, Steps: a.Steps,
		MaxConcurrentSteps: s.MaxConcurrentSteps, MaxStepsPerTick: s.MaxStepsPerTick,
	}
}
