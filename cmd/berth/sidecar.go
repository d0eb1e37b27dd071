package main

import (
	"errors"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/sidecar"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/client"
	"github.com/berthhq/berth/sidecar/server"
)

func sidecarCommand() *cli.Command {
	return &cli.Command{
		Name:     "sidecar",
		Category: serving,
		Usage:    "serve claims to the jobs of this host over HTTP and a unix socket",
		Description: `Connects to etcd under the name of this host, and makes claims for other processes.

On TERM or INT it grants no new claims, waits for the holders (--drain-timeout), has the
remaining holders stop, and releases their slots. On a second signal it does not wait. On
HUP it stops and leaves its claims to the next sidecar of this host, which takes them over
if it starts within their leases. The holders keep running meanwhile.

With --coordinator it also runs a coordinator ('berth coordinator --help'), which resigns
first when the sidecar stops.`,
		Flags: append(config.Flags(config.Instance, config.State, config.Serve, config.Candidate, config.Lead, config.Claims),
			&cli.DurationFlag{Name: "drain-timeout", Value: sidecar.DefaultDrainTimeout, Usage: "longest `TIME` to wait for holders before stopping; 0 for not at all"}),
		Action: handle(serveSidecar),
	}
}

func serveSidecar(r *request) error {
	c := r.Context
	s, err := config.Load(config.FromCLI(c), config.Common, config.Etcd, config.Claims,
		config.Instance, config.State, config.Serve, config.Candidate, config.Lead)
	if err != nil {
		return err
	}
	cfg, err := sidecarConfig(s, newLogger(c.App.ErrWriter, s, hclog.Info))
	if err != nil {
		return err
	}
	cfg.Options.StateDir = s.StateDir
	cfg.DrainTimeout = drainTimeout(c.Duration("drain-timeout"))
	server := sidecar.New(cfg)
	if err := server.Listen(c.Context); err != nil {
		return err
	}
	at := addressesOf(s, server)
	if err := r.print(at, func(out *page) { out.line("berth sidecar of host %s at %s", s.Host, at) }); err != nil {
		return err
	}
	defer proc.ReturnMemory()()
	var st *process
	if s.Coordinator {
		if st, err = startCandidate(s, cfg.Logger, cfg.Registerer); err != nil {
			return err
		}
	}
	asked := false
	defer stopOnSignals(true, func(sig unix.Signal) bool {
		// Another candidate leads at once then, however long the claims take.
		_ = st.stop()
		switch {
		case sig == unix.SIGHUP:
			server.Stop(sidecar.Leave)
		case asked:
			server.Stop(sidecar.Revoke)
			return true
		default:
			server.Stop(sidecar.Drain)
			asked = true
		}
		return false
	})()
	served := inBackground(func() error { return server.Run(c.Context) })
	select {
	case err = <-served:
	case <-st.failed():
		if st.err != nil {
			server.Stop(sidecar.Drain)
		}
		err = <-served
	}
	return errors.Join(err, st.stop())
}

// drainTimeout makes a time of the command line, where 0 is none, one of the
// sidecar, where it is the default.
func drainTimeout(d time.Duration) time.Duration {
	if d <= 0 {
		return -1
	}
	return d
}

// sidecarConfig makes of the settings what dev and sidecar serve.
func sidecarConfig(s config.Settings, log hclog.Logger) (sidecar.Config, error) {
	o, err := options(s, log)
	if err != nil {
		return sidecar.Config{}, err
	}
	conf, err := s.ServerTLS(log)
	if err != nil {
		return sidecar.Config{}, err
	}
	tokens, err := s.ServerTokens(log)
	if err != nil {
		return sidecar.Config{}, err
	}
	policy, err := access.ParsePolicy(s.Roles)
	if err != nil {
		return sidecar.Config{}, err
	}
	reg := newRegistry()
	return sidecar.Config{
		Options: o,
		Listen:  s.Listen, Socket: s.Socket, TLS: conf, Tokens: tokens, Policy: policy, Names: serverNames(s),
		RunRetention: s.RunRetention,
		Logger:       log, Registerer: reg, Gatherer: reg,
	}, nil
}

// serverNames are the names of the machine, under which clients may know this server.
func serverNames(s config.Settings) []string {
	names := []string{s.Host}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	return names
}

// addresses are where a server is reached, in JSON.
type addresses struct {
	PID    int    `json:"pid"`
	HTTP   string `json:"http,omitempty"`
	Socket string `json:"socket,omitempty"`
	// Etcd and DataDir are the embedded etcd's.
	Etcd    string `json:"etcd,omitempty"`
	DataDir string `json:"data_dir,omitempty"`
	// Access says who may do what on it.
	Access string `json:"access,omitempty"`
}

// String lists the addresses of the server.
func (a addresses) String() string {
	return strings.Join(keep([]string{a.HTTP, a.Socket}, func(s string) bool { return s != "" }), ", ")
}

