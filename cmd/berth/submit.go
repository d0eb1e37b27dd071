package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/manifest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
)

func submitCommand() *cli.Command {
	return &cli.Command{
		Name:     "submit",
		Category: running,
		Usage:    "queue a run, and print its id",
		UsageText: `berth submit -f FILE [options]
berth submit [--items FILE] [options] -- COMMAND [ARGUMENT…]
berth submit [options]`,
		ArgsUsage: verbatim,
		Description: `The coordinator admits the run when the limits allow it ('berth limits get'). There are
three kinds of runs.

A file has the steps of a run, in YAML or JSON: their order, the items that a step is
repeated for, and how many of them run at a time. Workers run the steps.

   id: nightly-2026-01-02    # default: generated
   name: nightly
   owner: data team
   priority: 10              # -1000 to 1000; default: 0
   tags: {env: prod}         # limits count them
   labels: {ticket: "4711"}  # for information
   not_before: 2026-11-22T15:00:00Z   # or delay: 10m; default: at once
   max_concurrent_steps: 10  # step instances of all steps at a time
   steps:
     - name: extract
       items: {from: 1, to: 20}
       concurrency: 3
       command: [./load.sh, "{{.item}}"]
     - name: report
       needs: [extract]
       pools: {db: 1}
       shell: ./report.sh

A command is a run with one step. With --items it runs once for each item of a file, and
{{.item}} in its arguments is the item; --pool, --retries and --timeout apply to each item.
Everything after the -- belongs to the command.

A run with neither is for an executor of your own, which starts and finishes it over HTTP.
It can have pools and retries for the run as a whole:

   retries: 2                # after a lost executor; default: 0
   pools: {db: 2}            # slots that it holds from its admission to its end

Flags override the file; tags, labels and pools are added to those of the file. If a run
with the same id and content exists, nothing is submitted, and the id is printed.

With --wait it waits until the run has ended, and exits with 0 if it has succeeded, with 1
if it has failed or was canceled, and with 75 if it has not ended in time. Ctrl-C ends the
wait, not the run.`,
		Flags: wayFlags(append([]cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read `FILE`, - for stdin"},
			&cli.StringFlag{Name: "id", Usage: "`ID` of the run", DefaultText: "generated"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the run; several runs can have the same"},
			&cli.StringSliceFlag{Name: "tag", Usage: "tag `KEY=VALUE`, which limits count; may be repeated"},
			&cli.StringSliceFlag{Name: "label", Usage: "label `KEY=VALUE`, for information; may be repeated"},
			&cli.StringSliceFlag{Name: "pool", Aliases: []string{"p"}, Usage: "slots `POOL=SLOTS` of the run, or of each item of a command; POOL for one slot; may be repeated"},
			&cli.StringFlag{Name: "owner", Usage: "`TEXT` that names the owner"},
			&cli.IntFlag{Name: "priority", Usage: fmt.Sprintf("`N` from %d to %d; higher priorities are first", pool.MinPriority, pool.MaxPriority)},
			&cli.StringFlag{Name: "not-before", Usage: "join the queue at `TIME`, such as 2026-11-22T15:00:00Z", DefaultText: "at once"},
			&cli.StringFlag{Name: "delay", Usage: "join the queue `TIME` after the submission, such as 10m", DefaultText: "none"},
			&cli.IntFlag{Name: "retries", Usage: fmt.Sprintf("retry failed items of a command, or a run whose executor was lost, `N` times; at most %d", run.MaxRetries)},
			waitFlag("wait at most `TIME` until the run has ended, and report its progress", 0),
		}, commandFlags()...)...),
		Action: submit,
	}
}

func submit(c *cli.Context) error {
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	asked, err := submission(c)
	switch {
	case err != nil && c.IsSet("file"):
		return err
	case err != nil:
		return ofLine(err)
	}
	r := &request{Context: c, printer: p}
	wait, err := r.wait()
	if err != nil {
		return err
	}
	return refusedPool(way{r: r}.change(
		func(w way) error { return w.submit(&asked, wait) },
		func() error { return asked.queue(r, wait) },
	))
}

// queue puts the run into the queue, prints its id, and waits for it if that is wanted.
func (a *asked) queue(r *request, wait time.Duration) error {
	one, created, err := a.submit(r.ctx(), r.By, r.Reader)
	if err != nil {
		return err
	}
	if !created {
		r.say("run %s was submitted before; it is %s", one.ID, one.Status)
	}
	show := func(one *run.Run) error {
		return r.print(inspect.RunOf(one), func(out *page) { out.line("%s", one.ID) })
	}
	if wait == 0 {
		return show(one)
	}
	if r.format == "table" { // the id is of use while it runs
		if err := show(one); err != nil {
			return err
		}
		show = func(one *run.Run) error {
			if one.Status == run.Succeeded { // or it is an error
				r.say("%s", endText(one))
			}
			return nil
		}
	}
	return awaitRun(r, one.ID, wait, show)
}

