package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
)

func coordinatorCommand() *cli.Command {
	return &cli.Command{
		Name:     "coordinator",
		Category: serving,
		Usage:    "stand for the coordinator's part, which admits runs",
		Description: `Of all candidates one leads; the others take over when it is gone, the next in 10
seconds at most, and at once if it is stopped. Two or three in all are enough: on
hosts of their own, or within sidecars ('berth sidecar --coordinator').

TERM or INT: steps down. A second one does not wait.`,
		Flags:       config.Flags(config.Instance, config.Lead),
		Subcommands: []*cli.Command{coordinatorStatusCommand()},
		Action:      coordinate,
	}
}

func coordinate(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return group(c) // it has commands, too
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	s, err := config.Load(config.FromCLI(c), config.Common, config.Etcd, config.Instance, config.Lead)
	if err != nil {
		return err
	}
	st, err := stand(s, newLogger(c.App.ErrWriter, s, hclog.Info), nil)
	if err != nil {
		return err
	}
	asked := make(chan struct{})
	defer stopOnSignals(func(unix.Signal) bool { close(asked); return true })()
	for ready := st.ready(); ; {
		select {
		case <-ready:
			ready = nil
			r := standsRecord{PID: os.Getpid(), Host: s.Host, Instance: coordinator.Instance}
			if err := p.print(r, func(out *page) { out.line("berth coordinator of host %s stands as a candidate", s.Host) }); err != nil {
				return errors.Join(err, st.stepDown())
			}
		case <-st.failed():
			return st.err
		case <-asked:
			return st.stepDown()
		}
	}
}

// standsRecord is who stands, in JSON.
type standsRecord struct {
	PID      int    `json:"pid"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
}

func coordinatorStatusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "tell who leads, what it does, and who would take over",
		Description: "Exits with 1 if nobody leads. A leader with nothing to do tells of its ticks every\n" +
			"10 seconds.",
		Action: coordinatorStatus,
	}
}

func coordinatorStatus(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		all, err := coordinator.Candidates(c.Context, s.Backend, s.Keys)
		if err != nil {
			return err
		}
		record := coordinatorOf(all)
		if err := p.print(record, func(out *page) { coordinatorText(out, record) }); err != nil {
			return err
		}
		if record.Leader == nil {
			return status(problem.ExitFailure)
		}
		return nil
	})
}

func coordinatorText(out *page, r coordinatorRecord) {
	if r.Leader == nil {
		out.line("%s", nobodyLeads)
		return
	}
	rows := [][]string{
		{"leader", r.Leader.Host}, {"instance", r.Leader.Instance}, {"version", r.Leader.Version},
		{"term", strconv.FormatInt(r.Leader.Term, 10)}, {"stands since", ago(out.now, r.Leader.Since)},
	}
	out.columns(withValues(append(rows, tickRows(out.now, r.Leader.Tick)...)))
	if len(r.Others) == 0 {
		return
	}
	out.gap()
	var others [][]string
	for _, o := range r.Others {
		others = append(others, []string{o.Host, o.Instance, o.Version, ago(out.now, o.Since)})
	}
	out.table("", []string{"CANDIDATE", "INSTANCE", "VERSION", "SINCE"}, others)
}

// tickRows tell of a leader's last tick.
func tickRows(now time.Time, t *tickRecord) [][]string {
	if t == nil {
		return [][]string{{"last tick", "none yet"}}
	}
	when := fmt.Sprintf("number %d, %s", t.Number, ago(now, t.At))
	if t.Took > 0 {
		when += ", took " + human(time.Duration(t.Took))
	}
	return [][]string{
		{"last tick", when},
		{"it saw", fmt.Sprintf("%d queued, %d in progress", t.Queued, t.InProgress)},
		{"it did", fmt.Sprintf("%d admitted, %d lost, %d given a reason", t.Admitted, t.Lost, t.Blocked)},
	}
}
