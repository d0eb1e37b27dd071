package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name:     "dev",
		Category: serving,
		Usage:    "run everything in this process, on an etcd of its own",
		Description: `To try berth, and for one machine: a sidecar with its pages, from which one may act, and a coordinator that admits runs.
Pools, claims and runs are kept in --data-dir. Other commands find it by themselves at the default addresses, and otherwise by what it
prints (-o json for programs). Stops on INT and TERM; a second one does not wait.`,
		Flags: append(config.Flags(config.Dev, config.Serve, config.Lead),
			&cli.StringSliceFlag{Name: "pool", Usage: "make a pool unless it exists, `POOL=LIMIT`; may be repeated"}),
		Action: dev,
	}
}

// devStart bounds the start, also on a slow disk.
const devStart = 60 * time.Second

func dev(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	s, err := config.Load(config.FromCLI(c), config.Common, config.Dev, config.Serve, config.Lead, config.Claims)
	if err != nil {
		return err
	}
	pools, err := parsePools(c.StringSlice("pool"))
	if err != nil {
		return err
	}
	log := newLogger(c.App.ErrWriter, s, hclog.Warn)
	ctx, cancel := context.WithCancelCause(c.Context)
	defer cancel(nil)
	defer stopOnSignals(false, func(unix.Signal) bool { cancel(errStopped); return true })()

	etcd, err := startEtcd(ctx, s, log)
	if err != nil {
		return ended(ctx, err)
	}
	err = serveDev(ctx, s, etcd, pools, log, func(at addresses) error {
		return p.print(at, func(out *page) { banner(out, at) })
	})
	return ended(ctx, errors.Join(err, etcd.Close()))
}

// errStopped is why dev ends on a signal.
var errStopped = errors.New("stopped")

// ended leaves out what only says that a signal has ended it.
func ended(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStopped) && (errors.Is(err, errStopped) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func startEtcd(ctx context.Context, s config.Settings, log hclog.Logger) (*embed.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	etcd, err := embed.Start(ctx, embed.Config{
		DataDir: filepath.Join(s.DataDir, "etcd"), ClientListen: s.EtcdListen, Logger: log,
	})
	for kind, what := range map[error]struct{ field, todo string }{
		embed.ErrAddressInUse:  {"etcd_listen", "choose another with --etcd-listen; 127.0.0.1:0 is any that is free"},
		embed.ErrDataDirLocked: {"data_dir", "stop the other process, or choose another with --data-dir"},
		embed.ErrDataDir:       {"data_dir", "choose another with --data-dir"},
		embed.ErrDiskFull:      {"data_dir", "make room, or choose another with --data-dir"},
		embed.ErrDataTooNew:    {"data_dir", "use the berth that has written it, or choose another with --data-dir"},
	} {
		if errors.Is(err, kind) {
			return nil, problem.Field(what.field, "%w; %s", err, what.todo)
		}
	}
	return etcd, err
}

// parsePools reads POOL=LIMIT each.
func parsePools(texts []string) (map[string]int, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	return parseSlots(texts)
}

func banner(out *page, at addresses) {
	out.line("berth is running on an etcd of its own")
	out.gap()
	var pages string
	if at.HTTP != "" {
		pages = at.HTTP + "/pools"
	}
	rows := [][]string{{"  pages", pages}, {"  http", at.HTTP}, {"  socket", at.Socket}, {"  etcd", at.Etcd}, {"  data", at.DataDir}}
	out.columns(keep(rows, func(row []string) bool { return row[1] != "" }))
	out.gap()
	out.line("Try, in another terminal:")
	out.gap()
	if at.Etcd != "http://"+embed.DefaultClientListen {
		out.line("  export BERTH_ENDPOINTS=%s", at.Etcd)
	}
	out.line("  berth pools set demo 3")
	out.line("  berth exec --pool demo -- sleep 10")
	out.line("  berth pools info demo")
	out.gap()
	out.line("Ctrl-C stops it. (process %d)", at.PID)
}
