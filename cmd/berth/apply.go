package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func applyCommand() *cli.Command {
	return &cli.Command{
		Name:     "apply",
		Category: operating,
		Usage:    "make the pools as a file declares them",
		Description: `The file is YAML:

   pools:
     db:
       limit: 3
       lease_duration: 5m   # left out: 5m
       reserve_after: 1m    # left out: 1m
       paused: false        # left out: stays as it is

Pools that it does not name are left alone, or deleted with --prune.
'berth export' writes such a file.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` to read, - for stdin"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only tell what would change"},
			&cli.BoolFlag{Name: "prune", Usage: "delete the pools that are not in the file"},
		},
		Action: apply,
	}
}

// applyRecord is what was done, in JSON.
type applyRecord struct {
	DryRun bool       `json:"dry_run"`
	Pools  []poolPlan `json:"pools"`
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
	return connect(c, func(admin *berth.Admin) error {
		r, err := admin.Read(c.Context)
		if err != nil {
			return err
		}
		if err := readable(r.Pools(), want); err != nil {
			return err
		}
		plans := planPools(r.Pools(), want, c.Bool("prune"))
		if !c.Bool("dry-run") {
			done, err := carryOut(c.Context, admin, plans)
			if err != nil {
				return fmt.Errorf("%w (%s of %d done)", err, count(done, "pool"), len(plans))
			}
		}
		record := applyRecord{DryRun: c.Bool("dry-run"), Pools: append([]poolPlan{}, plans...)}
		return p.print(record, func(out *page) { applyText(out, record) })
	})
}

// maxDeclared bounds a file, in bytes: far more than all pools that an etcd can
// take.
const maxDeclared = 16 << 20

func readDeclared(c *cli.Context) (declared, error) {
	name := c.String("file")
	in, closeIn := c.App.Reader, func() error { return nil }
	switch name {
	case "":
		return declared{}, usagef("apply needs a file: --file FILE, or --file - for stdin")
	case "-":
		name = "stdin"
	default:
		f, err := os.Open(name)
		if err != nil {
			return declared{}, problem.New(problem.Invalid, "the file can't be read: %w", err)
		}
		in, closeIn = f, f.Close
	}
	data, err := io.ReadAll(io.LimitReader(in, maxDeclared+1))
	if closeErr := closeIn(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
		return declared{}, problem.New(problem.Invalid, "%s can't be read: %w", name, err)
	case len(data) > maxDeclared:
		return declared{}, problem.New(problem.TooLarge, "%s is longer than %d MB", name, maxDeclared>>20)
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

// carryOut makes the changes one by one, and returns how many came through.
func carryOut(ctx context.Context, admin *berth.Admin, plans []poolPlan) (int, error) {
	for i, p := range plans {
		var err error
		switch p.Action {
		case creates, changes:
			_, err = admin.SetPool(ctx, p.Name, p.change)
		case deletes:
			err = admin.DeletePool(ctx, p.Name)
		}
		if err != nil && problem.CodeOf(err) != problem.PoolNotFound {
			return i, fmt.Errorf("pool '%s': %w", p.Name, err)
		}
	}
	return len(plans), nil
}

func applyText(out *page, r applyRecord) {
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
	done := []string{
		fmt.Sprintf("%d created", counts[creates]), fmt.Sprintf("%d changed", counts[changes]),
		fmt.Sprintf("%d deleted", counts[deletes]), fmt.Sprintf("%d as they were", counts[keeps]),
	}
	text := "pools: " + strings.Join(done, ", ")
	if r.DryRun {
		text = "dry run, nothing is changed; " + text
	}
	out.line("%s", text)
	if len(others) > 0 {
		out.line("not in the file, left alone (--prune deletes): %s", strings.Join(others, ", "))
	}
}
