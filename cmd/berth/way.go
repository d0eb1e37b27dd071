package main

import (
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// wayFlags are the flags of commands that change something through a sidecar or in etcd.
func wayFlags(own ...cli.Flag) []cli.Flag {
	return append(append(own, config.Flags(config.Access)...), verboseFlag)
}

var verboseFlag = &cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "report where the change is made, even if stderr is not a terminal"}

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
	switch {
	case s.Sidecar == "":
		return r.connect(direct)
	case through == nil && os.Getenv("BERTH_SIDECAR") == "": // in a settings file, it is for other commands
		return r.connect(direct)
	case through == nil:
		return usagef("this command works in etcd only, and BERTH_SIDECAR is set: unset it to change what is in etcd")
	}
	c, err := dialSidecar(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return err
	}
	defer c.Close()
	w.say("the sidecar at " + s.Sidecar)
	if err := through(way{r, c}); err != nil {
		return sidecarProblem(err, s.Sidecar)
	}
	return nil
}

// say reports where a change is made, to a terminal or if that is wanted.
func (w way) say(where string) {
	if r := w.r; r.Bool(verboseFlag.Name) || isatty.IsTerminal(os.Stderr.Fd()) {
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
	ch := api.PoolChange{
		Limit: change.Limit, LeaseDuration: (*api.Duration)(change.LeaseDuration),
		ReserveAfter: (*api.Duration)(change.ReserveAfter), Retain: (*api.Duration)(change.Retain),
	}
	set := c.SetPool
	if exists || change.Limit == nil {
		set = c.ChangePool
	}
	after, err := set(r.ctx(), name, ch)
	if err != nil {
		return err
	}
	warnOfExcess(r, pool.Status{Name: name, Spec: specOf(*after), Claimed: after.Claimed})
	warnOfRetain(r, name, time.Duration(after.Retain))
	put := pool.Put{Spec: specOf(*after), Created: !exists}
	was := pool.Spec{}
	if exists {
		was = specOf(before.Pool)
	}
	return r.print(*after, func(out *page) { setText(out, name, put, was, exists) })
}

// specOf returns the settings of a pool as a sidecar has answered them.
func specOf(p api.Pool) pool.Spec {
	return pool.Spec{
		Limit: p.Limit, LeaseDuration: time.Duration(p.LeaseDuration), ReserveAfter: time.Duration(p.ReserveAfter),
		Retain: time.Duration(p.Retain), Paused: p.Paused,
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
	why, err := reasonOr(r.Context, func() (string, error) {
		id, err := c.Whoami(r.ctx())
		if err != nil {
			return "", err
		}
		return "canceled by " + id.Identity, nil
	})
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