func addressesOf(s config.Settings, server *sidecar.Server) addresses {
	a := addresses{PID: os.Getpid()}
	if addr := server.Addr(); addr != nil {
		a.HTTP = "http://" + reachable(addr)
		if s.TLSCert != "" {
			a.HTTP = "https://" + reachable(addr)
		}
	}
	if s.Socket != "" {
		a.Socket = "unix://" + s.Socket
	}
	return a
}

// reachable writes a listener's address so that one can connect to it.
func reachable(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		_, port, _ := strings.Cut(addr.String(), "]:")
		if port == "" {
			_, port, _ = net.SplitHostPort(addr.String())
		}
		return net.JoinHostPort("localhost", port)
	}
	return addr.String()
}

// stopOnSignals passes INT, TERM and HUP to do, until the function that it returns is
// called. After the last that do wants, signals end the process.
//
// INT and TERM count also if this process was started to ignore them, as shells do with
// INT for what scripts run in the background. HUP counts then only if it means something
// of its own here, which is what upgrade says: under nohup it stays ignored otherwise.
func stopOnSignals(upgrade bool, do func(unix.Signal) (last bool)) (end func()) {
	signals, done, ended := make(chan os.Signal, 8), make(chan struct{}), make(chan struct{})
	wanted := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if upgrade || !signal.Ignored(unix.SIGHUP) {
		wanted = append(wanted, unix.SIGHUP)
	}
	ignored := slices.DeleteFunc(slices.Clone(wanted), func(s os.Signal) bool { return !signal.Ignored(s) })
	signal.Notify(signals, wanted...)
	go func() {
		defer close(ended)
		defer signal.Stop(signals)
		last := false
		for {
			select {
			case s := <-signals:
				if last {
					os.Exit(proc.ExitSignal + int(s.(unix.Signal)))
				}
				if last = do(s.(unix.Signal)); !last {
					continue
				}
				if len(ignored) == 0 {
					return
				}
				for _, s := range wanted { // without a handler, the others would be ignored again
					if !slices.Contains(ignored, s) {
						signal.Reset(s)
					}
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func devCommand() *cli.Command {
	return &cli.Command{
		Name:     "dev",
		Category: serving,
		Usage:    "run everything in one process, with an etcd of its own",
		Description: `For trying berth, and for a single machine. Runs etcd, a sidecar whose pages allow changes, and
a coordinator, which admits runs. Pools, claims and runs are kept in --data-dir.

Other commands find it at the default addresses. If you choose other addresses, use the ones
that it prints (-o json for programs).

On INT or TERM it stops. On a second signal it stops without waiting.`,
		Flags: append(config.Flags(config.Dev, config.Serve, config.Lead),
			&cli.StringSliceFlag{Name: "pool", Usage: "create the pool `POOL=LIMIT` if it does not exist; may be repeated"}),
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
		embed.ErrAddressInUse:  {"etcd_listen", "choose another with --etcd-listen; 127.0.0.1:0 chooses a free port"},
		embed.ErrDataDirLocked: {"data_dir", "stop the other process, or choose another with --data-dir"},
		embed.ErrDataDir:       {"data_dir", "choose another with --data-dir"},
		embed.ErrDiskFull:      {"data_dir", "free disk space, or choose another with --data-dir"},
		embed.ErrDataTooNew:    {"data_dir", "use the version of berth that wrote it, or choose another with --data-dir"},
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
	out.line("berth is running with an etcd of its own")
	out.gap()
	var pages string
	if at.HTTP != "" {
		pages = at.HTTP + "/pools"
	}
	rows := [][]string{{"  pages", pages}, {"  http", at.HTTP}, {"  socket", at.Socket}, {"  etcd", at.Etcd}, {"  data", at.DataDir}, {"  access", at.Access}}
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
	cfg.Policy.Open = devOpen(s)
	cfg.Options.StateDir = filepath.Join(s.DataDir, "state")
	defer proc.ReturnMemory()()
	server := sidecar.New(cfg)
	if err := server.Listen(ctx); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w; choose another with --listen; 127.0.0.1:0 chooses a free port", err)
		}
		return err
	}
	st, err := startCandidate(s, log, cfg.Registerer)
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

// devOpen reports whether dev gives everyone everything: not if the settings say who callers
// are, and what they may do. A server with client_ca may be reached from other hosts.
func devOpen(s config.Settings) bool {
	return s.TokensFile == "" && s.ClientCA == "" && len(s.Roles) == 0
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
func prepareDev(ctx context.Context, o instance.Options, at addresses, s config.Settings, pools map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	if err := awaitReady(ctx, at, s.Token.Reveal()); err != nil {
		return err
	}
	if len(pools) == 0 {
		return nil
	}
	o.Registerer, o.StateDir = nil, "" // an operator is no instance
	admin, err := instance.Connect(ctx, o)
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

// readyPoll is how often it is asked whether the sidecar is ready.
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
