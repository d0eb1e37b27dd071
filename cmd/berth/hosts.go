package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar"
)

func hostsCommand() *cli.Command {
	return &cli.Command{
		Name:     "hosts",
		Category: operating,
		Usage:    "see the hosts",
		Subcommands: []*cli.Command{{
			Name:   "list",
			Usage:  "list the instances that are seen now, and those that are missed",
			Action: hostsList,
			Description: "An instance is a process of berth on a host: a sidecar, a worker, or a berth exec\n" +
				"without a sidecar; and a candidate for the coordinator's part, alone or in a\n" +
				"sidecar. It is seen for up to 10 seconds after it has died. CAPACITY is how many step\n" +
				"instances it runs at a time, ACTIVE how many it has now, and how many runs were\n" +
				"started through it. QUEUES are those that a worker takes them from. STATE is whether a\n" +
				"worker works, is draining or drained, or is stopping or stopped.\n\n" +
				"One that is gone is listed while something is its own: it may come back to that until\n" +
				"the leases have ended. What it has is lost then, and tried again if it may be.\n" +
				"'berth worker list' has more of the workers.",
		}},
	}
}

func hostsList(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		// What can be read is shown also if something else can't.
		hosts, err := readHosts(c.Context, s)
		if err != nil && len(hosts) == 0 {
			return err
		}
		states, unread, statesErr := stepsOf(s).WorkerStates(c.Context)
		if statesErr != nil {
			return statesErr
		}
		err = errors.Join(append(unread, err)...)
		hosts = sidecar.WithStates(hosts, states)
		list := sidecar.List[sidecar.Host]{Items: hosts}
		if printErr := p.print(list, func(out *page) { hostsTable(out, hosts) }); printErr != nil {
			return printErr
		}
		return err
	})
}

// readHosts reads who is there, what each has, and who leads. Records that can't be
// read are left out, and are the error. What is active is counted at another moment
// than hosts are listed.
func readHosts(ctx context.Context, s run.Store) ([]sidecar.Host, error) {
	seen, err := store.ReadAll(ctx, s.Backend, s.Keys.Hosts())
	if err != nil {
		return nil, store.Problem("the hosts could not be read", err)
	}
	var all []lease.PresenceRecord
	var bad []error
	for _, kv := range seen.KVs {
		r, err := lease.DecodePresence(s.Keys, string(kv.Key), kv.Value)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b lease.PresenceRecord) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	candidates, err := s.Candidates(ctx)
	if err != nil {
		return nil, err
	}
	active, err := stepsOf(s).Active(ctx)
	if err != nil {
		return nil, err
	}
	hosts, err := sidecar.HostsWithGone(ctx, s.Backend, s.Keys, all, active, candidates)
	if err != nil {
		return nil, err
	}
	return hosts, errors.Join(bad...)
}

func hostsTable(out *page, hosts []sidecar.Host) {
	var rows [][]string
	for _, h := range hosts {
		capacity, leader := "", ""
		if h.Capacity > 0 {
			capacity = strconv.Itoa(h.Capacity)
		}
		if h.Leader {
			leader = "leads"
		}
		rows = append(rows, []string{
			h.Host, h.Instance, h.Role, h.State, capacity, activeText(h), strings.Join(h.Queues, ","), leader, h.Version, pidText(h.PID), text.Ago(out.now, h.Since), seenText(h.Gone, h.WorkLeft),
		})
	}
	out.table("no instance is seen", []string{"HOST", "INSTANCE", "ROLE", "STATE", "CAPACITY", "ACTIVE", "QUEUES", "LEADER", "VERSION", "PID", "SINCE", "LAST SEEN"}, rows)
}

// pidText is empty where none is known.
func pidText(pid int) string {
	if pid == 0 {
		return ""
	}
	return strconv.Itoa(pid)
}

// activeText says what an instance has: the runs apart, which capacity is not about.
func activeText(h sidecar.Host) string {
	s := strconv.Itoa(h.ActiveSteps)
	if h.ActiveRuns > 0 {
		s += " + " + text.Count(h.ActiveRuns, "run")
	}
	return s
}
