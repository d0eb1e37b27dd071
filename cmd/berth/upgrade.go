package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool/registry"
)

func upgradeCommand() *cli.Command {
	return &cli.Command{
		Name:     "upgrade",
		Category: operating,
		Usage:    "upgrade the data in etcd to the layout of this build",
		Description: `A berth of another layout does not use the data: its processes end, and say so. First stop all
processes of the earlier berth, and wait until no claim is held. While a process is alive or a
claim is held, the command changes nothing, and says which. 'berth dev', and 'berth server'
without --cluster, wait for that and upgrade their data by themselves.

Pools with their settings are kept, and so are runs, limits, sources and the records of actions.
Claims that waited are not. Hosts no longer retain slots: the setting retain is gone.

If the command is interrupted, run it again: until it has ended, no process uses the data. To
go back to the earlier berth, restore a snapshot ('berth cluster snapshot').`,
		Action: handle(upgrade),
	}
}

// upgradeRecord is what was upgraded, in JSON.
type upgradeRecord struct {
	Prefix string `json:"prefix"`
	Layout int    `json:"layout"`
	// Already is set if the data had that layout before. Then nothing was read or changed.
	Already bool `json:"already"`
	// Pools is how many pools there are, and DeletedKeys how many keys were deleted.
	Pools       int   `json:"pools,omitempty"`
	DeletedKeys int64 `json:"deleted_keys,omitempty"`
	// Retained names the pools of which hosts retained slots.
	Retained []string `json:"retained,omitempty"`
}

func upgrade(r *request) error {
	if err := (way{r: r}).refuseSidecar(); err != nil {
		return err
	}
	return r.dial(func(s config.Settings, backend *store.Client) error {
		r.changes = true
		way{r: r}.say("etcd at " + s.EtcdAt())
		done, err := registry.Layout{Backend: backend, Keys: store.NewKeys(s.Prefix)}.Upgrade(r.ctx())
		if err != nil {
			return err
		}
		record := upgradeRecord{s.Prefix, registry.Version, done.Already, done.Pools, done.Keys, done.Retained}
		return r.print(record, func(out *page) { upgradeText(out, record) })
	})
}

func upgradeText(out *page, r upgradeRecord) {
	if r.Already {
		out.line("the data under %s has the layout %d already", r.Prefix, r.Layout)
		return
	}
	out.line("the data under %s has the layout %d now: %s kept, %s deleted", r.Prefix, r.Layout, text.Count(r.Pools, "pool"), text.Count(int(r.DeletedKeys), "key"))
	if len(r.Retained) > 0 {
		out.line("hosts no longer retain slots of these pools: %s", strings.Join(r.Retained, ", "))
	}
	out.line("the berth processes can be started")
}

// layoutCheck reports whether processes of this build and of the one that runs can use the same data.
func layoutCheck(r *request) (c cluster.Check, err error) {
	err = r.dial(func(s config.Settings, backend *store.Client) error {
		return registry.Layout{Backend: backend, Keys: store.NewKeys(s.Prefix)}.Check(r.ctx())
	})
	switch c.Name = "layout"; {
	case err == nil:
		c.OK, c.Detail = true, "this build uses the data as it is"
	case errors.Is(err, registry.ErrOldLayout):
		c.Detail = "the data is " + registry.ErrOldLayout.Error() + ": stop all processes, start the servers with this build, and run 'berth upgrade'"
	default:
		return c, err
	}
	return c, nil
}

// upgradeEvery is the interval between tries to upgrade data that is in use.
const upgradeEvery = time.Second

// upgradeOwn upgrades the data of an etcd that only this process serves. While it is in use, upgradeOwn waits, and calls
// waits with the reason: claims of the earlier process end with their leases.
func upgradeOwn(ctx context.Context, s config.Settings, log hclog.Logger, waits func(why string)) error {
	backend, err := newBackend(s, log, nil, nil)
	if err != nil {
		return err
	}
	defer backend.Close()
	layout := registry.Layout{Backend: backend, Keys: store.NewKeys(s.Prefix)}
	for tries := new(lograte.Tries); ; {
		done, err := layout.Upgrade(ctx)
		var busy *registry.BusyError
		switch {
		case err == nil && done.Pools+int(done.Keys) > 0:
			log.Info("upgraded the data of an earlier berth", "layout", registry.Version, "pools", done.Pools, "deleted_keys", done.Keys, "retained", done.Retained)
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &busy):
			waits("the data is of an earlier berth, and is upgraded when it is not in use: " + busy.Error())
			err = busy // it needs no command
		case problem.CodeOf(err) != problem.EtcdUnavailable:
			return err
		}
		if tries.Allow(err) {
			log.Warn("the data of an earlier berth can't be upgraded yet, trying again", "error", err)
		}
		select {
		case <-time.After(upgradeEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
