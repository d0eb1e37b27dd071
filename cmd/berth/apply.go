package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/manifest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func applyCommand() *cli.Command {
	return &cli.Command{
		Name:     "apply",
		Category: operating,
		Usage:    "create and change pools and limits as a file declares them",
		Description: `The file is YAML or JSON:

   pools:
     db:
       limit: 3
       lease_duration: 5m       # default: 5m
       reserve_after: 1m        # default: 1m
       paused: false            # default: unchanged
   limits:                      # of runs
     max_concurrent_runs: 10    # default: unchanged
     tags:
       env=prod: 2              # runs with that tag
       team: 5                  # runs with that tag, all values together
       tenant=*: 1              # runs of each value separately; -1 removes a limit

Pools and limits of tags that the file does not name are not changed, or deleted with
--prune. A section that is not in the file is never changed. 'berth export' writes such
a file.`,
		Flags: wayFlags(
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read `FILE`, - for stdin"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only print what would change"},
			&cli.BoolFlag{Name: "prune", Usage: "delete the pools, and the limits of tags, that are not in the file"},
		),
		Action: handle(apply),
	}
}

// applyRecord is what was done, in JSON.
type applyRecord struct {
	DryRun bool       `json:"dry_run"`
	Pools  []poolPlan `json:"pools"`
	// Limits is left out if the file does not speak of them.
	Limits *limitsPlan `json:"limits,omitempty"`
}

func apply(r *request) error {
	want, err := readDeclared(r.Context)
	if err != nil {
		return err
	}
	return way{r: r}.change(
		func(w way) error { return applyTo(r, w.declared(), want) },
		func() error { return applyTo(r, declaredIn(r.ctx(), r.operator), want) },
	)
}

// declared is how what a file can declare is read and changed: in etcd, or through a sidecar.
type declared struct {
	pools      func() ([]pool.Status, error)
	limits     func() (run.Limits, error)
	setLimits  func(run.LimitsChange) error
	setPool    func(poolPlan) error
	deletePool func(name string) error
}

// declaredIn reads and changes what is in etcd.
func declaredIn(ctx context.Context, o *operator) declared {
	return declared{
		pools: func() ([]pool.Status, error) { return o.Pools(ctx) },
		limits: func() (run.Limits, error) {
			limits, _, err := o.Runs.Limits(ctx)
			return limits, err
		},
		setLimits: func(change run.LimitsChange) error {
			_, _, err := o.SetLimits(ctx, change)
			return err
		},
		setPool: func(p poolPlan) error {
			_, err := o.SetPool(ctx, p.Name, p.change)
			return err
		},
		deletePool: func(name string) error { return o.DeletePool(ctx, name) },
	}
}

// applyTo makes everything as declared. All that can be wrong is found out before
// anything is changed.
func applyTo(r *request, at declared, want manifest.Declaration) error {
	record := applyRecord{DryRun: r.Bool("dry-run"), Pools: []poolPlan{}}
	if want.Pools != nil {
		pools, err := at.pools()
		if err != nil {
			return err
		}
		if err := readable(pools, want); err != nil {
			return err
		}
		record.Pools = append(record.Pools, planPools(pools, want, r.Bool("prune"))...)
	}
	if want.Limits != nil {
		limits, err := at.limits()
		if err != nil {
			return err
		}
		plan := planLimits(limits, *want.Limits, r.Bool("prune"))
		if err := plan.then.Validate(); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
		record.Limits = &plan
	}
	if !record.DryRun {
		if err := carryOut(r, at, record); err != nil {
			return err
		}
	}
	return r.print(record, func(out *page) { applyText(out, record, want) })
}

// maxDeclared bounds a file, in bytes: far more than all pools that an etcd can
// take.
const maxDeclared = 16 << 20

func readDeclared(c *cli.Context) (manifest.Declaration, error) {
	if c.String("file") == "" {
		return manifest.Declaration{}, usagef("--file is missing: give the name of a file, or - for stdin")
	}
	name, data, err := readInput(c, maxDeclared)
	if err != nil {
		return manifest.Declaration{}, err
	}
	return manifest.ReadDeclaration(name, data)
}

// readable refuses to change pools whose state can't be read.
func readable(is []pool.Status, want manifest.Declaration) error {
	for _, p := range is {
		if _, named := want.Pools[p.Name]; named && p.Problem != "" {
			return problem.New(problem.CorruptValue, "pool '%s' can't be changed: %s", p.Name, p.Problem)
		}
	}
	return nil
}

