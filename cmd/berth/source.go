package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/manifest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/source"
)

func sourceCommand() *cli.Command {
	return &cli.Command{
		Name:        "source",
		Category:    running,
		Usage:       "create a run for each item that a command lists",
		Subcommands: []*cli.Command{sourceRunCommand(), sourceListCommand(), sourceWakeCommand(), sourceDeleteCommand()},
	}
}

func sourceRunCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "run a source: list items regularly, and submit a run for each new one",
		Description: `The file has the command that lists the items, and the run that is submitted for each:

   name: inbox
   list: [ls, /srv/inbox]    # or shell: "…"
   interval: 30s             # between two polls; default: 30s
   timeout: 1m               # of the command; default: 1m
   id: id                    # the field of an item with its id; default: id
   forget: 24h               # an item that is no longer listed; default: 24h
   vars: {env: dev}          # fields of items and their defaults; default: any fields
   run:                      # as for 'berth submit -f'
     name: load {{.item}}
     steps:
       - name: load
         command: [./load.sh, "/srv/inbox/{{.item}}"]

The command prints a JSON array, or a line for each item: a JSON object with an id, or a
text, which is its own id. Each id is submitted once, as the run NAME.ID. It can be submitted
again when it has not been listed for the time of forget.

Several processes on several hosts can run the same source: one polls, and another one takes
over if it stops.

On TERM or INT it ends the current poll and stops. On a second signal it does not wait.`,
		Flags: slices.Concat(config.Flags(config.Instance), healthFlags(), []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read `FILE`, - for stdin"},
		}),
		Action: handle(sourceRun),
	}
}

func sourceRun(q *request) error {
	c := q.Context
	if c.String("file") == "" {
		return usagef("--file is missing: give the name of a file, or - for stdin")
	}
	sv, err := newService(q, config.Lead)
	if err != nil {
		return err
	}
	name, data, err := readInput(c, maxSubmission)
	if err != nil {
		return err
	}
	spec, err := manifest.ReadSource(name, data)
	if err != nil {
		return err
	}
	sv.log.Named(source.Role).Info("loaded", "source", spec.Name, "file", name, "interval", spec.Interval, "steps", len(spec.Steps))
	command := source.Command{
		Argv: spec.Argv(), Env: append(config.WithoutSettings(os.Environ()), "BERTH_SOURCE="+spec.Name), Timeout: spec.Timeout,
	}
	var running *source.Source
	p, err := startProcess(sv.Settings, sv.log, store.NewCluster(sv.log, registererOf(sv.metrics)), func(backend *store.Client) member {
		running = source.New(source.Config{
			Backend: backend, Keys: store.NewKeys(sv.Prefix), Spec: spec, List: command.List,
			Submitter: func(ctx context.Context) (access.Identity, error) {
				by, err := audit.OnEtcd(backend, hostName(sv.Settings)).Identify(ctx)
				return by.Identity, err
			},
			Host: hostName(sv.Settings), Version: version(), Retention: sv.RunRetention, MaxRunEvents: sv.MaxRunEvents,
			Logger: sv.log, Registerer: registererOf(sv.metrics),
		})
		return running
	})
	if err != nil {
		return err
	}
	return sv.run(q.printer, p, func(url string) any {
		return sourcesRecord{PID: os.Getpid(), Host: hostName(sv.Settings), Source: spec.Name, Instance: running.Instance(), HTTP: url}
	})
}

// sourcesRecord is a source of this process in JSON.
type sourcesRecord struct {
	PID      int    `json:"pid"`
	Host     string `json:"host"`
	Source   string `json:"source"`
	Instance string `json:"instance"`
	// HTTP is the address of health and metrics.
	HTTP string `json:"http,omitempty"`
}

// String describes the source.
func (r sourcesRecord) String() string {
	return "berth source " + r.Source + " runs on host " + r.Host + " as " + r.Instance + healthText(r.HTTP)
}

func sourceListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the sources, where they run, and the result of their last poll",
		Description: `LISTED is how many items the last poll listed, NEW how many of them were submitted, and
REFUSED how many can't be submitted. KNOWN is how many ids are remembered. A poll without
changes is reported every 10 seconds.`,
		Action: onEtcd(sourceList),
	}
}

