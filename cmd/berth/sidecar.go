package main

import (
	"crypto/tls"
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

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/sidecar"
)

func sidecarCommand() *cli.Command {
	return &cli.Command{
		Name:     "sidecar",
		Category: serving,
		Usage:    "serve this host's jobs over HTTP and a unix socket",
		Description: `Joins the etcd of --endpoints under this host's name, and claims for others.

TERM or INT: takes no new claims, waits for those there are (--drain-timeout), has
the holders that are left stop, and gives their slots back. A second one does not
wait. HUP: leaves the claims to the next sidecar of this host, which takes them
over if it is started within their leases; the holders run on, undisturbed.

With --coordinator it stands for the coordinator's part, too ('berth help
coordinator'), and steps down before anything else when it stops.`,
		Flags: append(config.Flags(config.Instance, config.State, config.Serve, config.Stand, config.Lead, config.Claims),
			&cli.DurationFlag{Name: "drain-timeout", Value: sidecar.DefaultDrainTimeout, Usage: "longest `TIME` to wait for holders before a stop; 0 for none"}),
		Action: handle(serveSidecar),
	}
}

func serveSidecar(r *request) error {
	c := r.Context
	s, err := config.Load(config.FromCLI(c), config.Common, config.Etcd, config.Claims,
		config.Instance, config.State, config.Serve, config.Stand, config.Lead)
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
	var st *standing
	if s.Coordinator {
		if st, err = stand(s, cfg.Logger, cfg.Registerer); err != nil {
			return err
		}
	}
	asked := false
	defer stopOnSignals(true, func(sig unix.Signal) bool {
		// Somebody else leads at once then, however long the claims take.
		_ = st.stepDown()
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
	return errors.Join(err, st.stepDown())
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
	conf, err := s.ServerTLS()
	if err != nil {
		return sidecar.Config{}, err
	}
	reg := newRegistry()
	return sidecar.Config{
		Options: o,
		Listen:  s.Listen, Socket: s.Socket, TLS: conf, Token: s.Token.Reveal(), Names: serverNames(s, conf),
		RunRetention: s.RunRetention,
		Logger:       log, Registerer: reg, Gatherer: reg,
	}, nil
}

// serverNames are the names under which clients may know this server: those of
// the machine and of its certificate.
func serverNames(s config.Settings, conf *tls.Config) []string {
	names := []string{s.Host}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	if conf == nil {
		return names
	}
	for _, cert := range conf.Certificates {
		if cert.Leaf != nil {
			names = append(names, cert.Leaf.DNSNames...)
			for _, ip := range cert.Leaf.IPAddresses { // of what passes connections on
				names = append(names, ip.String())
			}
		}
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
					os.Exit(exitSignal + int(s.(unix.Signal)))
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