// carryOut makes the changes one by one. Its error says how many were made if one
// does not.
func carryOut(r *request, at declared, record applyRecord) error {
	if l := record.Limits; l != nil && l.Action == changes {
		if err := at.setLimits(l.change); err != nil {
			return fmt.Errorf("limits: %w (nothing is changed)", err)
		}
	}
	for i, p := range record.Pools {
		var err error
		switch p.Action {
		case creates, changes:
			err = at.setPool(p)
		case deletes:
			err = at.deletePool(p.Name)
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

func applyText(out *page, r applyRecord, want manifest.Declaration) {
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
	if want.Pools != nil {
		done = append(done, fmt.Sprintf("pools: %d created, %d changed, %d deleted, %d unchanged",
			counts[creates], counts[changes], counts[deletes], counts[keeps]))
	}
	if l := r.Limits; l != nil {
		if l.Action == changes {
			out.line("~ limits: %s", strings.Join(l.Changes, ", "))
			done = append(done, "limits: changed")
		} else {
			done = append(done, "limits: unchanged")
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
		out.line("not in the file, not changed (--prune deletes them): %s", strings.Join(others, ", "))
	}
}

// poolPlan is what has to be done to one pool to make it as declared.
type poolPlan struct {
	Name   string `json:"name"`
	Action action `json:"action"`
	// Changes in words, of a pool that changes or is made.
	Changes []string `json:"changes,omitempty"`
	// Claimed slots of a pool that is deleted, or left alone.
	Claimed int `json:"claimed,omitempty"`

	change pool.Change
}

// action is what is done to a pool.
type action string

const (
	creates action = "create"
	changes action = "change"
	keeps   action = "keep"
	deletes action = "delete"
	ignores action = "ignore" // not in the file, and not to be deleted
)

// planPools compares what is declared with what is. Pools that are not declared
// are deleted with prune, and left alone without. The order is that in which it
// is to be carried out: what deletes comes last.
func planPools(is []pool.Status, want manifest.Declaration, prune bool) []poolPlan {
	now := map[string]pool.Status{}
	for _, p := range is {
		if !p.Deleted {
			now[p.Name] = p
		}
	}
	var plans []poolPlan
	for _, name := range sortedNames(want.Pools) {
		d := want.Pools[name]
		p, exists := now[name]
		plan := poolPlan{Name: name, Action: keeps, change: d.Change()}
		spec := d.Spec
		spec.Paused = p.Paused
		if d.Paused != nil {
			spec.Paused = *d.Paused
		}
		switch {
		case !exists:
			plan.Action, plan.Changes = creates, []string{audit.SpecText(spec)}
		case spec != p.Spec:
			plan.Action, plan.Changes = changes, specChanges(p.Spec, spec)
		}
		plans = append(plans, plan)
	}
	for _, name := range sortedNames(now) {
		if _, declared := want.Pools[name]; declared {
			continue
		}
		plan := poolPlan{Name: name, Action: ignores, Claimed: now[name].Claimed}
		if prune {
			plan.Action = deletes
		}
		plans = append(plans, plan)
	}
	return plans
}

// line writes one line of the difference; empty for what stays.
func (p poolPlan) line() string {
	switch p.Action {
	case creates:
		return "+ " + p.Name + ": " + strings.Join(p.Changes, ", ")
	case changes:
		return "~ " + p.Name + ": " + strings.Join(p.Changes, ", ")
	case deletes:
		if p.Claimed > 0 {
			return "- " + p.Name + " (" + text.Count(p.Claimed, "slot") + " still held)"
		}
		return "- " + p.Name
	}
	return ""
}

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:     "export",
		Category: operating,
		Usage:    "print all pools and limits as a file for 'berth apply'",
		Action:   onEtcd(export),
	}
}

// exported is a file for apply. What it does not say of a pool is not said on
// purpose: see [manifest.Pool].
type exported struct {
	Pools  map[string]exportedPool `json:"pools" yaml:"pools"`
	Limits exportedLimits          `json:"limits" yaml:"limits"`
}

type exportedPool struct {
	Limit         int    `json:"limit" yaml:"limit"`
	LeaseDuration string `json:"lease_duration" yaml:"lease_duration"`
	ReserveAfter  string `json:"reserve_after" yaml:"reserve_after"`
	Paused        bool   `json:"paused,omitempty" yaml:"paused,omitempty"`
}

type exportedLimits struct {
	MaxConcurrentRuns int            `json:"max_concurrent_runs" yaml:"max_concurrent_runs"`
	Tags              map[string]int `json:"tags" yaml:"tags"`
}

func export(r *request) error {
	pools, err := r.Pools(r.ctx())
	if err != nil {
		return err
	}
	out := exported{}
	if out.Pools, err = exportPools(pools); err != nil {
		return err
	}
	limits, _, err := r.Runs.Limits(r.ctx())
	if err != nil {
		return err
	}
	out.Limits = exportLimits(limits)
	if r.format == "json" {
		return r.print(out, nil)
	}
	text, err := exportText(out)
	if err != nil {
		return err
	}
	_, err = r.out.Write(text)
	return err
}

func exportLimits(l run.Limits) exportedLimits {
	out := exportedLimits{MaxConcurrentRuns: l.MaxConcurrentRuns, Tags: map[string]int{}}
	for _, t := range l.Tags {
		out.Tags[t.Name()] = t.Limit
	}
	return out
}

func exportPools(pools []pool.Status) (map[string]exportedPool, error) {
	out := map[string]exportedPool{}
	for _, p := range pools {
		switch {
		case p.Deleted:
			continue
		case p.Problem != "":
			return nil, problem.New(problem.CorruptValue, "pool '%s' can't be exported: %s", p.Name, p.Problem)
		}
		out[p.Name] = exportedPool{
			Limit: p.Limit, Paused: p.Paused,
			LeaseDuration: p.LeaseDuration.String(), ReserveAfter: pool.FormatReserveAfter(p.ReserveAfter),
		}
	}
	return out, nil
}

// exportText writes the file, in YAML.
func exportText(out exported) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintln(&b, "# The pools and limits of berth. 'berth apply --file FILE' makes them so again.")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(out); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// readInput reads the file that --file names, with - for stdin, and returns its
// name for messages.
func readInput(c *cli.Context, most int) (name string, data []byte, err error) {
	name = c.String("file")
	in, closeIn := c.App.Reader, func() error { return nil }
	if name == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return name, nil, ofLine(problem.New(problem.Invalid, "the file can't be read: %w", err))
		}
		in, closeIn = f, f.Close
	}
	data, err = io.ReadAll(io.LimitReader(in, int64(most)+1))
	if closeErr := closeIn(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
		return name, nil, ofLine(problem.New(problem.Invalid, "%s can't be read: %w", name, err))
	case len(data) > most:
		return name, nil, problem.New(problem.TooLarge, "%s is longer than %d KB", name, most>>10)
	}
	return name, data, nil
}