// asked is what is submitted.
type asked struct{ manifest.Run }

// submit puts it into the queue for a caller. Created reports whether it was not there before.
func (a *asked) submit(ctx context.Context, by audit.Caller, in *inspect.Reader) (r *run.Run, created bool, err error) {
	caller, err := by.Identify(ctx)
	if err != nil {
		return nil, false, err
	}
	parent := trace.FromEnvironment()
	a.Spec.Traceparent, a.Spec.Tracestate = parent.Traceparent, parent.Tracestate
	r, created, err = in.Steps.SubmitAs(ctx, caller.Identity, in.Runs, a.ID, a.Spec, a.Graph)
	if err != nil && a.Placed != nil {
		err = a.Placed(err)
	}
	return r, created, err
}

// submission reads what the file, the flags and the command ask for.
func submission(c *cli.Context) (a asked, err error) {
	command := c.Args().Present()
	if c.App.Metadata[metaNothing] == true {
		return a, usagef("the command after -- is missing; for a run with an executor of your own, leave out the --")
	}
	if !command {
		if err := withoutCommand(c); err != nil {
			return a, err
		}
	}
	if c.IsSet("file") {
		if command {
			return a, usagef("--file can't be given with the command %q: the file has the steps of the run", c.Args().First())
		}
		if a.Run, err = readSubmission(c); err != nil {
			return a, err
		}
		if a.Steps != nil && c.IsSet("retries") {
			return a, usagef("--retries can't be given with a file that has steps: set retries of the steps")
		}
	}
	slots, err := a.takeFlags(c)
	if err != nil {
		return a, err
	}
	if command {
		err = a.takeCommand(c, slots)
	} else {
		a.addPools(slots)
	}
	if err != nil {
		return a, err
	}
	if a.ID == "" && !c.IsSet("id") {
		a.ID = ulid.Make().String()
	}
	if err := run.ValidateID(a.ID); err != nil {
		return a, err
	}
	if err := a.Check(); err != nil {
		if command {
			err = asFlags(err, a.Steps[0].Name)
		}
		return a, err
	}
	return a, a.Spec.ValidateNew()
}

// takeFlags takes what flags say of the run, and returns the slots that they name.
func (a *asked) takeFlags(c *cli.Context) (map[string]int, error) {
	for name, to := range map[string]*string{"id": &a.ID, "name": &a.Spec.Name, "owner": &a.Spec.Owner} {
		if c.IsSet(name) {
			*to = c.String(name)
		}
	}
	for name, to := range map[string]*int{"priority": &a.Spec.Priority, "retries": &a.Spec.Retries} {
		if c.IsSet(name) {
			*to = c.Int(name)
		}
	}
	if err := a.takeTimes(c); err != nil {
		return nil, err
	}
	for name, to := range map[string]*map[string]string{"tag": &a.Spec.Tags, "label": &a.Spec.Labels} {
		pairs, err := parsePairs(name, c.StringSlice(name))
		if err != nil {
			return nil, err
		}
		if *to == nil {
			*to = pairs
		} else {
			maps.Copy(*to, pairs)
		}
	}
	return parseSlots(c.StringSlice("pool"))
}

// takeTimes takes when the run is to join the queue: one flag replaces both fields.
func (a *asked) takeTimes(c *cli.Context) (err error) {
	at, delay := c.IsSet("not-before"), c.IsSet("delay")
	switch {
	case at && delay:
		return usagef("--delay and --not-before can't be given together")
	case at:
		a.Spec.Delay = 0
		if a.Spec.NotBefore, err = run.ParseInstant("not-before", c.String("not-before")); err != nil {
			return usagef("--%s", problem.New(problem.Invalid, "%w", err))
		}
	case delay:
		a.Spec.NotBefore = run.Instant{}
		if a.Spec.Delay, err = time.ParseDuration(c.String("delay")); err != nil || a.Spec.Delay <= 0 {
			return usagef("--delay can't be %q: it must be a duration above 0 such as 30s, 10m or 1h30m", c.String("delay"))
		}
	}
	return nil
}

// takeCommand makes the one step of a run with a command.
func (a *asked) takeCommand(c *cli.Context, slots map[string]int) error {
	s, err := commandStep(c, a.Spec.Name, slots)
	if err != nil {
		return err
	}
	a.Spec.Retries = 0 // they are the step's
	a.Steps = []step.Spec{s}
	a.Placed = func(err error) error { return asFlags(err, s.Name) }
	return nil
}

