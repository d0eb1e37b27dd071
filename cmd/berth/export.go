package main

import (
	"bytes"
	"fmt"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:     "export",
		Category: operating,
		Usage:    "write all pools as a file for 'berth apply'",
		Action:   export,
	}
}

// exported is a file for apply. What it does not say of a pool is not said on
// purpose: see [declaredPool].
type exported struct {
	Pools map[string]exportedPool `json:"pools" yaml:"pools"`
}

type exportedPool struct {
	Limit         int    `json:"limit" yaml:"limit"`
	LeaseDuration string `json:"lease_duration" yaml:"lease_duration"`
	ReserveAfter  string `json:"reserve_after" yaml:"reserve_after"`
	Paused        bool   `json:"paused,omitempty" yaml:"paused,omitempty"`
}

func export(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connect(c, func(admin *berth.Admin) error {
		r, err := admin.Read(c.Context)
		if err != nil {
			return err
		}
		out, err := exportPools(r.Pools())
		if err != nil {
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
	})
}

func exportPools(pools []pool.Status) (exported, error) {
	out := exported{Pools: map[string]exportedPool{}}
	for _, p := range pools {
		switch {
		case p.Deleted:
			continue
		case p.Problem != "":
			return exported{}, problem.New(problem.CorruptValue, "pool '%s' can't be exported: %s", p.Name, p.Problem)
		}
		out.Pools[p.Name] = exportedPool{
			Limit: p.Limit, Paused: p.Paused,
			LeaseDuration: p.LeaseDuration.String(), ReserveAfter: pool.FormatReserveAfter(p.ReserveAfter),
		}
	}
	return out, nil
}

// exportText writes the file, in YAML.
func exportText(out exported) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintln(&b, "# The pools of berth. 'berth apply --file FILE' makes them so again.")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(out); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}
