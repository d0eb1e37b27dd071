package main

import (
	"errors"
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
		Action: serveSidecar,
	}
}

func serveSidecar(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
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
	if err := p.print(at, func(out *page) { out.line("berth sidecar of host %s at %s", s.Host, at) }); err != nil {
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
