package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/client"
	"github.com/berthhq/berth/sidecar/server"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name:     "dev",
		Category: serving,
		Usage:    "run everything in one process, with its own etcd",
		Description: `For trials, on a machine whose users may all do everything: it serves etcd on loopback without
TLS. Use 'berth server' otherwise. Runs etcd, a sidecar whose pages allow changes, and a
coordinator, which admits runs. Pools, claims and runs are kept in --data-dir.

Other commands find its etcd at the default address, or in the folder in which it was started.
Otherwise use the addresses that it prints (-o json for programs).

On INT or TERM it stops. On a second signal it stops without waiting.`,
		Flags: append(config.Flags(config.Dev, config.Serve, config.Lead),
			&cli.StringSliceFlag{Name: "pool", Usage: "create the pool `POOL=LIMIT` if it does not exist; may be repeated"}),
		Action: handle(dev),
	}
}

// devStart is the longest time for the start, which includes slow disks.
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
		notifyReady(log)
		return r.print(at, func(out *page) { banner(out, at, os.Args[0]) })
	})
	return ended(ctx, errors.Join(err, etcd.Close()))
}

// errStopped is the cause when a signal ends dev.
var errStopped = errors.New("stopped")

// ended returns err, or nil if it only says that a signal ended the process.
func ended(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStopped) && (errors.Is(err, errStopped) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func startEtcd(ctx context.Context, s config.Settings, log hclog.Logger) (*embed.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	cfg := embed.Config{DataDir: filepath.Join(s.DataDir, config.EtcdFolder), ClientListen: s.EtcdListen, Logger: log}
	// Commands in this folder find it there at other addresses, too. If the path is too long for a socket,
	// dev has none.
	socket, err := filepath.Abs(config.EtcdSocket(s.DataDir))
	if err != nil {
		return nil, err
	}
	if len(socket) <= embed.MaxSocketPath {
		cfg.Socket = socket
	}
	etcd, err := embed.Start(ctx, cfg)
	return etcd, etcdFault(err, "; 127.0.0.1:0 chooses a free port")
}

// parsePools reads texts of the form POOL=LIMIT.
func parsePools(texts []string) (map[string]int, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	pools, err := parseSlots(texts)
	for _, name := range sortedNames(pools) {
		limit := pools[name]
		if err := pool.ValidateName(name); err != nil {
			return nil, ofLine(err)
		}
		if err := (pool.Change{Limit: &limit}).Validate(); err != nil {
			return nil, ofLine(fmt.Errorf("--pool %s: %w", name, err))
		}
	}
	return pools, err
}

// banner prints where dev serves, and commands to try: program is how its user starts berth.
func banner(out *page, at addresses, program string) {
	out.line("berth is running with its own etcd")
	out.gap()
	var pages string
	if at.HTTP != "" {
		pages = at.HTTP + "/pools"
	}
	etcd := at.Etcd + " (open: all users of this machine can read and change everything)"
	rows := [][]string{{"  pages", pages}, {"  http", at.HTTP}, {"  socket", at.Socket}, {"  etcd", etcd}, {"  data", at.DataDir}, {"  access", at.Access}}
	out.columns(keep(rows, func(row []string) bool { return row[1] != "" }))
	out.gap()
	out.line("Try, in another terminal in this folder:")
	out.gap()
	if at.Etcd != "http://"+embed.DefaultClientListen {
		out.line("  export BERTH_ENDPOINTS=%s", at.Etcd)
	}
	out.line("  %s pools set demo 3", program)
	out.line("  %s exec --pool demo -- sleep 10", program)
	out.line("  %s pools info demo", program)
	out.gap()
	out.line("Ctrl-C stops it. (process %d)", at.PID)
}

// serveDev runs the sidecar and a candidate for coordinator on an etcd until ctx ends, or one of
// them fails. It calls ready when the sidecar serves.
func serveDev(ctx context.Context, s config.Settings, etcd *embed.Server, pools map[string]int, log hclog.Logger, ready func(addresses) error) error {
	s, err := devSettings(s, etcd)
	if err != nil {
		return err
	}
	if err := upgradeDev(ctx, s, etcd, log); err != nil {
		return err
	}
	cfg, err := sidecarConfig(s, log)
	if err != nil {
		return err
	}
	cfg.Policy.Open = devOpen(s)
	cfg.Options.StateDir, cfg.Options.Kind = filepath.Join(s.DataDir, stateFolder), instance.Server
	endTracing, err := traceSidecar(ctx, s, &cfg)
	if err != nil {
		return err
	}
	defer endTracing()
	defer proc.ReturnMemory()()
	server := sidecar.New(cfg)
	if err := server.Listen(ctx); err != nil {
		return err
	}
	st, err := startCandidate(s, log, cfg.Registerer, cfg.Options.Cluster)
	if err != nil {
		return err
	}
	done := inBackground(func() error { return server.Run(context.WithoutCancel(ctx)) })
	at := addressesOf(s, server)
	at.Etcd, at.DataDir, at.Access = etcd.Endpoint(), s.DataDir, "by tokens, certificates and roles"
	if cfg.Policy.Open {
		at.Access = "open: all users of this machine may do everything, and run commands as this user"
	}
	select {
	case err := <-done:
		return errors.Join(err, st.stop())
	case err := <-inBackground(func() error { return prepareDev(ctx, cfg.Options, at, s, pools) }):
		if err == nil {
			err = ready(at)
		}
		if err != nil {
			server.Stop(sidecar.Leave)
			return errors.Join(err, <-done, st.stop())
		}
	}
	select {
	case err := <-done:
		return errors.Join(err, st.stop())
	case err := <-etcd.Err():
		server.Stop(sidecar.Leave)
		return errors.Join(fmt.Errorf("etcd has stopped: %w", err), <-done, st.stop())
	case <-st.failed():
	case <-ctx.Done():
	}
	err = st.stop()
	server.Stop(sidecar.Revoke)
	return errors.Join(err, <-done)
}

// upgradeDev upgrades the data of an earlier berth, for as long as etcd serves.
func upgradeDev(ctx context.Context, s config.Settings, etcd *embed.Server, log hclog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := inBackground(func() error { return upgradeOwn(ctx, s, log, func(string) {}) })
	select {
	case err := <-done:
		return err
	case err := <-etcd.Err():
		cancel(fmt.Errorf("etcd has stopped: %w", err))
		return <-done
	}
}

// devOpen reports whether dev gives all roles to all callers: not if the settings identify callers,
// or say what they may do. A server with client_ca may be reached from other hosts.
func devOpen(s config.Settings) bool {
	return s.TokensFile == "" && s.ClientCA == "" && len(s.Roles) == 0
}

// devSettings returns the settings with the address of the embedded etcd, instead of any other etcd
// that they name.
func devSettings(s config.Settings, etcd *embed.Server) (config.Settings, error) {
	s.Endpoints = []string{etcd.Endpoint()}
	s.CACert, s.Cert, s.Key, s.User, s.Password = "", "", "", "", ""
	dir, err := filepath.Abs(s.DataDir)
	if err != nil {
		return s, err
	}
	s.DataDir = dir
	// If the path of the data directory is too long for a socket, dev has none.
	if socket := filepath.Join(dir, "berth.sock"); s.Socket == "" && len(socket) <= server.MaxSocketPath {
		s.Socket = socket
	}
	return s, nil
}

// prepareDev waits until the sidecar is ready, and creates missing pools.
func prepareDev(ctx context.Context, o instance.Options, at addresses, s config.Settings, pools map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	if err := awaitReady(ctx, at, s.Token.Reveal()); err != nil {
		return err
	}
	if len(pools) == 0 {
		return nil
	}
	o.Registerer, o.StateDir = nil, "" // an operator's connection is not an instance
	backend, keys, err := instance.Connect(ctx, o)
	if err != nil {
		return err
	}
	defer backend.Close()
	etcd := inspect.Snapshot{Backend: backend, Keys: keys}
	r, err := etcd.Read(ctx)
	if err != nil {
		return err
	}
	for _, name := range sortedNames(pools) {
		limit := pools[name]
		if _, err := r.Pool(name); problem.CodeOf(err) != problem.PoolNotFound {
			continue // it exists, or setting it says what is wrong
		}
		if _, err := etcd.SetPool(ctx, name, pool.Change{Limit: &limit}); err != nil {
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

// readyPoll is how often awaitReady asks the sidecar whether it is ready.
const readyPoll = 20 * time.Millisecond

// awaitReady waits until the sidecar can make claims.
func awaitReady(ctx context.Context, at addresses, token string) error {
	client, err := client.Dial(cmp.Or(at.Socket, at.HTTP), token)
	if err != nil {
		return err
	}
	defer client.Close()
	tick := time.NewTicker(readyPoll)
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
