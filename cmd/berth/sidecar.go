package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
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
			drainFlag()),
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
	if cfg.DrainTimeout, err = drainTimeout(c.Duration(drainFlagName)); err != nil {
		return err
	}
	return serveHost(r, s, cfg, s.Coordinator, nil, func(at addresses) string { return fmt.Sprintf("berth sidecar of host %s at %s", s.Host, at) })
}

func readyCommand() *cli.Command {
	return &cli.Command{
		Name:     "ready",
		Category: operating,
		Usage:    "report whether a sidecar or another process can do its work",
		Description: `Requests /readyz from the process at --sidecar: a server, a sidecar, or a coordinator, worker or
source with --listen. The exit code is 0 if it is ready, otherwise 1, and stderr says why. Use
it for health checks of containers, which may have no shell. Do not restart a process that is
not ready: the reason is usually that etcd is unavailable.`,
		Flags:  config.Flags(config.Access),
		Action: handle(ready),
	}
}

func ready(r *request) error {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Access)
	if err != nil {
		return err
	}
	if s.Sidecar == "" {
		return usagef("--sidecar is missing: set the address of the process to check, or BERTH_SIDECAR")
	}
	client, err := dialSidecar(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(r.ctx(), sidecarTimeout)
	defer cancel()
	if err := client.Ready(ctx); err != nil {
		return &statusError{problem.ExitFailure, sidecarProblem(err, s.Sidecar)}
	}
	return r.print(struct {
		Status string `json:"status"`
	}{"ready"}, func(out *page) { out.line("ready") })
}

// serveHost runs a sidecar, and a candidate for coordinator if asked to, and prints the addresses.
// It returns when signals have ended them, or when one of them or the etcd member that they need
// has ended. A nil member means that etcd runs elsewhere.
func serveHost(r *request, s config.Settings, cfg sidecar.Config, candidate bool, etcd *etcdMember, line func(addresses) string) error {
	ctx := r.Context.Context
	endTracing, err := traceSidecar(ctx, s, &cfg)
	if err != nil {
		return err
	}
	defer endTracing()
	listening := func(server *sidecar.Server) error {
		at := etcd.addresses(addressesOf(s, server))
		return r.print(at, func(out *page) { out.line("%s", line(at)) })
	}
	server := newRunning(cfg)
	if etcd == nil {
		if err := server.listen(ctx, listening); err != nil {
			return err
		}
	}
	defer proc.ReturnMemory()()
	var st *process
	switch {
	case etcd != nil:
		st = etcd.runCandidate(cfg)
	case candidate:
		if st, err = startCandidate(s, cfg.Logger, cfg.Registerer, cfg.Options.Cluster); err != nil {
			return err
		}
	}
	asked := false
	defer stopOnSignals(true, func(sig unix.Signal) bool {
		// Another candidate leads at once then, however long the claims take.
		_ = st.stop()
		switch {
		case sig == unix.SIGHUP:
			server.stop(sidecar.Leave)
		case asked:
			server.stop(sidecar.Revoke)
			return true
		default:
			server.stop(sidecar.Drain)
			asked = true
		}
		return false
	})()
	notifyReady(cfg.Logger)
	served := inBackground(func() error {
		if etcd != nil {
			return server.keep(ctx, listening)
		}
		return server.run(ctx)
	})
	select {
	case err = <-served:
	case <-st.failed():
		select {
		case <-etcd.failed(): // nothing can be drained without it
			server.stop(sidecar.Leave)
		default:
			if st.err != nil {
				server.stop(sidecar.Drain)
			}
		}
		err = <-served
	case <-etcd.failed():
		server.stop(sidecar.Leave)
		err = <-served
	}
	return errors.Join(err, st.stop())
}

// drainTimeout makes a time of the command line, where 0 is none, one of the
// sidecar, where it is the default.
func drainTimeout(d time.Duration) (time.Duration, error) {
	switch {
	case d < 0:
		return 0, usagef("--%s can't be %s: it must be 0s or more", drainFlagName, d)
	case d == 0:
		return -1, nil
	}
	return d, nil
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
	o.Cluster = store.NewCluster(log, reg)
	return sidecar.Config{
		Options: o,
		Listen:  s.Listen, Socket: s.Socket, SocketMode: fs.FileMode(s.SocketMode), SocketGroup: s.SocketGroup, TLS: conf, Tokens: tokens, Policy: policy, Names: serverNames(s),
		RunRetention: s.RunRetention, MaxRunEvents: s.MaxRunEvents,
		MaxUnfinishedRuns: s.MaxUnfinishedRuns, MaxStoredRunData: int64(s.MaxStoredRunData), MaxNotBefore: s.MaxNotBefore,
		Logger: log, Registerer: reg, Gatherer: reg,
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
				_ = proc.Notify(proc.Stopping) // systemd learns it anyway when the process has ended
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
