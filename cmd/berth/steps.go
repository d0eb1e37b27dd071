package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/urfave/cli/v2"
)

const (
	// failuresShown is how many instances that have failed people are shown.
	failuresShown = 5
	// failuresPage is how many are read at a time.
	failuresPage = 1000
)

func stepsCommand() *cli.Command {
	return &cli.Command{
		Name:     "steps",
		Category: running,
		Usage:    "list and show the steps of runs",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list the steps of a run, with their progress", ArgsUsage: "RUN",
				Action: onEtcd(stepsList, runArgument),
			},
			{
				Name: "info", Usage: "show a step instance", ArgsUsage: "RUN STEP[INDEX]",
				Description: "INDEX is not needed for a step with a single instance. Quote a name with an index, since\n" +
					"brackets have a meaning in shells: 'extract[3]'.",
				Action: onEtcd(stepsInfo, runArgument, stepArgument),
			},
			{
				Name: "why", Usage: "show what a step instance waits for", ArgsUsage: "RUN STEP[INDEX]",
				Action: onEtcd(stepsWhy, runArgument, stepArgument),
			},
		},
	}
}

func stepsList(r *request) error {
	o, err := r.Steps.Overview(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	waits, err := r.Waits(r.ctx(), o)
	if err != nil {
		return err
	}
	if err := r.print(inspect.StepsWaitingOf(o, waits), func(out *page) { treeTable(out, o) }); err != nil {
		return err
	}
	return unreadableStates(o.Bad)
}

// stepOf returns the step instance that the arguments name, and what it waits for.
func stepOf(r *request) (*step.Instance, inspect.StepWork, error) {
	which, err := parseWhich(r.args[1])
	if err != nil {
		return nil, inspect.StepWork{}, err
	}
	id, err := r.Steps.One(r.ctx(), r.args[0], which)
	if err != nil {
		return nil, inspect.StepWork{}, err
	}
	d, err := r.Steps.Detail(r.ctx(), id)
	if err != nil {
		return nil, inspect.StepWork{}, err
	}
	work := inspect.StepWorkOf(d)
	if d.Status == step.Requested || d.Status == step.Scheduled {
		o, err := r.Steps.Overview(r.ctx(), id.Run)
		if err != nil {
			return nil, work, err
		}
		wait, err := instanceWait(r.ctx(), r.Reader, o, &d.Instance)
		if err != nil {
			return nil, work, err
		}
		if wait != nil {
			work.BlockReason, work.BlockKind = wait.Text, string(wait.Kind)
		}
	}
	return &d.Instance, work, nil
}

func stepsInfo(r *request) error {
	i, work, err := stepOf(r)
	if err != nil {
		return err
	}
	return r.print(work, func(out *page) {
		rows := [][]string{
			{"step", i.Text()}, {"run", i.Run}, {"status", string(i.Status)}, {"reason", work.BlockReason}, {"error", i.Error},
			{"queue", work.Queue}, {"task", work.Task}, {"pools", run.PoolList(work.Pools)}, {"command", strings.Join(work.Command, " ")},
			{"scheduled", out.at(i.ScheduledAt)}, {"started", out.at(i.StartedAt)}, {"ended", out.at(i.EndedAt)}, {"took", tookText(i, out.now)},
		}
		if i.Executor != nil {
			rows = append(rows, []string{"executor", i.Executor.Host + "/" + i.Executor.Instance + ", attempt " + strconv.Itoa(i.Attempt)})
		}
		if i.Status.Ended() && !i.StartedAt.IsZero() {
			rows = append(rows, []string{"exit code", strconv.Itoa(i.ExitCode)})
		}
		out.columns(withValues(rows))
	})
}

func stepsWhy(r *request) error {
	i, work, err := stepOf(r)
	if err != nil {
		return err
	}
	return r.print(work, func(out *page) {
		if work.BlockReason == "" {
			out.line("step %s of run %s does not wait: it is %s", i.Text(), i.Run, i.Status)
			return
		}
		out.columns([][]string{{"step", i.Text()}, {"run", i.Run}, {"status", string(i.Status)}, {"reason", work.BlockReason}})
	})
}

// runView is a run with its steps as it is shown.
type runView struct {
	run      *run.Run
	overview *step.Overview // nil of a run without steps
	failed   []*step.Instance
	waits    []*step.Wait // what each step waits for; nil for one that does not
	logged   bool         // there is output of it
}

// readRun reads a run with its steps, and the first of its instances that have failed:
// so many, or all of them if it is 0. If steps can't be read, what can is returned
// with the error.
func readRun(ctx context.Context, in *inspect.Reader, id string, most int) (*runView, error) {
	r, err := in.Runs.Get(ctx, id)
	if err != nil || r.Steps == 0 {
		if err != nil {
			return nil, err
		}
		return &runView{run: r}, nil
	}
	v := &runView{run: r}
	o, err := in.Steps.Overview(ctx, id)
	if err != nil {
		return v, err
	}
	v.run, v.overview = o.Run, o
	if v.failed, err = failures(ctx, in, o, most); err != nil {
		return v, err
	}
	if v.waits, err = in.Waits(ctx, o); err != nil {
		return v, err
	}
	if v.logged, err = in.HasLogs(ctx, id); err != nil {
		return v, err
	}
	return v, unreadableStates(o.Bad)
}

// failures reads the instances that have failed, in the order of their steps.
func failures(ctx context.Context, in *inspect.Reader, o *step.Overview, most int) ([]*step.Instance, error) {
	var all []*step.Instance
	for _, sum := range o.Steps {
		if sum.Counts[step.Failed] == 0 {
			continue
		}
		p := step.Page{Statuses: []step.Status{step.Failed}}
		for more := true; more && (most == 0 || len(all) < most); {
			if p.Limit = failuresPage; most > 0 {
				p.Limit = most - len(all)
			}
			found, err := in.Steps.Instances(ctx, o.Run.ID, sum.Shape.Name, p)
			if err != nil {
				return all, err
			}
			all = append(all, found.Items...)
			p.From, more = found.Next, found.Next > 0
		}
	}
	return all, nil
}

// unreadableStates is the error about states of instances that can't be read, after
// the others were shown.
func unreadableStates(bad []error) error {
	if len(bad) == 0 {
		return nil
	}
	return problem.New(problem.CorruptValue, "%s can't be read, and in no count: the first is %w", text.Count(len(bad), "step instance"), bad[0])
}

// detailText shows a run to people.
func detailText(out *page, v *runView) {
	runText(out, inspect.RunOf(v.run))
	o := v.overview
	if o == nil || len(o.Steps) == 0 {
		return
	}
	out.gap()
	treeTable(out, o)
	if holds := o.Holds(v.waits); len(holds) > 0 {
		out.gap()
		holdsTable(out, holds)
	}
	if len(v.failed) > 0 {
		out.gap()
		failuresTable(out, v.failed)
		counts, _ := total(o.Steps)
		if more := counts[step.Failed] - len(v.failed); more > 0 {
			out.line("… and %d more; 'berth runs info %s -o json' has all", more, o.Run.ID)
		}
	}
	if o.Run.Status == run.Failed {
		out.gap()
		where := ""
		if v.logged {
			where = fmt.Sprintf("'berth runs logs %s' has the output, ", o.Run.ID)
		}
		out.line("%s'berth runs retry %s' runs again what has not succeeded", where, o.Run.ID)
	}
}

func failuresTable(out *page, failed []*step.Instance) {
	var rows [][]string
	for _, i := range failed {
		host, code := "", strconv.Itoa(i.ExitCode)
		if i.StartedAt.IsZero() {
			code = "" // nothing was started
		}
		if i.Executor != nil {
			host = i.Executor.Host
		}
		rows = append(rows, []string{
			i.Text(), code, strconv.Itoa(i.Attempt), host, tookText(i, out.now), text.Ago(out.now, i.EndedAt), firstLine(i.Error),
		})
	}
	out.table("nothing has failed", []string{"FAILED", "EXIT", "ATTEMPT", "HOST", "TOOK", "ENDED", "ERROR"}, rows)
}

// firstLine keeps a table readable, whatever an error consists of.
func firstLine(s string) string {
	const most = 200
	first, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if rest != "" && len(first) <= most {
		return first + " …"
	}
	return text.Cut(first, most)
}

// runDetail is what programs get of a run with steps.
type runDetail struct {
	inspect.Run
	// ByStep are the steps, each after those that it needs.
	ByStep []inspect.Step `json:"by_step"`
	// FailedInstances are all that have failed for good.
	FailedInstances []inspect.StepInstance `json:"failed_instances"`
	// Unreadable are states of instances that are in no count.
	Unreadable []inspect.Unreadable `json:"unreadable,omitempty"`
}

func (v *runView) record() any {
	r := inspect.RunOf(v.run)
	if v.overview == nil {
		return r
	}
	list := inspect.StepsWaitingOf(v.overview, v.waits)
	return runDetail{
		Run: r, ByStep: list.Items, Unreadable: list.Unreadable,
		FailedInstances: inspect.ListOf(v.failed, inspect.StepInstanceOf).Items,
	}
}

// progressLine says in one line how a run with steps goes.
func (v *runView) progressLine(fine bool) string {
	if v.overview == nil || v.run.Status != run.Running {
		return statusLine(v.run)
	}
	return stepsProgress(v.overview.Steps, fine) + v.holdText(fine)
}

// stepsLine reads how the steps of a run go, and says it in one line.
func stepsLine(ctx context.Context, in *inspect.Reader, id string, fine bool) (string, error) {
	o, err := in.Steps.Overview(ctx, id)
	if err != nil {
		return "", err
	}
	v := &runView{run: o.Run, overview: o}
	v.waits, err = in.Waits(ctx, o)
	return v.progressLine(fine), err
}

// instanceWait returns what an instance waits for, nil if it does not wait.
func instanceWait(ctx context.Context, in *inspect.Reader, o *step.Overview, i *step.Instance) (*step.Wait, error) {
	a, err := in.Outlook().Around(ctx, o.Has)
	if err != nil {
		return nil, err
	}
	for n := range o.Steps {
		if o.Steps[n].Shape.Name != i.Step {
			continue
		}
		return o.WaitOf(n, i, a), nil
	}
	return nil, nil
}

// holdsShown is how many reasons people are shown for what waits of a run.
const holdsShown = 10

// holdsTable shows what is in the way of steps.
func holdsTable(out *page, holds []step.Hold) {
	var rows [][]string
	for _, h := range holds[:min(len(holds), holdsShown)] {
		rows = append(rows, []string{strconv.Itoa(h.Count), strings.Join(text.Few(h.Steps, mostNames), ", "), h.Text})
	}
	out.table("", []string{"WAITING", "OF", "FOR"}, rows)
	if more := len(holds) - holdsShown; more > 0 {
		out.line("… and %d more", more)
	}
}

// holdText says in a line of progress what is in the way: nothing while it comes and
// goes with what runs.
func (v *runView) holdText(fine bool) string {
	holds := v.overview.Holds(v.waits)
	if len(holds) == 0 {
		return ""
	}
	first := holds[0]
	counts, _ := total(v.overview.Steps)
	if !fine && counts[step.Running] > 0 && first.Kind != step.WaitNoWorker && first.Kind != step.WaitCoordinator {
		return ""
	}
	text, _, _ := strings.Cut(first.Text, " (in ") // which changes each second
	if first.Kind != step.WaitNotBefore {
		text = first.Text
	}
	return " (" + text + ")"
}
