package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

func runsInfoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "show a run, and the progress of its steps",
		ArgsUsage: "RUN",
		Description: `The steps are a tree: each step is below a step that it needs. In the progress of a step, '#'
is succeeded, '!' failed, 'x' canceled and '>' running; the rest has not started. The first
failed step instances are listed, and -o json lists all of them. 'berth runs logs' shows the
output.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "update the output until the run has ended"},
		},
		Action: onEtcd(runsInfo, runArgument),
	}
}

func runsInfo(r *request) error {
	id := r.args[0]
	if !r.Bool("watch") {
		return showRun(r, id)
	}
	if r.format != "table" {
		return usagef("--watch needs --output table")
	}
	return watchRun(r, id)
}

// showRun prints a run with its steps.
func showRun(r *request, id string) error {
	most := failuresShown
	if r.format != "table" {
		most = 0 // programs get all
	}
	d, err := readRun(r.ctx(), r.Reader, id, most)
	if d == nil {
		return err
	}
	if printErr := r.print(d.record(), func(out *page) { detailText(out, d) }); printErr != nil {
		return printErr
	}
	return err
}

func runText(out *page, r inspect.Run) {
	rows := [][]string{
		{"run", r.ID}, {"name", r.Name}, {"status", r.Status}, {"reason", r.Reason()},
		{"owner", r.Owner}, {"submitted by", r.SubmittedBy}, {"priority", strconv.Itoa(r.Priority)}, {"tags", pairsText(r.Tags)}, {"labels", pairsText(r.Labels)},
		{"pools", run.PoolList(r.Pools)}, {"claim", r.Claim},
		{"steps", r.InstancesText()},
		{"retries", r.RetriesText()}, {"not before", timeText(r.NotBefore)},
		{"queued", out.at(r.QueuedAt)}, {"admitted", out.at(r.AdmittedAt)}, {"started", out.at(r.StartedAt)}, {"ended", out.at(r.EndedAt)},
		{"executor", executorText(r)},
	}
	if r.Fence != 0 {
		rows = append(rows, []string{"fence", strconv.FormatInt(r.Fence, 10)})
	}
	out.columns(withValues(rows))
}

// timeText is a time as it can be given; empty if there is none.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// executorText names the executor of a run, with the attempt.
func executorText(r inspect.Run) string {
	if r.Executor == nil {
		return ""
	}
	return r.ExecutorText() + ", attempt " + strconv.Itoa(r.Attempt)
}

// barWidth is how many characters a progress bar has between its brackets.
const barWidth = 20

// barMarks are the marks of instances in a bar, in their order there.
// What is left of it is not begun.
var barMarks = []struct {
	status step.Status
	mark   string
}{{step.Succeeded, "#"}, {step.Failed, "!"}, {step.Canceled, "x"}, {step.Running, ">"}}

// bar draws how far instances are: [######!!>>..........]. No status that there is
// goes unseen, however few have it, and the bar is full only if all were begun.
func bar(counts map[step.Status]int, total, width int) string {
	cells := make([]int, len(barMarks))
	used, begun := 0, 0
	for i, m := range barMarks {
		if n := counts[m.status]; n > 0 {
			begun += n
			cells[i] = max(1, n*width/total)
			used += cells[i]
		}
	}
	// Rounding has taken some from all, or the few have got more than their share: the
	// longest part pays for it.
	longest := 0
	for i := range cells {
		if cells[i] > cells[longest] {
			longest = i
		}
	}
	switch most := width; {
	case begun == total:
		cells[longest] += width - used
	case used >= most:
		cells[longest] -= used - most + 1
	}
	var b strings.Builder
	for i, m := range barMarks {
		b.WriteString(strings.Repeat(m.mark, max(0, cells[i])))
	}
	return "[" + b.String() + strings.Repeat(".", max(0, width-b.Len())) + "]"
}

// countEnded is how many instances have ended.
func countEnded(counts map[step.Status]int) int {
	return counts[step.Succeeded] + counts[step.Failed] + counts[step.Canceled]
}

// countsText writes how many instances there are of each status: what has ended
// first, and nothing of which there is none.
func countsText(counts map[step.Status]int) string {
	var all []string
	for _, s := range []step.Status{step.Failed, step.Canceled, step.Running, step.Scheduled, step.Requested, step.Succeeded} {
		if n := counts[s]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(all, ", ")
}

// total adds the counts of all steps up.
func total(steps []step.Summary) (counts map[step.Status]int, instances int) {
	counts = map[step.Status]int{}
	for _, s := range steps {
		instances += s.Shape.Count
		for status, n := range s.Counts {
			counts[status] += n
		}
	}
	return counts, instances
}

// isDone reports whether all of a step has succeeded, so that others can go on.
func isDone(s *step.Summary) bool { return s.Counts[step.Succeeded] == s.Shape.Count }

// stepsInProgress are the names of the steps of which something was begun and not all
// has ended.
func stepsInProgress(steps []step.Summary) []string {
	var names []string
	for i := range steps {
		s := &steps[i]
		if n := countEnded(s.Counts); n < s.Shape.Count && (n > 0 || s.Counts[step.Running]+s.Counts[step.Scheduled] > 0) {
			names = append(names, s.Shape.Name)
		}
	}
	return names
}

// mostNames bounds the names in a line of progress.
const mostNames = 3

// stepsProgress says in one line how the steps of a run go. Where each line stays,
// only what changes rarely is reported: which steps are done, and which run.
func stepsProgress(steps []step.Summary, fine bool) string {
	counts, instances := total(steps)
	done := 0
	for i := range steps {
		if isDone(&steps[i]) {
			done++
		}
	}
	names := text.Few(stepsInProgress(steps), mostNames)
	if !fine {
		line := fmt.Sprintf("running, %d of %s done", done, text.Count(len(steps), "step"))
		if len(names) > 0 {
			line += ", in progress: " + strings.Join(names, ", ")
		}
		return line
	}
	line := fmt.Sprintf("%s %d/%d", bar(counts, instances, barWidth), countEnded(counts), instances)
	for _, s := range []step.Status{step.Failed, step.Running, step.Scheduled} {
		if n := counts[s]; n > 0 {
			line += fmt.Sprintf(", %d %s", n, s)
		}
	}
	if len(names) > 0 {
		line += ": " + strings.Join(names, ", ")
	}
	return line
}

// instanceText describes an instance: failed on host 'a' after 12s, exit code 3,
// attempt 2: no such file.
func instanceText(i *step.Instance, now time.Time) string {
	text := string(i.Status)
	if i.Executor != nil {
		text += " on host '" + i.Executor.Host + "'"
	}
	if took := tookText(i, now); took != "" {
		text += " after " + took
	}
	if i.ExitCode != 0 && !strings.Contains(i.Error, fmt.Sprintf("exit code %d", i.ExitCode)) {
		text += fmt.Sprintf(", exit code %d", i.ExitCode)
	}
	if i.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", i.Attempt)
	}
	if i.Error != "" {
		text += ": " + i.Error
	}
	return text
}

// tookText is how long an attempt has taken that has ended, or has taken so far.
func tookText(i *step.Instance, now time.Time) string {
	switch {
	case i.StartedAt.IsZero():
		return ""
	case i.Status == step.Running:
		return text.Duration(max(0, now.Sub(i.StartedAt)))
	case i.EndedAt.IsZero():
		return ""
	}
	return text.Duration(max(0, i.EndedAt.Sub(i.StartedAt)))
}

// treeDepth is how deep a tree is drawn. Deeper steps are drawn at that depth, with the
// names of the steps that they need, to bound the length of lines.
const treeDepth = 12

// leaf is a step in the tree that people see: a line of it.
type leaf struct {
	branch string // what stands before its name
	number int    // in the graph
	parent int    // the step that it is seen to stand below, -1 if there is none
}

// treeOf draws the tree of the steps of a graph.
func treeOf(steps []step.Summary) []leaf {
	var lines []leaf
	before := make([]string, treeDepth+2) // what stands before the branches at each depth
	for _, l := range step.Tree(steps) {
		at := before[min(l.Depth, treeDepth+1)]
		line, deeper := leaf{number: l.Number, parent: l.Parent}, ""
		switch {
		case l.Depth == 0:
		case l.Depth > treeDepth:
			line.branch, line.parent = at+"… ", -1
		case l.Last:
			line.branch, deeper = at+"└─ ", at+"   "
		default:
			line.branch, deeper = at+"├─ ", at+"│  "
		}
		if l.Depth <= treeDepth {
			before[l.Depth+1] = deeper
		}
		lines = append(lines, line)
	}
	return lines
}

var treeHead = []string{"STEP", "PROGRESS", "DONE", "STATUS", "TIME", "BOUNDS"}

// treeTable shows the steps of a run as a tree.
func treeTable(out *page, o *step.Overview) {
	var rows [][]string
	for _, l := range treeOf(o.Steps) {
		s := &o.Steps[l.number]
		rows = append(rows, []string{
			l.branch + s.Shape.Name,
			bar(s.Counts, s.Shape.Count, barWidth),
			fmt.Sprintf("%d/%d", countEnded(s.Counts), s.Shape.Count),
			stepText(o, s, l.parent),
			spanText(s, out.now),
			s.Shape.Bounds(),
		})
	}
	out.table("it has no steps", treeHead, rows)
}

// stepText returns the status of a step, or what it waits for.
func stepText(o *step.Overview, s *step.Summary, parent int) string {
	counts := countsText(s.Counts)
	for _, status := range step.Statuses { // a single word where all are alike
		if s.Counts[status] == s.Shape.Count {
			counts = string(status)
		}
	}
	if s.Counts[step.Requested] == 0 || o.Run.Status.Ended() {
		return counts
	}
	waits, never := o.Unmet(s)
	switch {
	case len(never) > 0:
		return "does not run: not all of " + strings.Join(text.Few(never, mostNames), ", ") + " has succeeded"
	case len(waits) == 1 && s.Shape.Needs[slices.Index(s.Needs, waits[0])] == parent:
		return "waits" // the tree says for what
	case len(waits) > 0:
		return "waits for " + strings.Join(text.Few(waits, mostNames), ", ")
	}
	return counts
}

// spanText is how long a step has taken, or has taken so far.
func spanText(s *step.Summary, now time.Time) string {
	switch {
	case s.StartedAt.IsZero():
		return ""
	case s.EndedAt.IsZero():
		return text.Duration(max(0, now.Sub(s.StartedAt)))
	}
	return text.Duration(max(0, s.EndedAt.Sub(s.StartedAt)))
}

const (
	// watchInterval is how often a watched run is read: less often if reading takes long, as
	// with many instances.
	watchInterval = time.Second
	watchShare    = 20
)

// watchRun shows a run again and again until it has ended: in place on a terminal, in
// a line each time elsewhere, and as a whole at its end.
func watchRun(r *request, id string) error {
	lines := progress{out: r.App.Writer}
	sc := newScreen(r.App.Writer)
	for {
		begun := time.Now()
		v, err := readRun(r.ctx(), r.Reader, id, failuresShown)
		away := problem.CodeOf(err) == problem.EtcdUnavailable
		switch {
		case err != nil && !away:
			return err
		case sc != nil && away:
			sc.add("etcd does not answer, waiting for it")
		case sc != nil:
			r.now = time.Now()
			var b bytes.Buffer
			detailText(&page{out: &b, now: r.now}, v)
			sc.draw(b.String(), v.run.Status.Ended())
		case away:
			lines.report("etcd does not answer, waiting for it")
		case v.run.Status.Ended():
			r.now = time.Now()
			return r.print(v.record(), func(out *page) { detailText(out, v) })
		default:
			lines.report(v.progressLine(false))
		}
		if !away && v.run.Status.Ended() {
			return nil
		}
		if err := pause(r.ctx(), max(watchInterval, watchShare*time.Since(begun))); err != nil {
			return err
		}
	}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// screen shows a text on a terminal, in the place of the one before.
type screen struct {
	out   io.Writer
	size  func() (width, height int)
	text  string
	drawn int // lines
}

// newScreen returns the screen of stdout, nil if it is no terminal.
func newScreen(out io.Writer) *screen {
	if !isatty.IsTerminal(os.Stdout.Fd()) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &screen{out: out, size: func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0, 0
		}
		return int(size.Col), int(size.Row)
	}}
}

// draw shows a text. The last one is shown whole, and stays.
func (s *screen) draw(text string, last bool) {
	s.text = text
	if !last {
		text = fit(text, s.size)
	}
	s.replace(text)
}

// add shows a line below the text.
func (s *screen) add(line string) { s.replace(fit(s.text+line+"\n", s.size)) }

func (s *screen) replace(text string) {
	up := ""
	if s.drawn > 0 {
		up = fmt.Sprintf("\r\x1b[%dA\x1b[J", s.drawn)
	}
	s.drawn = strings.Count(text, "\n")
	fmt.Fprint(s.out, up+text)
}

// fit cuts a text so that it can be written over: no line may wrap, and none may leave
// the screen at its top.
func fit(s string, size func() (width, height int)) string {
	width, height := size()
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if most := height - 1; most > 1 && len(lines) > most {
		more := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("… %s more: the window is too low\n", text.Count(more, "line")))
	}
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		if most := width - 1; most > 1 && utf8.RuneCountInString(line) > most {
			line = string([]rune(line)[:most-1]) + "…"
		}
		lines[i] = line + "\n"
	}
	return strings.Join(lines, "")
}