// addPools adds slots that the run needs as a whole.
func (a *asked) addPools(slots map[string]int) {
	if a.Spec.Pools == nil {
		a.Spec.Pools = slots
	} else {
		maps.Copy(a.Spec.Pools, slots)
	}
}

// commandFlags say how the command of a command line is run. Without one they have
// no meaning.
func commandFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "items", Usage: "run the command for each item of `FILE`: each line, or a JSON array; - for stdin"},
		&cli.IntFlag{Name: "concurrency", Usage: "run at most `N` items at a time", DefaultText: "no limit"},
		&cli.StringFlag{Name: "queue", Usage: "`QUEUE` that workers take it from", DefaultText: step.DefaultQueue},
		&cli.StringFlag{Name: "task", Usage: "also take a slot of the pool task.`TASK`, if that pool exists"},
		&cli.StringFlag{Name: "timeout", Usage: "stop an attempt after `TIME`", DefaultText: "none"},
	}
}

// mainStep is the step of a command line whose run has no name, or none that a step
// can have.
const mainStep = "main"

// commandStep makes the step of a command line: the command behind its flags, once or
// for each item. The slots are those that each instance takes.
func commandStep(c *cli.Context, run string, slots map[string]int) (step.Spec, error) {
	s := step.Spec{
		Name: mainStep, Command: c.Args().Slice(), Pools: slots,
		Concurrency: c.Int("concurrency"), Queue: c.String("queue"), Task: step.Task{Name: c.String("task")}, Retries: c.Int("retries"),
	}
	if pool.ValidateName(run) == nil {
		s.Name = run
	}
	for _, name := range []string{"queue", "task", "items", "timeout"} {
		if c.IsSet(name) && c.String(name) == "" {
			return s, usagef("--%s needs a value", name)
		}
	}
	switch suffix := filepath.Ext(s.Command[0]); suffix {
	case ".yaml", ".yml", ".json":
		return s, usagef("%q is not a command: use 'berth submit -f %s' for a file", s.Command[0], s.Command[0])
	}
	if c.IsSet("timeout") {
		d, err := time.ParseDuration(c.String("timeout"))
		if err != nil {
			return s, usagef("--timeout can't be %q: it is a duration such as 30s, 10m or 1h30m", c.String("timeout"))
		}
		s.Timeout = step.Duration(d)
	}
	if c.IsSet("concurrency") && !c.IsSet("items") {
		return s, usagef("--concurrency needs --items")
	}
	if c.IsSet("items") {
		items, err := flagItems(c)
		if err != nil {
			return s, err
		}
		s.Items = items
	}
	return s, nil
}

// flagItems reads the items of a command line.
func flagItems(c *cli.Context) (*step.Items, error) {
	name := c.String("items")
	if name == "-" {
		list, err := manifest.ReadItems("stdin", io.NopCloser(c.App.Reader))
		if err != nil {
			return nil, itemsProblem(err)
		}
		return &step.Items{List: list}, nil
	}
	// Unlike a file that names another one, this may be a pipe: a shell's <(…).
	list, err := manifest.OpenItems(name)
	if err != nil {
		return nil, itemsProblem(err)
	}
	return &step.Items{List: list}, nil
}

// itemsProblem returns a problem of --items. What is in the file is no error of the command line.
func itemsProblem(err error) error {
	p := problem.Field("items", "%w", err)
	if opened := (*fs.PathError)(nil); errors.As(err, &opened) {
		return p
	}
	return &statusError{problem.ExitRefused, p}
}

// withoutCommand refuses what has no meaning without a command.
func withoutCommand(c *cli.Context) error {
	for _, f := range commandFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			return usagef("--%s needs a command, as in 'berth submit --%s … -- COMMAND'", name, name)
		}
	}
	return nil
}

// asFlags says what is wrong with the step of a command line as its user knows it:
// steps.main.queue is --queue.
func asFlags(err error, name string) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return err
	}
	field, ok := strings.CutPrefix(p.Field, "steps."+name+".")
	if !ok {
		return err
	}
	q := *p
	q.Field = field
	return &q
}

// maxSubmission bounds a file, in bytes: several times the longest run without items,
// and long lists of items have files of their own.
const maxSubmission = 4 << 20

func readSubmission(c *cli.Context) (manifest.Run, error) {
	if c.String("file") == "" {
		return manifest.Run{}, usagef("--file is empty: give the name of a file, or - for stdin")
	}
	name, data, err := readInput(c, maxSubmission)
	if err != nil {
		return manifest.Run{}, err
	}
	return manifest.ReadRun(name, data)
}
