package main

import (
	"context"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/sidecar"
)

// listenFlag is the flag of the address that a server serves at.
const listenFlag = "listen"

// coordinatorFlags are those of a candidate by itself.
func coordinatorFlags() []cli.Flag {
	return slices.Concat(config.Flags(config.Instance, config.Lead), healthFlags())
}

// healthFlags say where a process that is no sidecar serves its health and metrics. That
// is said by the flag alone: the setting is the address of the host's sidecar, which
// would be taken.
func healthFlags() []cli.Flag {
	door := slices.DeleteFunc(config.Flags(config.Serve), func(f cli.Flag) bool {
		return f.Names()[0] == listenFlag || f.Names()[0] == "socket"
	})
	return append(door,
		&cli.StringFlag{Name: listenFlag, Usage: "HTTP `ADDRESS` to serve health and metrics at, such as 127.0.0.1:7421; port 0 chooses one", DefaultText: "none"},
	)
}

// newRegistry returns a registry with the metrics of Go and of the process.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// registererOf returns a registry as an interface that is nil if the registry is.
func registererOf(reg *prometheus.Registry) prometheus.Registerer {
	if reg == nil {
		return nil
	}
	return reg
}

// healthDoor serves the health and the metrics of a process that is no sidecar. A nil one serves
// nothing.
type healthDoor struct {
	server *sidecar.HealthServer
	scheme string
}

// serveHealth serves what is in a registry, and whether there is no trouble; nothing
// without a registry.
func serveHealth(ctx context.Context, s config.Settings, log hclog.Logger, reg *prometheus.Registry, trouble func() error) (*healthDoor, error) {
	if reg == nil {
		return nil, nil
	}
	conf, err := s.ServerTLS()
	if err != nil {
		return nil, err
	}
	d := &healthDoor{scheme: "http://"}
	if conf != nil {
		d.scheme = "https://"
	}
	d.server, err = sidecar.ServeHealth(ctx, sidecar.Config{
		Listen: s.Listen, TLS: conf, Token: s.Token.Reveal(), Names: serverNames(s, conf), Logger: log, Gatherer: reg,
	}, trouble)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// url is where it is reached, empty for nowhere.
func (d *healthDoor) url() string {
	if d == nil {
		return ""
	}
	return d.scheme + reachable(d.server.Addr())
}

func (d *healthDoor) close() error {
	if d == nil {
		return nil
	}
	return d.server.Close()
}
