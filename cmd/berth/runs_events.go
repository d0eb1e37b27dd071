package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/text"
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
		Action: onEtcd(runsEvents, runArgument),
	}
}

func runsEvents(r *request) error {
	id := r.args[0]
	events, err := r.Runs.Events(r.ctx(), id)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		if _, err := r.Runs.Get(r.ctx(), id); err != nil {
			return err
		}
	}
	if !r.Bool("follow") {
		return r.print(inspect.ListOf(events, inspect.RunEventOf), func(out *page) { runEventsTable(out, events) })
	}
	t := &eventTail{printer: r.printer}
	return r.Runs.FollowEvents(r.ctx(), id, run.Place{}, t.tell)
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
		return enc.Encode(inspect.RunEventOf(e))
	case "yaml":
		b.WriteString("---\n")
		return writeYAML(b, inspect.RunEventOf(e))
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

func runsRetryCommand() *cli.Command {
	return &cli.Command{
		Name:      "retry",
		Usage:     "queue a run once more that has failed or was canceled, or try some of its step instances again",
		ArgsUsage: "RUN",
		Description: "It goes back to its old place in the queue. Of its steps only those are run again that\n" +
			"have not succeeded, with as many retries as at first.\n\n" +
			"With --step it is one step instance, or all of a step that have failed or were canceled.\n" +
			"Others that have failed stay so; what was never begun, or was stopped because the run\n" +
			"ended, goes as well. A run that is in progress goes on meanwhile.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: reasonFlag.Name, Usage: "`TEXT` that is kept with the event", DefaultText: "who retried it"},
			&cli.StringSliceFlag{Name: "step", Usage: "`STEP[INDEX]` to try again, or STEP for all of it; may be repeated"},
		},
		Action: onEtcd(retryRun, runArgument),
	}
}

// retryRun has a run tried again, or some of its step instances.
func retryRun(r *request) error {
	id := r.args[0]
	var which []step.Which
	for _, text := range r.StringSlice("step") {
		w, err := parseWhich(text)
		if err != nil {
			return err
		}
		which = append(which, w)
	}
	why, err := reasonOrBy(r.Context, "retried")
	if err != nil {
		return err
	}
	done, err := r.Steps.Retry(r.ctx(), r.Runs, id, why, which...)
	switch {
	case err != nil:
		return err
	case len(which) > 0:
		return printRetried(r.printer, which, done)
	case !done.Queued:
		return done.Run.Retriable() // nobody has lost an answer
	}
	return r.print(inspect.RunOf(done.Run), func(out *page) { out.line("run %s is queued again", id) })
}

// printRetried tells which step instances are tried again.
func printRetried(p *printer, which []step.Which, done *step.Retried) error {
	record := retriedSteps{Run: done.Run.ID, Status: string(done.Run.Status), Queued: done.Queued, Instances: done.Requested}
	for _, w := range which {
		record.Steps = append(record.Steps, w.String())
	}
	return p.print(record, func(out *page) {
		of := strings.Join(record.Steps, ", ")
		if len(which) > 1 || which[0].Index == step.Every {
			of = fmt.Sprintf("%s of %s", text.Count(record.Instances, "instance"), of)
		}
		switch {
		case record.Instances == 0 && record.Queued:
			out.line("run %s is queued again: nothing of %s had begun", record.Run, strings.Join(record.Steps, ", "))
		case record.Instances == 0:
			out.line("nothing of %s of run %s has failed or was canceled: it is left as it is", strings.Join(record.Steps, ", "), record.Run)
		case record.Queued:
			out.line("run %s is queued again: %s", record.Run, requestedAgain(of, record.Instances))
		default:
			out.line("run %s goes on: %s", record.Run, requestedAgain(of, record.Instances))
		}
	})
}

func requestedAgain(what string, n int) string {
	if n == 1 {
		return what + " is requested again"
	}
	return what + " are requested again"
}

// retriedSteps are step instances that are tried again, in JSON.
type retriedSteps struct {
	Run string `json:"run"`
	// Status is that of the run, and Queued that it was queued once more.
	Status string   `json:"status"`
	Queued bool     `json:"queued"`
	Steps  []string `json:"steps"`
	// Instances is how many are requested again.
	Instances int `json:"instances"`
}

// parseWhich reads STEP or STEP[INDEX].
func parseWhich(text string) (step.Which, error) {
	w, err := step.ParseWhich(text)
	if err != nil {
		return w, usagef("%s", err)
	}
	return w, nil
}

// cancelStep cancels one step instance of a run.
func cancelStep(r *request) error {
	if r.IsSet(reasonFlag.Name) {
		return usagef("--reason is kept with a run, and --step cancels none: one of the two has to go")
	}
	which, err := parseWhich(r.String("step"))
	if err != nil {
		return err
	}
	one, err := r.Steps.One(r.ctx(), r.args[0], which)
	if err != nil {
		return err
	}
	i, err := r.Steps.Cancel(r.ctx(), r.Runs, one)
	if err != nil {
		return err
	}
	record := canceledStep{Run: i.Run, Step: i.Step, Index: i.Index, Status: string(i.Status)}
	return r.print(record, func(out *page) {
		if i.Status == step.Running {
			out.line("step %s of run %s is being stopped by its worker", i.Text(), i.Run)
			return
		}
		out.line("step %s of run %s is canceled", i.Text(), i.Run)
	})
}

// canceledStep is a step instance that was canceled, in JSON. One that is running still
// is being stopped.
type canceledStep struct {
	Run    string `json:"run"`
	Step   string `json:"step"`
	Index  int    `json:"index"`
	Status string `json:"status"`
}
