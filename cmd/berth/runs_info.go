package main

import (
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/sidecar"
)

func runsInfoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "show a run",
		ArgsUsage: "RUN",
		Action: func(c *cli.Context) error {
			return onRun(c, func(s run.Store, p *printer, id string) error {
				r, err := s.Get(c.Context, id)
				if err != nil {
					return err
				}
				record := runRecord(r)
				return p.print(record, func(out *page) { runText(out, record) })
			})
		},
	}
}

func runText(out *page, r sidecar.Run) {
	times := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return ago(out.now, t) + " (" + t.Local().Format(time.DateTime) + ")"
	}
	rows := [][]string{
		{"run", r.ID}, {"name", r.Name}, {"status", r.Status}, {"reason", reasonOf(r)},
		{"owner", r.Owner}, {"priority", strconv.Itoa(r.Priority)}, {"tags", pairsText(r.Tags)}, {"labels", pairsText(r.Labels)},
		{"retries", retriesText(r)},
		{"queued", times(r.QueuedAt)}, {"admitted", times(r.AdmittedAt)}, {"started", times(r.StartedAt)}, {"ended", times(r.EndedAt)},
		{"executor", executorText(r)},
	}
	if r.Fence != 0 {
		rows = append(rows, []string{"fence", strconv.FormatInt(r.Fence, 10)})
	}
	out.columns(withValues(rows))
}

// retriesText says how often a run may be tried again, and has been.
func retriesText(r sidecar.Run) string {
	text := strconv.Itoa(r.Retries)
	if r.Lost > 0 {
		text += ", " + count(r.Lost, "executor") + " lost"
	}
	return text
}

func executorText(r sidecar.Run) string {
	if r.Executor == nil {
		return ""
	}
	text := r.Executor.Host + "/" + r.Executor.Instance
	if r.Executor.Name != "" {
		text += ", " + r.Executor.Name
	}
	return text + ", attempt " + strconv.Itoa(r.Attempt)
}

func runsEventsCommand() *cli.Command {
	return &cli.Command{
		Name:        "events",
		Usage:       "tell what has happened to a run",
		ArgsUsage:   "RUN",
		Description: "Events are kept for run_retention, also after the run itself is gone.",
		Action:      func(c *cli.Context) error { return onRun(c, runsEvents(c)) },
	}
}

func runsEvents(c *cli.Context) func(run.Store, *printer, string) error {
	return func(s run.Store, p *printer, id string) error {
		events, err := s.Events(c.Context, id)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			if _, err := s.Get(c.Context, id); err != nil {
				return err
			}
		}
		return p.print(listOf(events, runEventRecord), func(out *page) { runEventsTable(out, events) })
	}
}

func runEventsTable(out *page, events []run.LoggedEvent) {
	var rows [][]string
	for _, e := range events {
		rows = append(rows, []string{
			e.At.Local().Format(time.DateTime + ".000"), string(e.Type), e.By, pairsText(e.Metadata), e.Reason,
		})
	}
	out.table("its events are gone: they are kept for run_retention", []string{"AT", "EVENT", "BY", "MORE", "REASON"}, rows)
}
