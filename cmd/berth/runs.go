package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func runsCommand() *cli.Command {
	return &cli.Command{
		Name:     "runs",
		Category: running,
		Usage:    "list, show, follow, cancel and retry runs",
		Subcommands: []*cli.Command{
			runsListCommand(), runsInfoCommand(), runsWhyCommand(), runsLogsCommand(), runsEventsCommand(), runsWaitCommand(), runsCancelCommand(), runsRetryCommand(),
		},
	}
}

func runsListCommand() *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "list the runs in the order of their submission",
		Description: "Runs that have ended are listed as long as they are kept (run_retention).",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "status", Usage: "only runs that are `STATUS`: " + statusNames() + "; may be repeated"},
			&cli.StringSliceFlag{Name: "tag", Usage: "only runs with the tag `KEY=VALUE`; repeated, only those with all of them"},
		},
		Action: handle(runsList),
	}
}

func statusNames() string {
	all := make([]string, len(run.Statuses))
	for i, s := range run.Statuses {
		all[i] = string(s)
	}
	return strings.Join(all, ", ")
}

func runsList(r *request) error {
	var statuses []run.Status
	for _, text := range r.StringSlice("status") {
		s, err := run.ParseStatus(text)
		if err != nil {
			return usagef("--status can't be %q: it is one of %s", text, statusNames())
		}
		statuses = append(statuses, s)
	}
	tags, err := parsePairs("tag", r.StringSlice("tag"))
	if err != nil {
		return err
	}
	return r.connect(func() error { return listRuns(r, statuses, tags) })
}

func listRuns(r *request, statuses []run.Status, tags map[string]string) error {
	all, err := r.Runs.All(r.ctx())
	if err != nil {
		return err
	}
	runs := keep(all.With(statuses...), func(one *run.Run) bool { return hasTags(one, tags) })
	slices.SortFunc(runs, func(a, b *run.Run) int { return cmp.Compare(a.Created, b.Created) })
	list := inspect.RunList{Items: inspect.ListOf(runs, inspect.RunOf).Items, Unreadable: inspect.UnreadableOf(all.Bad)}
	if err := r.Explain(r.ctx(), list.Items); err != nil {
		return err
	}
	if err := r.print(list, func(out *page) { runsTable(out, list.Items) }); err != nil {
		return err
	}
	return unreadable(all.Bad)
}

