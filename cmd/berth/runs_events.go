package main

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
)

func runsEventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "tell what has happened to a run",
		ArgsUsage: "RUN",
		Description: "Events are kept for run_retention, also after the run itself is gone. Of step instances\n" +
			"all that happens to the first 150 of a run is told, and of the others that they have\n" +
			"failed for good, 20 by each worker: 'berth runs info' counts all. With --follow\n" +
			"each is told as it comes, until a second after all of a run that has ended were told;\n" +
			"JSON then is one event a line, and YAML one a document.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the run has ended"},
		},
		Action: func(c *cli.Context) error { return onRun(c, runsEvents(c)) },
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
		if !c.Bool("follow") {
			return p.print(listOf(events, runEventRecord), func(out *page) { runEventsTable(out, events) })
		}
		t := &eventTail{printer: p}
		return s.FollowEvents(c.Context, id, run.Place{}, t.tell)
	}
}

var runEventsHead = []string{"AT", "EVENT", "BY", "MORE", "REASON"}

func runEventRow(e run.LoggedEvent) []string {
	return []string{e.At.Local().Format(time.DateTime + ".000"), string(e.Type), e.By, pairsText(e.Metadata), e.Reason}
}

func runEventsTable(out *page, events []run.LoggedEvent) {
	var rows [][]string
	for _, e := range events {
		rows = append(rows, runEventRow(e))
	}
	out.table("its events are gone: they are kept for run_retention", runEventsHead, rows)
}

// eventTail prints events as they come.
type eventTail struct {
	*printer
	begun bool // there is a head
}

// tell prints some events. Of those in a table that come later only the first two
// columns line up: how wide the others will be is not known.
func (t *eventTail) tell(events []run.LoggedEvent) error {
	var b bytes.Buffer
	for _, e := range events {
		if err := t.add(&b, e); err != nil {
			return err
		}
	}
	_, err := t.out.Write(b.Bytes())
	return err
}

func (t *eventTail) add(b *bytes.Buffer, e run.LoggedEvent) error {
	switch t.format {
	case "json":
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		return enc.Encode(runEventRecord(e))
	case "yaml":
		b.WriteString("---\n")
		return writeYAML(b, runEventRecord(e))
	}
	out := &page{out: b, now: t.now}
	rows := [][]string{runEventRow(e)}
	if !t.begun {
		rows = [][]string{runEventsHead, rows[0]}
	}
	t.begun = true
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
		}
		out.line("%-23s  %-16s  %s  %s  %s", row[0], row[1], row[2], row[3], row[4])
	}
	return nil
}
