//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/bench"
)

func main() { os.Exit(perform(context.Background(), os.Args, os.Stdout, os.Stderr)) }

// quickUsage is the usage of --quick where all loads last as long.
const quickUsage = "measure only what has a target, in 3 rounds of 500ms"

// suite is what a command measures.
type suite struct {
	name, usage, description string
	flags                    []cli.Flag
	// config returns the configuration from the flags.
	config func(*cli.Context) (bench.Config, error)
	// plan returns what measures the cases that a configuration selects.
	plan func(*cli.Context, *bench.Config) (measurement, error)
}

// measurement measures on an etcd. It returns nil instead of results if there are none.
type measurement func(context.Context, *bench.Runner) (results, error)

// results are encoded as JSON for programs.
type results interface {
	// table writes them for people.
	table(io.Writer)
}

// perform carries out a command line and returns the exit code: 1 after an error, 2 if
// the command line is wrong.
func perform(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := &cli.App{
		Name:            "bench",
		Usage:           "measures berth on an etcd, and compares the results with the project's targets",
		Writer:          stdout,
		ErrWriter:       stderr,
		HideVersion:     true,
		HideHelpCommand: true,
		ExitErrHandler:  func(*cli.Context, error) {},
	}
	for _, s := range []suite{claimsSuite(), hostsSuite(), queueSuite(), stepsSuite()} {
		app.Commands = append(app.Commands, &cli.Command{
			Name: s.name, Usage: s.usage, HideHelpCommand: true,
			Description: s.description + "\n\n" +
				"All keys are below bench/ under the prefix, and deleted at the end. Do not run it\n" +
				"on an etcd that others need now.",
			Flags: append(append(s.flags,
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT` of the report: table or json"},
				&cli.PathFlag{Name: "berth", Value: "bin/berth", Usage: "`FILE` of berth, which is run as etcd and sidecar"},
			), config.Flags(config.Common, config.Etcd)...),
			Action:       s.run,
			OnUsageError: func(_ *cli.Context, err error, _ bool) error { return usageError{err} },
		})
	}
	err := app.RunContext(ctx, args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "bench:", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// usageError means that the command line is wrong.
type usageError struct{ error }

func (s suite) run(c *cli.Context) error {
	format := c.String("output")
	if format != "table" && format != "json" {
		return usageError{fmt.Errorf("--output can't be %q: it must be table or json", format)}
	}
	if c.Args().Present() {
		return usageError{fmt.Errorf("unknown argument %q", c.Args().First())}
	}
	cfg, err := s.config(c)
	if err != nil {
		return usageError{err}
	}
	program := &bench.Program{
		Path:       c.Path("berth"),
		Attributes: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
		Log:        c.App.ErrWriter,
	}
	cfg.Sidecars = program
	cfg.Progress = func(line string) { fmt.Fprintln(c.App.ErrWriter, "bench:", line) }
	measure, err := s.plan(c, &cfg)
	if err != nil {
		return err
	}
	var all results
	err = bench.Run(c, program, cfg, func(ctx context.Context, r *bench.Runner) (err error) {
		all, err = measure(ctx, r)
		return err
	})
	if all == nil {
		return err
	}
	return errors.Join(err, write(c.App.Writer, format, all))
}

// write writes results in a format.
func write(w io.Writer, format string, all results) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	all.table(w)
	return nil
}

// ofRows has the rows measured that are planned, and judged. Show writes their figures for people.
func ofRows(plan func(*cli.Context, *bench.Config) ([]*row, error), show func(io.Writer, *report)) func(*cli.Context, *bench.Config) (measurement, error) {
	return func(c *cli.Context, cfg *bench.Config) (measurement, error) {
		rows, err := plan(c, cfg)
		return func(ctx context.Context, r *bench.Runner) (results, error) {
			measured, err := measure(ctx, &runner{r}, rows)
			if measured == nil {
				return nil, err
			}
			measured.show = show
			return measured, err
		}, err
	}
}

// rowsConfig returns the configuration of what is measured in rows.
func rowsConfig(c *cli.Context) (bench.Config, error) { return bench.FromFlags(c, "queued", "steps") }

// claimsSuite measures claims as `berth bench claims` does.
func claimsSuite() suite {
	return suite{
		name: "claims", usage: "measure claims, compared with plain writes to etcd",
		description: "This is berth bench claims with a verdict on each target.",
		flags:       bench.ClaimsFlags(quickUsage),
		config:      rowsConfig,
		plan: ofRows(func(_ *cli.Context, cfg *bench.Config) ([]*row, error) { return claimRows(cfg) },
			func(w io.Writer, r *report) { r.WriteTable(w) }),
	}
}

// claimRows returns the rows of claims that the configuration selects.
func claimRows(cfg *bench.Config) ([]*row, error) {
	planned, err := cfg.Rows()
	var rows []*row
	for _, r := range planned {
		rows = append(rows, &row{Row: *r})
	}
	return rows, err
}

// runner measures on one etcd.
type runner struct{ *bench.Runner }

// measure measures rows, and judges their figures.
func measure(ctx context.Context, r *runner, rows []*row) (*report, error) {
	measured, err := bench.Measure(ctx, r.Runner, rows, r.measure)
	if measured == nil {
		return nil, err
	}
	if rows[0].Workers > 0 {
		measured.RoundSeconds = 0 // a round of steps lasts until all are done
	}
	return &report{Report: measured, Targets: judge(measured.Rows)}, err
}

func (r *runner) measure(ctx context.Context, row *row) error {
	switch {
	case row.Workers > 0:
		return r.measureSteps(ctx, row)
	case row.Kind == submit:
		return r.measureSubmissions(ctx, row)
	case row.Kind == admit:
		return r.measureAdmissions(ctx, row)
	case row.Kind == leading:
		return r.measureLeader(ctx, row)
	case row.Queued > 0:
		return r.measurePlans(ctx, row)
	}
	return r.MeasureClaims(ctx, &row.Row)
}