func hasTags(r *run.Run, tags map[string]string) bool {
	for key, value := range tags {
		if got, ok := r.Tags[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func runsTable(out *page, runs []inspect.Run) {
	var rows [][]string
	for _, r := range runs {
		rows = append(rows, []string{
			r.ID, r.Name, r.Status, strconv.Itoa(r.Priority), text.Ago(out.now, r.QueuedAt), hostOf(r), r.Reason(),
		})
	}
	out.table("there are no runs", []string{"RUN", "NAME", "STATUS", "PRI", "QUEUED", "HOST", "REASON"}, rows)
}

// hostOf is where a run runs, or ran last.
func hostOf(r inspect.Run) string {
	if r.Executor == nil {
		return ""
	}
	return r.Executor.Host
}

// parsePairs reads KEY=VALUE of each flag of a name.
func parsePairs(name string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	pairs := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usagef("--%s can't be %q: it is KEY=VALUE", name, text)
		}
		if _, twice := pairs[key]; twice {
			return nil, usagef("--%s names %q twice", name, key)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// pairsText writes tags or labels: a=1, b=2.
func pairsText(pairs map[string]string) string {
	all := make([]string, 0, len(pairs))
	for _, key := range sortedNames(pairs) {
		all = append(all, key+"="+pairs[key])
	}
	return strings.Join(all, ", ")
}

// withValues leaves out the rows without a value.
func withValues(rows [][]string) [][]string {
	return keep(rows, func(row []string) bool { return row[1] != "" })
}

func runsWhyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "show what a run waits for, and which runs or claims are in its way",
		ArgsUsage: "RUN",
		Action:    onEtcd(runsWhy, runArgument),
	}
}

func runsWhy(r *request) error {
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
		rows = append(rows, []string{"position", strconv.Itoa(w.Position) + " of " + strconv.Itoa(w.Waiting)})
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

func runsInTheWay(out *page, runs []inspect.Run) {
	var rows [][]string
	for _, r := range runs {
		rows = append(rows, []string{r.ID, r.Name, r.Status, hostOf(r), pairsText(r.Tags), text.Ago(out.now, r.AdmittedAt)})
	}
	out.table("", []string{"IN THE WAY", "NAME", "STATUS", "HOST", "TAGS", "ADMITTED"}, rows)
}

var reasonFlag = &cli.StringFlag{Name: "reason", Usage: "keep `TEXT` with the run as the reason", DefaultText: "the user"}

func runsCancelCommand() *cli.Command {
	return &cli.Command{
		Name:      "cancel",
		Usage:     "cancel a run, or one of its step instances",
		ArgsUsage: "RUN",
		Description: `The executor of a run in progress learns it with its next heartbeat. Slots that the run
holds are free at once. Workers stop its step instances. Canceling a canceled run is not an
error. A step instance that is canceled counts as failed.`,
		Flags: wayFlags(reasonFlag, &cli.StringFlag{Name: "step", Usage: "cancel only `STEP[INDEX]`, or STEP if it has no items"}),
		Action: handle(func(r *request) error {
			if r.IsSet("step") {
				return way{r: r}.change(way.cancelStep, func() error { return cancelStep(r) })
			}
			return way{r: r}.change(
				func(w way) error { return w.cancelRun(false) },
				func() error { return cancelRun(r, false) },
			)
		}, runArgument),
	}
}

func cancelRun(r *request, onlyQueued bool) error {
	why, err := reasonOrBy(r, "canceled")
	if err != nil {
		return err
	}
	canceled, err := r.CancelRun(r.ctx(), r.args[0], why, onlyQueued)
	if err != nil {
		return err
	}
	return r.print(inspect.RunOf(canceled), func(out *page) {
		stops := ""
		if canceled.Executor != nil && !canceled.StartedAt.IsZero() {
			stops = fmt.Sprintf("; its executor on host '%s' stops with its next heartbeat", canceled.Executor.Host)
		}
		out.line("run %s is canceled: %s%s", canceled.ID, canceled.Error, stops)
	})
}

// maxReason bounds why a run was canceled or retried, in bytes, as the HTTP API does.
const maxReason = 4096

// reasonOrBy returns the reason that was given for an action, or else who took the action.
func reasonOrBy(r *request, done string) (string, error) {
	return reasonOr(r.Context, func() (string, error) {
		by, err := r.By.Identify(r.ctx())
		return done + " by " + by.String(), err
	})
}

// reasonOr returns the reason that was given for an action, or else what otherwise returns.
func reasonOr(c *cli.Context, otherwise func() (string, error)) (string, error) {
	why := c.String(reasonFlag.Name)
	if !c.IsSet(reasonFlag.Name) {
		return otherwise()
	}
	if why == "" || len(why) > maxReason || !pool.IsLine(why) {
		return "", usagef("--reason must be one line of 1 to %d bytes, without characters that change the text direction", maxReason)
	}
	return why, nil
}

// unreadable is the error about records that can't be read, after those that can
// were shown; nil if there are none.
func unreadable(bad []error) error {
	const most = 5
	if len(bad) == 0 {
		return nil
	}
	texts := make([]string, 0, most)
	for _, err := range bad[:min(len(bad), most)] {
		texts = append(texts, err.Error())
	}
	if len(bad) > most {
		texts = append(texts, fmt.Sprintf("and %d more", len(bad)-most))
	}
	return problem.New(problem.CorruptValue, "%s can't be read: %s", text.Count(len(bad), "run"), strings.Join(texts, "; "))
}

// warnOfNobody warns if no coordinator runs, so that nothing queued is admitted.
func warnOfNobody(r *request) error {
	all, err := r.Runs.Candidates(r.ctx())
	if err == nil && len(all) == 0 {
		r.say("warning: %s", inspect.NoLeader)
	}
	return err
}

func runsRetryCommand() *cli.Command {
	return &cli.Command{
		Name:      "retry",
		Usage:     "queue a failed or canceled run again, or retry some of its step instances",
		ArgsUsage: "RUN",
		Description: `The run is queued at its old position. Only steps that have not succeeded run again, with as
many retries as at first.

With --step, only that step instance is retried, or all instances of a step that have failed
or were canceled, and those that did not start because the run ended. A run in progress
continues meanwhile.`,
		Flags: wayFlags(
			&cli.StringFlag{Name: reasonFlag.Name, Usage: "keep `TEXT` with the event as the reason", DefaultText: "the user"},
			&cli.StringSliceFlag{Name: "step", Usage: "retry only `STEP[INDEX]`, or STEP for all its instances; may be repeated"},
		),
		Action: handle(runsRetry, runArgument),
	}
}

func runsRetry(r *request) error {
	var which []step.Which
	for _, text := range r.StringSlice("step") {
		w, err := parseWhich(text)
		if err != nil {
			return err
		}
		which = append(which, w)
	}
	through := way.retryRun
	if len(which) > 0 {
		through = func(w way) error { return w.retrySteps(which) }
	}
	return way{r: r}.change(through, func() error { return retryRun(r, which) })
}

// retryRun retries a run, or some of its step instances.
func retryRun(r *request, which []step.Which) error {
	id := r.args[0]
	why, err := reasonOrBy(r, "retried")
	if err != nil {
		return err
	}
	done, err := r.RetryRun(r.ctx(), id, why, which...)
	switch {
	case err != nil:
		return err
	case len(which) > 0:
		return printRetried(r.printer, which, done)
	case !done.Queued:
		return done.Run.Retriable() // no answer was lost
	}
	return r.print(inspect.RunOf(done.Run), func(out *page) { out.line("run %s is queued again", id) })
}

// printRetried prints which step instances are retried.
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

// stepToCancel returns the step instance that --step names.
func stepToCancel(c *cli.Context) (step.Which, error) {
	if c.IsSet(reasonFlag.Name) {
		return step.Which{}, usagef("--reason is of a run, and can't be given with --step")
	}
	return parseWhich(c.String("step"))
}

// cancelStep cancels one step instance of a run.
func cancelStep(r *request) error {
	which, err := stepToCancel(r.Context)
	if err != nil {
		return err
	}
	one, err := r.Steps.One(r.ctx(), r.args[0], which)
	if err != nil {
		return err
	}
	i, err := r.CancelStep(r.ctx(), one)
	if err != nil {
		return err
	}
	return printCanceledStep(r.printer, canceledStep{Run: i.Run, Step: i.Step, Index: i.Index, Status: string(i.Status)})
}

// printCanceledStep prints which step instance was canceled.
func printCanceledStep(p *printer, i canceledStep) error {
	return p.print(i, func(out *page) {
		text := store.StepID{Step: i.Step, Index: i.Index}.Text()
		if i.Status == string(step.Running) {
			out.line("step %s of run %s is being stopped by its worker", text, i.Run)
			return
		}
		out.line("step %s of run %s is canceled", text, i.Run)
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

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:        "queue",
		Category:    running,
		Usage:       "list, explain and cancel queued runs",
		Subcommands: []*cli.Command{queueListCommand(), runsWhyCommand(), queueCancelCommand()},
	}
}

func queueListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the queued runs in their order",
		Description: `Higher priorities are first, and within a priority the run that was submitted first. Later
runs pass a run that the limit of a tag blocks. Runs whose time has not come ('berth submit
--not-before') are last, in the order of their times, and have no position.`,
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

func queueCancelCommand() *cli.Command {
	return &cli.Command{
		Name:        "cancel",
		Usage:       "cancel a run that is queued",
		ArgsUsage:   "RUN",
		Description: "Exits with 1 if the run has left the queue. 'berth runs cancel' cancels it then, too.",
		Flags:       wayFlags(reasonFlag),
		Action: handle(func(r *request) error {
			return way{r: r}.change(
				func(w way) error { return w.cancelRun(true) },
				func() error { return cancelRun(r, true) },
			)
		}, runArgument),
	}
}