func sourceList(r *request) error {
	all, err := sourcesOf(r).All(r.ctx())
	if err != nil {
		return err
	}
	list := inspect.List[api.Source]{Items: []api.Source{}}
	var bad []error
	for _, o := range all {
		list.Items = append(list.Items, api.SourceOf(o))
		bad = append(bad, o.Bad...)
	}
	if err := r.print(list, func(out *page) { sourceTable(out, list.Items) }); err != nil || len(bad) == 0 {
		return err
	}
	return problem.New(problem.CorruptValue, "parts of the state of sources can't be read: %w", errors.Join(bad...))
}

// sourcesOf is the store of sources, on the same connection.
func sourcesOf(r *request) source.Store {
	return source.Store{Backend: r.Runs.Backend, Keys: r.Runs.Keys}
}

func sourceTable(out *page, all []api.Source) {
	var rows [][]string
	for _, r := range all {
		row := []string{r.Name, "no process", "0", "", "", "", "", strconv.Itoa(r.Known), "not polled yet"}
		if len(r.Candidates) > 0 {
			row[1], row[2] = r.Candidates[0].Host, strconv.Itoa(len(r.Candidates)-1)
		}
		if l := r.LastPoll; l != nil {
			row[3], row[4] = text.Ago(out.now, l.At), strconv.Itoa(l.Listed)
			row[5], row[6], row[8] = strconv.Itoa(l.Submitted), strconv.Itoa(l.Refused), pollText(l)
		}
		if r.Problem != "" {
			row[8] = "parts of its state can't be read"
		}
		rows = append(rows, row)
	}
	out.table("there are no sources; 'berth source run -f FILE' starts one",
		[]string{"SOURCE", "RUN BY", "STANDBY", "LAST POLL", "LISTED", "NEW", "REFUSED", "KNOWN", "STATUS"}, rows)
}

// pollText returns the result of a poll.
func pollText(l *api.SourcePoll) string {
	switch {
	case l.Failures > 1:
		return fmt.Sprintf("failed %d times: %s", l.Failures, l.Error)
	case l.Error != "":
		return "failed: " + l.Error
	case l.Refused > 0:
		return "the first refused: " + l.Refusal
	}
	return "ok"
}

func sourceWakeCommand() *cli.Command {
	return &cli.Command{
		Name:      "wake",
		Usage:     "have a source poll at once",
		ArgsUsage: "SOURCE",
		Description: `If a poll is in progress, another one follows it. With --wait it prints the result, and
exits with 1 if the poll failed.`,
		Flags: wayFlags(waitFlag("wait at most `TIME` for the result", 0)),
		Action: handle(func(r *request) error {
			wait, err := r.wait()
			if err != nil {
				return err
			}
			return way{r: r}.change(
				func(w way) error { return w.wakeSource(wait) },
				func() error { return sourceWake(r, wait) },
			)
		}, sourceArgument),
	}
}

func sourceWake(r *request, wait time.Duration) error {
	name := r.args[0]
	request, err := sourcesOf(r).Wake(r.ctx(), name)
	if err != nil || wait == 0 {
		return err
	}
	var poll source.Poll
	if err := r.within(wait, func() error { return notPolled(name, wait) }, func(ctx context.Context) (err error) {
		poll, err = sourcesOf(r).Await(ctx, name, request)
		return err
	}); err != nil {
		return err
	}
	return printPoll(r.printer, api.SourcePollOf(poll))
}

// notPolled returns the error for a source that has not polled in time.
func notPolled(name string, wait time.Duration) error {
	return fmt.Errorf("source '%s' has not polled within %s", name, text.Duration(wait))
}

// printPoll prints the result of a poll. One that failed is an error.
func printPoll(p *printer, poll api.SourcePoll) error {
	if err := p.print(poll, func(out *page) {
		if poll.Error != "" {
			out.line("%s", pollText(&poll))
			return
		}
		out.line("%d listed, %d new, %d refused; %s", poll.Listed, poll.Submitted, poll.Refused, pollText(&poll))
	}); err != nil {
		return err
	}
	if poll.Error != "" {
		return status(problem.ExitFailure)
	}
	return nil
}

func sourceDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete the state of a source that does not run",
		ArgsUsage: "SOURCE",
		Description: `Its runs stay. If the source runs again, all listed items are submitted again, except those
whose runs still exist.`,
		Action: handle(func(r *request) error {
			return way{r: r}.change(nil, func() error {
				return r.Act(r.ctx(), audit.DeleteSource, r.args[0], "", func(ctx context.Context) (audit.Effect, error) {
					return audit.Effect{After: "deleted"}, sourcesOf(r).Delete(ctx, r.args[0])
				})
			})
		}, sourceArgument),
	}
}
