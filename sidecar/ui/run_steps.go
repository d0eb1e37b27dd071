package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

const (
	// stepsShown is how many steps are on a page, of the tree and of the timeline.
	stepsShown = 100
	// instancesShown is how many instances of a step are.
	instancesShown = 50
	// briefly bounds what a table shows of a text that is shown whole elsewhere, and
	// reasonShown of one that is not, in bytes.
	briefly, reasonShown = 240, 1000
	// deepest is how far a step is moved to the right at most.
	deepest = 8
)

// stepsTab is the tree of a run's steps.
type stepsTab struct {
	// None says why there is nothing to see.
	None string
	Rows []stepRow
	// Pages leads to the steps that are not on this page.
	Pages stepPages
	// Bad are states of instances that can't be read, and are in no count.
	BadCount int
	Bad      []string
}

// stepPages says which of the steps are shown, and where the others are.
type stepPages struct {
	First, Last, Of int
	Previous, Next  string // empty: there is none
}

// stepRow is a step of the tree.
type stepRow struct {
	Name string
	// Deep is its indentation, and Below the step above it in the tree.
	Deep  int
	Below string
	Needs string
	*progress
	Chips []statusChip
	// Says is what it waits for, or why it does not run.
	Says              saying
	Bounds            string
	StartedAt, EndsAt time.Time
	Took              string
	// Retriable reports whether instances of it can be tried again.
	Retriable bool
	// Href expands it, or folds it again.
	Href string
	Open *openStep
}

// statusChip is how many instances have a status, and the way to them.
type statusChip struct {
	Status step.Status
	Count  int
	Href   string
	Now    bool
}

// openStep is a step that is expanded to its instances.
type openStep struct {
	Name  string
	Chips []statusChip
	// All leads to all of them, whatever their status; First to the first of these.
	All, First, Next string
	// After and Last are the numbers that a search by number begins with, and ends at.
	After, Last int
	Status      step.Status
	// Waits are what those of each status wait for.
	Waits    []string
	Rows     []instanceRow
	None     string
	BadCount int
	Bad      []string
}

// instanceRow is an instance of a step.
type instanceRow struct {
	Run, Step string
	Index     int
	Status    step.Status
	Attempt   int
	Host      string
	StartedAt time.Time
	Took      string
	ExitCode  int
	HasExit   bool
	// Error is why the last attempt has failed, and Brief the beginning of it.
	Error, Brief string
	// Waits is what it waits for.
	Waits string
	Log   string
}

