package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

func hostsCommand() *cli.Command {
	return &cli.Command{
		Name:     "hosts",
		Category: operating,
		Usage:    "list the hosts",
		Subcommands: []*cli.Command{{
			Name:   "list",
			Usage:  "list the live instances, and those that are gone and still hold something",
			Action: onEtcd(hostsList),
			Description: `An instance is a process of berth on a host: a sidecar, a worker, a source, a candidate for
coordinator, or a berth exec without a sidecar. For up to 10 seconds after it has died it is
still listed: LAST SEEN is when it last renewed its presence, "now" if that was less than 5
seconds ago. A coordinator that was seen earlier does not lead. CAPACITY is how many step
instances it runs at a time. ACTIVE is how many it runs now, and how many runs were started
through it. QUEUES are the queues of a worker. STATUS is that of a worker: working, draining,
drained, stopping or stopped. DISPATCHES is since when the instance is the dispatcher, which
offers slots to the waiting claims of all hosts: the coordinator that leads, or without one an
instance with waiting claims. If there is none, each instance serves its own.

An instance that is gone is listed while it still holds something: if it restarts before
its leases end, it keeps that. Otherwise it is lost, and retried if retries are left.
'berth worker list' shows more about workers.`,
		}},
	}
}

func hostsList(r *request) error {
	f, err := r.Fleet(r.ctx())
	if err != nil {
		return err
	}
	if err := r.print(inspect.List[inspect.Host]{Items: f.Hosts}, func(out *page) { hostsTable(out, f.Hosts) }); err != nil {
		return err
	}
	if w := f.Dispatch.Warning(); w != "" {
		r.say("%s", w)
	}
	return unreadableFleet(f)
}

// unreadableFleet is the error about instances that can't be read, after the others
// were printed; nil if there are none.
func unreadableFleet(f *inspect.Fleet) error {
	if len(f.Bad) == 0 {
		return nil
	}
	return problem.New(problem.CorruptValue, "%s of instances can't be read: %w", text.Count(len(f.Bad), "key"), errors.Join(f.Bad...))
}

func hostsTable(out *page, hosts []inspect.Host) {
	var rows [][]string
	for _, h := range hosts {
		capacity, leader, dispatches := "", "", ""
		if h.Capacity > 0 {
			capacity = strconv.Itoa(h.Capacity)
		}
		if h.Leader {
			leader = "leads"
		}
		if !h.DispatchesSince.IsZero() {
			dispatches = text.Ago(out.now, h.DispatchesSince)
		}
		rows = append(rows, []string{
			h.Host, h.Instance, h.Role, h.Status, capacity, activeText(h), strings.Join(h.Queues, ","), leader, dispatches, h.Version, pidText(h.PID), text.Ago(out.now, h.Since), h.SeenText(out.now),
		})
	}
	out.table("no instance is seen", []string{"HOST", "INSTANCE", "ROLE", "STATUS", "CAPACITY", "ACTIVE", "QUEUES", "LEADER", "DISPATCHES", "VERSION", "PID", "SINCE", "LAST SEEN"}, rows)
}

// pidText is empty where none is known.
func pidText(pid int) string {
	if pid == 0 {
		return ""
	}
	return strconv.Itoa(pid)
}

// activeText says what an instance has: the runs apart, which capacity is not about.
func activeText(h inspect.Host) string {
	s := strconv.Itoa(h.ActiveSteps)
	if h.ActiveRuns > 0 {
		s += " + " + text.Count(h.ActiveRuns, "run")
	}
	return s
}
