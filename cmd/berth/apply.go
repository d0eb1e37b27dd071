package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func applyCommand() *cli.Command {
	return &cli.Command{
		Name:     "apply",
		Category: operating,
		Usage:    "make the pools and the limits as a file declares them",
		Description: `The file is YAML or JSON:

   pools:
     db:
       limit: 3
       lease_duration: 5m       # left out: 5m
       reserve_after: 1m        # left out: 1m
       paused: false            # left out: stays as it is
   limits:                      # of runs
     max_concurrent_runs: 10    # left out: stays as it is
     tags:
       env=prod: 2              # runs with that tag
       team: 5                  # with the tag, all values together
       tenant=*: 1              # each value by itself; -1 removes a limit

Pools and limits of tags that it does not name are left alone, or deleted with
--prune; those of a section that it does not have always are left alone.
'berth export' writes such a file.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` to read, - for stdin"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only tell what would change"},
			&cli.BoolFlag{Name: "prune", Usage: "delete the pools, and the limits of tags, that are not in the file"},
		},
		Action: apply,
	}
}

// applyRecord is what was done, in JSON.
type applyRecord struct {
	DryRun bool       `json:"dry_run"`
	Pools  []poolPlan `json:"pools"`
	// Limits is left out if the file does not speak of them.
	Limits *limitsPlan `json:"limits,omitempty"`
}

func apply(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	want, err := readDeclared(c)
	if err != nil {
		return err
	}
	if want.limits == nil {
		return connect(c, func(admin *berth.Admin) error { return applyTo(c, p, want, admin, run.Store{}) })
	}
	return connect(c, func(admin *berth.Admin) error {
		return connectRuns(c, func(s run.Store) error { return applyTo(c, p, want, admin, s) })
	})
}

// applyTo makes everything as declared. All that can be wrong is found out before
// anything is changed.
func applyTo(c *cli.Context, p *printer, want declared, admin *berth.Admin, s run.Store) error {
	record := applyRecord{DryRun: c.Bool("dry-run"), Pools: []poolPlan{}}
	if want.pools != nil {
		r, err := admin.Read(c.Context)
		if err != nil {
			return err
		}
		if err := readable(r.Pools(), want); err != nil {
			return err
		}
		record.Pools = append(record.Pools, planPools(r.Pools(), want, c.Bool("prune"))...)
	}
	if want.limits != nil {
		limits, _, err := s.Limits(c.Context)
		if err != nil {
			return err
		}
		plan := planLimits(limits, *want.limits, c.Bool("prune"))
		if err := plan.then.Validate(); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
		record.Limits = &plan
	}
	if !record.DryRun {
		if err := carryOut(c.Context, admin, s, record); err != nil {
			return err
		}
	}
	return p.print(record, func(out *page) { applyText(out, record, want) })
}

// maxDeclared bounds a file, in bytes: far more than all pools that an etcd can
// take.
const maxDeclared = 16 << 20

func readDeclared(c *cli.Context) (declared, error) {
	if c.String("file") == "" {
		return declared{}, usagef("apply needs a file: --file FILE, or --file - for stdin")
	}
	name, data, err := readInput(c, maxDeclared)
	if err != nil {
		return declared{}, err
	}
	return decodeDeclared(name, data)
}

// readable refuses to change pools whose state can't be read.
func readable(is []pool.Status, want declared) error {
	for _, p := range is {
		if _, named := want.pools[p.Name]; named && p.Problem != "" {
			return problem.New(problem.CorruptValue, "pool '%s' can't be changed: %s", p.Name, p.Problem)
		}
	}
	return nil
}

// carryOut makes the changes one by one, and tells how many came through if one
// does not.
func carryOut(ctx context.Context, admin *berth.Admin, s run.Store, record applyRecord) error {
	if l := record.Limits; l != nil && l.Action == changes {
		if _, err := s.SetLimits(ctx, l.change); err != nil {
			return fmt.Errorf("limits: %w (nothing is changed)", err)
		}
	}
	for i, p := range record.Pools {
		var err error
		switch p.Action {
		case creates, changes:
			_, err = admin.SetPool(ctx, p.Name, p.change)
		case deletes:
			err = admin.DeletePool(ctx, p.Name)
		}
		if err != nil && problem.CodeOf(err) != problem.PoolNotFound {
			done := fmt.Sprintf("%s of %d done", text.Count(i, "pool"), len(record.Pools))
			if record.Limits != nil {
				done = "the limits and " + done
			}
			return fmt.Errorf("pool '%s': %w (%s)", p.Name, err, done)
		}
	}
	return nil
}

func applyText(out *page, r applyRecord, want declared) {
	counts := map[action]int{}
	var others []string
	for _, p := range r.Pools {
		counts[p.Action]++
		if line := p.line(); line != "" {
			out.line("%s", line)
		}
		if p.Action == ignores {
			others = append(others, p.Name)
		}
	}
	var done []string
	if want.pools != nil {
		done = append(done, fmt.Sprintf("pools: %d created, %d changed, %d deleted, %d as they were",
			counts[creates], counts[changes], counts[deletes], counts[keeps]))
	}
	if l := r.Limits; l != nil {
		if l.Action == changes {
			out.line("~ limits: %s", strings.Join(l.Changes, ", "))
			done = append(done, "limits: changed")
		} else {
			done = append(done, "limits: as they were")
		}
		for _, name := range l.Others {
			others = append(others, "limits.tags."+name)
		}
	}
	text := strings.Join(done, "; ")
	if r.DryRun {
		text = "dry run, nothing is changed; " + text
	}
	out.line("%s", text)
	if len(others) > 0 {
		out.line("not in the file, left alone (--prune deletes): %s", strings.Join(others, ", "))
	}
}
