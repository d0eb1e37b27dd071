//go:build linux

package main

import (
	"context"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
)

// hostsSuite measures claims on many hosts.
func hostsSuite() suite {
	return suite{
		name: "hosts", usage: "measure how claims scale with the number of hosts",
		description: "Clients on 4 to 200 hosts claim one slot of the same pool in a loop, hold it and release\n" +
			"it: a full pool of 20 slots, and a free one with slots for all. Each host is an instance of\n" +
			"the Go API in this process or, with --processes, a sidecar in a process of its own. With\n" +
			"--embedded the report has the CPU of etcd too.\n\n" +
			"Hosts share this machine with etcd and the clients: the CPU per claim is that of a fleet, the\n" +
			"throughput is less.",
		flags:  bench.HostsFlags(),
		config: bench.HostsFromFlags,
		plan: func(_ *cli.Context, cfg *bench.Config) (measurement, error) {
			rows, err := cfg.HostRows()
			return func(ctx context.Context, r *bench.Runner) (results, error) {
				measured, err := bench.Measure(ctx, r, rows, r.MeasureHosts)
				if measured == nil {
					return nil, err
				}
				return hostsReport{measured}, err
			}, err
		},
	}
}

// hostsReport holds the results for numbers of hosts.
type hostsReport struct {
	*bench.Report[*bench.HostsRow]
}

func (r hostsReport) table(w io.Writer) { bench.WriteHosts(w, r.Report) }
