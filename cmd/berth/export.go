package main

import (
	"bytes"
	"fmt"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:     "export",
		Category: operating,
		Usage:    "write all pools and limits as a file for 'berth apply'",
		Action:   export,
	}
}

// exported is a file for apply. What it does not say of a pool is not said on
// purpose: see [declaredPool].
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

func export(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	out := exported{}
	if err := connect(c, func(admin *berth.Admin) error {
		r, err := admin.Read(c.Context)
		if err == nil {
			out.Pools, err = exportPools(r.Pools())
		}
		return err
	}); err != nil {
		return err
	}
	if err := connectRuns(c, func(s run.Store) error {
		limits, _, err := s.Limits(c.Context)
		out.Limits = exportLimits(limits)
		return err
	}); err != nil {
		return err
	}
	if p.format == "json" {
		return p.print(out, nil)
	}
	text, err := exportText(out)
	if err != nil {
		return err
	}
	_, err = p.out.Write(text)
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
