package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/text"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:     "bench",
		Category: operating,
		Usage:    "measure how fast berth is",
		Subcommands: []*cli.Command{
			{
				Name:   "claims",
				Usage:  "measure claims beside what etcd itself costs",
				Flags:  benchClaimsFlags(),
				Action: benchmark{benchClaimsSizes, benchClaimsTable}.run,
				Description: "Clients claim and release in a closed loop, through the Go API and over HTTP\n" +
					"on a unix socket. Each case runs in alternation with the floor: plain puts and\n" +
					"deletes of as many clients, one of each for a claim and its release. What counts\n" +
					"is the ratio, which holds on any machine; the figures are the medians of the\n" +
					"rounds.\n\n" +
					"All that is written is below bench/ under the prefix, and deleted at the end.\n" +
					"Do not run it on an etcd that others need now.",
			},
			benchQueueCommand(),
			benchStepsCommand(),
			benchEtcdCommand(),
		},
	}
}

// benchmark is one that can be run: sizes reads what to measure from its flags, and
// table writes what was measured of the cases.
type benchmark struct {
	sizes func(*cli.Context) (bench.Config, error)
	table func(*page, []*bench.Row)
}

func (b benchmark) run(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, closeEtcd, err := b.config(ctx, c)
	if err != nil {
		return err
	}
	report, err := profiled(c, func() (*bench.Report, error) { return bench.Run(ctx, cfg) })
	err = errors.Join(interrupted(ctx, err), closeEtcd())
	if report == nil {
		return err
	}
	return errors.Join(err, p.print(report, func(out *page) { benchPage(out, report, b.table) }))
}

// interrupted says so in place of the error that an interruption leads to.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted: what is printed was measured before")
	}
	return err
}

// profiled writes a CPU profile of what it does, if one was asked for. In it,
// the label "load" tells berth's part ("case") from the floor's ("reference").
func profiled(c *cli.Context, do func() (*bench.Report, error)) (*bench.Report, error) {
	path := c.Path(benchProfileFlag)
	if path == "" {
		return do()
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	report, err := do()
	pprof.StopCPUProfile()
	return report, errors.Join(err, f.Close())
}

// config reads the settings and the flags. The function that it returns
// stops the etcd that was started for the benchmark, if one was.
func (b benchmark) config(ctx context.Context, c *cli.Context) (bench.Config, func() error, error) {
	none := func() error { return nil }
	s, err := config.Load(config.FromCLI(c), config.Common, config.Etcd)
	if err != nil {
		return bench.Config{}, none, err
	}
	o, err := options(s, newLogger(c.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return bench.Config{}, none, err
	}
	cfg, err := b.sizes(c)
	if err != nil {
		return cfg, none, err
	}
	cfg.Etcd, cfg.Sidecars = o, &sidecarProcesses{settings: s, log: c.App.ErrWriter}
	plan, err := bench.Plan(cfg)
	if err != nil {
		return cfg, none, err
	}
	cfg.Progress = benchProgress(c, len(plan))
	if !c.Bool(benchEmbeddedFlag) {
		return cfg, none, nil
	}
	etcd, err := startBenchEtcd(ctx, c.App.ErrWriter)
	if err != nil {
		return cfg, none, err
	}
	cfg.Etcd.Endpoints = []string{etcd.endpoint}
	cfg.Etcd.TLS, cfg.Etcd.Username, cfg.Etcd.Password = nil, "", ""
	cfg.Sidecars = &sidecarProcesses{settings: config.Settings{}, log: c.App.ErrWriter}
	return cfg, etcd.close, nil
}

// benchProgress tells what is being measured, and what came of it.
func benchProgress(c *cli.Context, cases int) func(bench.Case, *bench.Row) {
	begun := 0
	var since time.Time
	return func(cs bench.Case, row *bench.Row) {
		switch {
		case row == nil:
			begun++
			since = time.Now()
		case row.Error != "":
			say(c, "%d/%d %s failed: %s", begun, cases, cs.Name, row.Error)
		default:
			say(c, "%d/%d %s: %s (%s)", begun, cases, cs.Name, strings.Join(benchSummary(row), ", "), text.Duration(time.Since(since)))
		}
	}
}
