package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/server"
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
		Action: handle(dev),
	}
}

// devStart bounds the start, also on a slow disk.
const devStart = 60 * time.Second

func dev(r *request) error {
	c := r.Context
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
		return r.print(at, func(out *page) { banner(out, at) })
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

// serveDev runs the sidecar and a candidate on an etcd until ctx ends, or one of them can't go
// on. It calls ready when the sidecar serves.
func serveDev(ctx context.Context, s config.Settings, etcd *embed.Server, pools map[string]int, log hclog.Logger, ready func(addresses) error) error {
	s, err := devSettings(s, etcd)
	if err != nil {
		return err
	}
	cfg, err := sidecarConfig(s, log)
	if err != nil {
		return err
	}
	cfg.Dev = true
	cfg.Options.StateDir = filepath.Join(s.DataDir, "state")
	server := sidecar.New(cfg)
	if err := server.Listen(ctx); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w; choose another with --listen; 127.0.0.1:0 is any that is free", err)
		}
		return err
	}
	st, err := stand(s, log, cfg.Registerer)
	if err != nil {
		return err
	}
	done := inBackground(func() error { return server.Run(context.WithoutCancel(ctx)) })
	at := addressesOf(s, server)
	at.Etcd, at.DataDir = etcd.Endpoint(), s.DataDir
	select {
	case err := <-done:
		return errors.Join(err, st.stepDown())
	case err := <-inBackground(func() error { return prepareDev(ctx, cfg.Options, at, s, pools) }):
		if err == nil {
			err = ready(at)
		}
		if err != nil {
			server.Stop(sidecar.Leave)
			return errors.Join(err, <-done, st.stepDown())
		}
	}
	select {
	case err := <-done:
		return errors.Join(err, st.stepDown())
	case err := <-etcd.Err():
		server.Stop(sidecar.Leave)
		return errors.Join(fmt.Errorf("etcd has stopped: %w", err), <-done, st.stepDown())
	case <-st.failed():
	case <-ctx.Done():
	}
	err = st.stepDown()
	server.Stop(sidecar.Revoke)
	return errors.Join(err, <-done)
}

// devSettings are the settings for the embedded etcd, whatever they say of
// another one.
func devSettings(s config.Settings, etcd *embed.Server) (config.Settings, error) {
	s.Endpoints = []string{etcd.Endpoint()}
	s.CACert, s.Cert, s.Key, s.User, s.Password = "", "", "", "", ""
	dir, err := filepath.Abs(s.DataDir)
	if err != nil {
		return s, err
	}
	s.DataDir = dir
	// Where the data directory is too deep for a socket, dev does without one.
	if socket := filepath.Join(dir, "berth.sock"); s.Socket == "" && len(socket) <= server.MaxSocketPath {
		s.Socket = socket
	}
	return s, nil
}

// prepareDev waits until the sidecar is ready, and makes the pools that are
// missing.
func prepareDev(ctx context.Context, o berth.Options, at addresses, s config.Settings, pools map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	if err := awaitReady(ctx, at, s.Token.Reveal()); err != nil {
		return err
	}
	if len(pools) == 0 {
		return nil
	}
	o.Registerer, o.StateDir = nil, "" // an operator is no instance
	admin, err := berth.Connect(ctx, o)
	if err != nil {
		return err
	}
	defer admin.Close()
	r, err := admin.Read(ctx)
	if err != nil {
		return err
	}
	for _, name := range sortedNames(pools) {
		limit := pools[name]
		if _, err := r.Pool(name); problem.CodeOf(err) != problem.PoolNotFound {
			continue // it exists, or setting it says what is wrong
		}
		if _, err := admin.SetPool(ctx, name, pool.Change{Limit: &limit}); err != nil {
			return err
		}
	}
	return nil
}

// inBackground calls do and delivers its result.
func inBackground(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// readyLook is how often it is asked whether the sidecar is ready.
const readyLook = 20 * time.Millisecond

// awaitReady waits until the sidecar can make claims.
func awaitReady(ctx context.Context, at addresses, token string) error {
	client, err := sidecar.Dial(cmp.Or(at.Socket, at.HTTP), token)
	if err != nil {
		return err
	}
	defer client.Close()
	tick := time.NewTicker(readyLook)
	defer tick.Stop()
	for {
		err := client.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the sidecar is not ready: %w", context.Cause(ctx))
		}
	}
}
