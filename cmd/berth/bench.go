package main

import (
	"context"
	"errors"
	"fmt"
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
	c := q.Context
	cfg, err := bench.FromFlags(c)
	if err != nil {
		return usagef("%v", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	program := &bench.Program{Path: self, Attributes: proc.Attributes(), Log: c.App.ErrWriter}
	cfg.Sidecars = program
	cfg.Progress = func(line string) { say(c, "%s", line) }
	rows, err := cfg.Rows()
	if err != nil {
		return ofLine(err)
	}
	var report *bench.Report[*bench.Row]
	err = bench.Run(c, program, cfg, func(ctx context.Context, r *bench.Runner) (err error) {
		report, err = bench.Measure(ctx, r, rows, r.MeasureClaims)
		return err
	})
	if report == nil {
		return err
	}
	return errors.Join(err, q.print(report, func(out *page) { report.WriteTable(out.out) }))
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