// stepsTabOf makes the tab. The list has the instances of the step that is expanded.
func stepsTabOf(seen *seenRun, list *step.Instances, q runQuery) *stepsTab {
	t := &stepsTab{None: noSteps(seen)}
	if t.None != "" {
		return t
	}
	o := seen.overview
	t.BadCount, t.Bad = len(o.Bad), fewBad(o.Bad)
	var tree []step.Leaf
	tree, t.Pages = pageOfSteps(o, q)
	q = t.Pages.stay(q)
	for _, l := range tree {
		row := stepRowOf(seen, l, q)
		if s := &o.Steps[l.Number]; s.Shape.Name == q.step && list != nil {
			row.Open = openStepOf(seen, l.Number, list, q)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// noSteps says why there are no steps to be seen, if there are none.
func noSteps(seen *seenRun) string {
	switch r := seen.run; {
	case r.Steps == 0:
		return "It has no steps: its executor runs it as a whole."
	case r.Status == run.Storing:
		return fmt.Sprintf("The steps are being written: %s in all. They can be seen once the run is queued.", plural(r.Steps, "instance", "instances"))
	case seen.overview == nil || len(seen.overview.Steps) == 0:
		return "The steps can't be read."
	}
	return ""
}

// pageOfSteps returns the part of the tree that is asked for: with the expanded step, if
// it does not say which.
func pageOfSteps(o *step.Overview, q runQuery) ([]step.Leaf, stepPages) {
	tree := step.Tree(o.Steps)
	from := max(0, q.from)
	if q.from < 0 && q.step != "" {
		at := slices.IndexFunc(tree, func(l step.Leaf) bool { return o.Steps[l.Number].Shape.Name == q.step })
		from = max(0, at)
	}
	from = min(from, len(tree)-1) / stepsShown * stepsShown
	to := min(from+stepsShown, len(tree))
	p := stepPages{First: from + 1, Last: to, Of: len(tree)}
	where := onTab(q.run, q.tab)
	if from > 0 {
		where.from = from - stepsShown
		p.Previous = where.href()
	}
	if to < len(tree) {
		where.from = to
		p.Next = where.href()
	}
	return tree[from:to], p
}

// stay has links lead to the same part of the steps.
func (p *stepPages) stay(q runQuery) runQuery {
	if p.First > 1 {
		q.from = p.First - 1
	}
	return q
}

func stepRowOf(seen *seenRun, l step.Leaf, q runQuery) stepRow {
	o := seen.overview
	s := &o.Steps[l.Number]
	row := stepRow{
		Name: s.Shape.Name, Deep: min(l.Depth, deepest), Needs: fewNames(s.Needs), progress: progressOf(s.Counts, s.Shape.Count),
		Chips: chipsOf(s, q), Says: saysOf(seen, l.Number), Bounds: s.Shape.Bounds(),
		StartedAt: s.StartedAt, EndsAt: s.EndedAt, Took: took(s.StartedAt, s.EndedAt),
		Retriable: s.Counts[step.Failed]+s.Counts[step.Canceled] > 0,
	}
	if l.Parent >= 0 {
		row.Below = o.Steps[l.Parent].Shape.Name
	}
	to := onTab(q.run, tabSteps)
	to.from = q.from
	if s.Shape.Name != q.step {
		to = to.in(s.Shape.Name)
	}
	row.Href = to.href()
	return row
}

// chipsOf leads to the instances of each status that there are.
func chipsOf(s *step.Summary, q runQuery) []statusChip {
	var all []statusChip
	for _, status := range step.Statuses {
		n := s.Counts[status]
		now := s.Shape.Name == q.step && status == q.status
		if n == 0 && !now {
			continue
		}
		to := onTab(q.run, tabSteps).in(s.Shape.Name)
		to.from, to.status = q.from, status
		all = append(all, statusChip{status, n, to.href(), now})
	}
	return all
}

// fewNames names the first, and counts the others.
func fewNames(names []string) string {
	const most = 10
	if more := len(names) - most; more > 0 {
		names = append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// openStepOf makes the instances of a step.
func openStepOf(seen *seenRun, number int, list *step.Instances, q runQuery) *openStep {
	s := &seen.overview.Steps[number]
	here := onTab(q.run, tabSteps).in(s.Shape.Name)
	here.from = q.from
	open := &openStep{
		Name: s.Shape.Name, Chips: chipsOf(s, q), All: here.href(), After: max(0, q.after), Last: s.Shape.Count - 1, Status: q.status,
		Waits: waitsByStatus(seen, number), BadCount: len(list.Bad), Bad: fewBad(list.Bad),
	}
	here.status = q.status
	if q.after >= 0 {
		open.First = here.href()
	}
	if list.Next > 0 {
		here.after = list.Next - 1
		open.Next = here.href()
	}
	for _, i := range list.Items {
		row := instanceRowOf(i)
		if i.Pause > 0 { // else it is as all of its status
			row.Waits = waitOf(seen, i)
		}
		open.Rows = append(open.Rows, row)
	}
	switch {
	case len(open.Rows) > 0:
	case q.status != "" && q.after >= 0:
		open.None = fmt.Sprintf("No instance after %d is %s.", q.after, q.status)
	case q.status != "":
		open.None = fmt.Sprintf("No instance is %s.", q.status)
	default:
		open.None = fmt.Sprintf("There is no instance after %d: the last is %d.", q.after, s.Shape.Count-1)
	}
	return open
}

// Retriable reports whether the instance can be tried again.
func (r instanceRow) Retriable() bool { return r.Status == step.Failed || r.Status == step.Canceled }

// Open reports whether the instance has not ended.
func (r instanceRow) Open() bool { return !r.Status.Ended() }

func instanceRowOf(i *step.Instance) instanceRow {
	row := instanceRow{
		Run: i.Run, Step: i.Step, Index: i.Index, Status: i.Status, Attempt: i.Attempt, StartedAt: i.StartedAt, ExitCode: i.ExitCode,
		Error: text.Visible(i.Error), Log: logOf(i.StepID),
	}
	if i.Executor != nil {
		row.Host = text.Visible(i.Executor.Host)
	}
	if i.Status != step.Running {
		row.Took = took(i.StartedAt, i.EndedAt)
	}
	row.Brief = text.Visible(text.Cut(i.Error, briefly))
	row.HasExit = !i.StartedAt.IsZero() && !i.EndedAt.IsZero() && i.Status != step.Running && i.Status != step.Scheduled
	return row
}
