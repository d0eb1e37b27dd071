package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store/embed"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:     "bench",
		Category: operating,
		Usage:    "measure claims on your etcd",
		Subcommands: []*cli.Command{
			{
				Name:   "claims",
				Usage:  "measure claims, compared with plain writes to etcd",
				Flags:  bench.ClaimsFlags("measure only the main cases, in 3 rounds of 500ms"),
				Action: handle(benchClaims),
				Description: `Clients claim and release in a loop, through the Go API and over HTTP on a unix socket.
Each case alternates with a baseline: as many clients that put and delete plain keys, one
of each for a claim and its release. Compare the ratio, which is the same on any machine.
All figures are medians of the rounds.

All keys are below bench/ under the prefix, and are deleted at the end. Do not run it on
an etcd that is in use.`,
			},
			{
				Name:   "hosts",
				Usage:  "measure how claims scale with the number of hosts",
				Flags:  bench.HostsFlags(),
				Action: handle(benchHosts),
				Description: `Clients on 4 to 200 hosts claim one slot of the same pool in a loop, hold it and release
it: a full pool of 20 slots, and a free one with slots for all. Each host is an instance of
the Go API in this process or, with --processes, a sidecar in a process of its own. With
--embedded the report has the CPU of etcd too.

Hosts share this machine with etcd and the clients: the CPU per claim is that of a fleet, the
throughput is less.

All keys are below bench/ under the prefix, and are deleted at the end. Do not run it on
an etcd that is in use.`,
			},
			{
				Name:   "etcd",
				Usage:  "serve etcd for a benchmark, and print its endpoint",
				Hidden: true,
				Flags:  []cli.Flag{&cli.PathFlag{Name: "dir", Usage: "`DIR` of its data"}},
				Action: benchEtcd,
			},
		},
	}
}

func benchClaims(q *request) error {
	cfg, err := bench.FromFlags(q.Context)
	if err != nil {
		return usagef("%v", err)
	}
	return benchmark(q, cfg, (*bench.Config).Rows, (*bench.Runner).MeasureClaims, (*bench.Report[*bench.Row]).WriteTable)
}

func benchHosts(q *request) error {
	cfg, err := bench.HostsFromFlags(q.Context)
	if err != nil {
		return usagef("%v", err)
	}
	return benchmark(q, cfg, (*bench.Config).HostRows, (*bench.Runner).MeasureHosts, func(r *bench.Report[*bench.HostsRow], w io.Writer) { bench.WriteHosts(w, r) })
}

// benchmark measures the rows that a configuration selects, and prints the report.
func benchmark[R bench.Result](
	q *request, cfg bench.Config,
	plan func(*bench.Config) ([]R, error),
	measure func(*bench.Runner, context.Context, R) error,
	write func(*bench.Report[R], io.Writer),
) error {
	c := q.Context
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	program := &bench.Program{Path: self, Attributes: proc.Attributes(), Log: c.App.ErrWriter}
	cfg.Sidecars = program
	cfg.Progress = func(line string) { say(c, "%s", line) }
	rows, err := plan(&cfg)
	if err != nil {
		return ofLine(err)
	}
	var report *bench.Report[R]
	err = bench.Run(c, program, cfg, func(ctx context.Context, r *bench.Runner) (err error) {
		report, err = bench.Measure(ctx, r, rows, func(ctx context.Context, row R) error { return measure(r, ctx, row) })
		return err
	})
	if report == nil {
		return err
	}
	return errors.Join(err, q.print(report, func(out *page) { write(report, out.out) }))
}

// benchEtcd serves etcd for a benchmark, in a process of its own.
func benchEtcd(c *cli.Context) error {
	if c.Path("dir") == "" {
		return usagef("--dir is missing")
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM)
	defer stop()
	srv, err := embed.Start(ctx, embed.Config{
		DataDir: c.Path("dir"), ClientListen: "127.0.0.1:0",
		Logger: hclog.New(&hclog.LoggerOptions{Name: "berth", Level: hclog.Error, Output: c.App.ErrWriter}),
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, srv.Endpoint())
	select {
	case err = <-srv.Err():
	case <-ctx.Done():
	}
	return errors.Join(err, srv.Close())
}
