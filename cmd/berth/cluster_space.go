package main

import (
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

func clusterSpaceCommand() *cli.Command {
	return &cli.Command{
		Name: "space", Usage: "show what fills etcd, and free what can be freed",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "free", Usage: "delete what belongs to no run, compact, defragment, and clear the NOSPACE alarm"}},
		Description: `Reads all keys of etcd, and shows their number and size by kind, the runs of each identity, the
events and output of runs that do not exist, and for each member how much of its database are
keys, history that is not compacted, and free pages. It needs the etcd user root, if etcd has
users, and works while etcd is full.

With --free it deletes the events and output of runs that do not exist, compacts the history,
defragments the members one at a time, and clears the alarm. Watches that are interrupted at
that moment read everything again. No run, claim or pool is changed. If a member is still full
after that, the exit code is 1 and the alarm stays.`,
		Action: handle(clusterSpace),
	}
}

// spaceReport is what 'cluster space' prints as JSON.
type spaceReport struct {
	*cluster.Space
	// Freed is what was freed before.
	Freed *cluster.Freed `json:"freed,omitempty"`
}

func clusterSpace(r *request) error {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Etcd)
	if err != nil {
		return err
	}
	if r.Bool("free") {
		if err := (way{r: r}).changeCluster(s); err != nil {
			return err
		}
	}
	c, err := dialCluster(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return err
	}
	defer c.Close()
	report := spaceReport{}
	if report.Space, err = c.Space(r.ctx(), store.NewKeys(s.Prefix)); err != nil {
		return err
	}
	var full error
	if r.Bool("free") {
		if report.Freed, full = c.Free(r.ctx(), store.NewKeys(s.Prefix), report.Space); full != nil && len(report.Freed.Members) == 0 {
			return full
		}
		if report.Space, err = c.Space(r.ctx(), store.NewKeys(s.Prefix)); err != nil {
			return err
		}
	}
	if err := r.print(report, func(out *page) { spaceTables(out, report) }); err != nil {
		return err
	}
	return full
}

func spaceTables(out *page, s spaceReport) {
	if f := s.Freed; f != nil {
		out.line("deleted %s of runs that do not exist, and compacted the history up to revision %d", text.Count(int(f.Deleted), "key"), f.Compacted)
		for _, d := range f.Members {
			if d.Skipped != "" {
				continue
			}
			out.line("defragmented %s: from %s to %s", d.Name, humanize.IBytes(uint64(d.Before)), humanize.IBytes(uint64(d.After)))
		}
		skippedLines(out, f.Members)
		out.gap()
	}
	size := func(n int64) string { return humanize.IBytes(uint64(n)) }
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	var rows [][]string
	for _, m := range s.Members {
		rows = append(rows, []string{m.Name, size(m.DB), size(m.Keys), size(m.History), size(m.Free), bytesText(m.Quota), strings.Join(m.Alarms, ", ")})
	}
	out.table("no member reports its size", []string{"MEMBER", "SIZE", "KEYS", "HISTORY", "FREE", "QUOTA", "ALARMS"}, rows)
	rows = nil
	for _, k := range s.Kinds {
		rows = append(rows, []string{k.Kind, number(k.Keys), size(k.Bytes)})
	}
	out.gap()
	out.table("there is no key", []string{"KIND", "KEYS", "SIZE"}, rows)
	rows = nil
	for _, of := range s.Identities {
		rows = append(rows, []string{text.Visible(of.Identity), number(of.Unfinished), number(of.Stored), size(of.Bytes)})
	}
	if len(rows) > 0 {
		out.gap()
		out.table("", []string{"IDENTITY", "UNFINISHED RUNS", "STORED RUNS", "COUNT AS"}, rows)
	}
	if s.Absent.Keys > 0 {
		out.gap()
		out.line("%s of %s that do not exist take %s: --free deletes them", text.Count(int(s.Absent.Keys), "key"), text.Count(s.Absent.Runs, "run"), size(s.Absent.Bytes))
	}
}
