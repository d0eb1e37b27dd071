package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/text"
)

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:        "queue",
		Category:    running,
		Usage:       "see the runs that wait, why they do, and take them out",
		Subcommands: []*cli.Command{queueListCommand(), queueWhyCommand(), queueCancelCommand()},
	}
}

func queueListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the runs in the queue, in its order",
		Description: `Higher priorities come first, and in one priority who was submitted first. A run
that is held up by the limit of a tag is passed by those behind it. Runs whose time has
not come ('berth submit --not-before') come last, in the order of their times, and have
no position until then.`,
		Action: onEtcd(queueList),
	}
}

func queueList(r *request) error {
	all, err := r.Runs.All(r.ctx())
	if err != nil {
		return err
	}
	list := inspect.List[queuedRun]{Items: []queuedRun{}}
	for i, one := range all.Queue() {
		position := i + 1
		if one.Deferred() { // they come last
			position = 0
		}
		list.Items = append(list.Items, queuedRun{inspect.RunOf(one), position})
	}
	if err := r.print(list, func(out *page) { queueTable(out, list.Items) }); err != nil {
		return err
	}
	if len(list.Items) > 0 {
		if err := warnOfNobody(r); err != nil {
			return err
		}
	}
	return unreadable(all.Bad)
}

// queuedRun is a run with its place in the queue; 0 is none.
type queuedRun struct {
	inspect.Run
	Position int `json:"position"`
}

func queueTable(out *page, queue []queuedRun) {
	var rows [][]string
	for _, r := range queue {
		rows = append(rows, []string{
			positionText(r.Position), r.ID, r.Name, strconv.Itoa(r.Priority), text.Ago(out.now, r.QueuedAt), r.Reason(),
		})
	}
	out.table("the queue is empty", []string{"POS", "RUN", "NAME", "PRI", "QUEUED", "REASON"}, rows)
}

// positionText is a place in the queue; empty of a run whose time has not come.
func positionText(position int) string {
	if position == 0 {
		return ""
	}
	return strconv.Itoa(position)
}

func queueWhyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "tell what a run waits for, and who is in its way",
		ArgsUsage: "RUN",
		Action:    onEtcd(queueWhy, runArgument),
	}
}

func queueWhy(r *request) error {
	record, err := r.WhyRun(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	if err := r.print(record, func(out *page) { runWhyText(out, record) }); err != nil || record.Position == 0 {
		return err
	}
	return warnOfNobody(r)
}

func runWhyText(out *page, w inspect.RunWhy) {
	r := w.Run
	rows := [][]string{{"run", r.ID}, {"name", r.Name}, {"status", r.Status}, {"reason", w.Reason}}
	if w.Position > 0 {
		rows = append(rows, []string{"position", strconv.Itoa(w.Position) + " of " + strconv.Itoa(w.Line)})
	}
	rows = append(rows,
		[]string{"priority", strconv.Itoa(r.Priority)}, []string{"tags", pairsText(r.Tags)}, []string{"queued", text.Ago(out.now, r.QueuedAt)})
	rows = append(rows, []string{"estimate", w.EstimateText()})
	out.columns(withValues(rows))
	if len(w.InTheWay) > 0 {
		out.gap()
		runsInTheWay(out, w.InTheWay)
	}
	holdersInTheWay(out, w.Holders)
}

// holdersInTheWay shows the holders of slots that are short.
func holdersInTheWay(out *page, holders []inspect.HolderRef) {
	if len(holders) == 0 {
		return
	}
	var rows [][]string
	for _, h := range holders {
		rows = append(rows, []string{h.Pool, h.Claim, h.RunID, h.StepKey, h.Host, strconv.Itoa(h.Slots)})
	}
	out.gap()
	out.table("", []string{"POOL", "HELD BY", "RUN", "STEP", "HOST", "SLOTS"}, rows)
}

func runsInTheWay(out *page, runs []inspect.Run) {
	var rows [][]string
	for _, r := range runs {
		rows = append(rows, []string{r.ID, r.Name, r.Status, hostOf(r), pairsText(r.Tags), text.Ago(out.now, r.AdmittedAt)})
	}
	out.table("", []string{"IN THE WAY", "NAME", "STATUS", "HOST", "TAGS", "ADMITTED"}, rows)
}

func queueCancelCommand() *cli.Command {
	return &cli.Command{
		Name:        "cancel",
		Usage:       "take a run out of the queue",
		ArgsUsage:   "RUN",
		Description: "Fails with 1 if the run has left the queue: 'berth runs cancel' stops that, too.",
		Flags:       []cli.Flag{reasonFlag},
		Action:      onEtcd(func(r *request) error { return cancelRun(r, true) }, runArgument),
	}
}

// instanceWait says what an instance waits for, empty if it does not wait.
func instanceWait(ctx context.Context, in *inspect.Reader, o *step.Overview, i *step.Instance) (string, error) {
	a, err := in.Outlook().Around(ctx, o.Has)
	if err != nil {
		return "", err
	}
	for n := range o.Steps {
		if o.Steps[n].Shape.Name != i.Step {
			continue
		}
		if w := o.WaitOf(n, i, a); w != nil {
			return w.Text, nil
		}
	}
	return "", nil
}

// holdsShown is how many reasons people are shown for what waits of a run.
const holdsShown = 10

// holdsTable shows what is in the way of steps.
func holdsTable(out *page, holds []step.Hold) {
	var rows [][]string
	for _, h := range holds[:min(len(holds), holdsShown)] {
		rows = append(rows, []string{strconv.Itoa(h.Count), strings.Join(few(h.Steps, mostNames), ", "), h.Text})
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
	text, _, _ := strings.Cut(first.Text, " (in ") // which would be told anew each second
	if first.Kind != step.WaitNotBefore {
		text = first.Text
	}
	return " (" + text + ")"
}
