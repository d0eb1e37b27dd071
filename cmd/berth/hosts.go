package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/lease"
)

func hostsCommand() *cli.Command {
	return &cli.Command{
		Name:     "hosts",
		Category: operating,
		Usage:    "see the hosts",
		Subcommands: []*cli.Command{{
			Name:   "list",
			Usage:  "list the instances that are seen now",
			Action: hostsList,
			Description: "An instance is a process of berth on a host: a sidecar, or a berth exec without\n" +
				"one; and a candidate for the coordinator's part, alone or in a sidecar. It is\n" +
				"seen for up to 10 seconds after it has died.",
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
	return connect(c, func(admin *berth.Admin) error {
		// What can be read is shown also if something else can't.
		hosts, err := admin.Hosts(c.Context)
		if err != nil && len(hosts) == 0 {
			return err
		}
		if printErr := p.print(listOf(hosts, hostRecord), func(out *page) { hostsTable(out, hosts) }); printErr != nil {
			return printErr
		}
		return err
	})
}

func hostsTable(out *page, hosts []lease.PresenceRecord) {
	var rows [][]string
	for _, h := range hosts {
		rows = append(rows, []string{h.Host, h.Instance, h.Role, h.Version, strconv.Itoa(h.PID), ago(out.now, h.Since)})
	}
	out.table("no instance is seen", []string{"HOST", "INSTANCE", "ROLE", "VERSION", "PID", "SINCE"}, rows)
}
