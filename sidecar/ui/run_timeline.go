package ui

import (
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

// timelineTab is a picture of when a run and its steps have waited and run. The same is
// in words next to it.
type timelineTab struct {
	Axis timeAxis
	Rows []timelineRow
	// None says why there are no steps in it, if there are none.
	None  string
	Pages stepPages
	// Next leads to more instances of the step that is expanded.
	Next string
}

// timelineRow is the run, a step, or an instance of one.
type timelineRow struct {
	Name string
	// Level is 0 of the run, 1 of a step, 2 of an instance.
	Level int
	// Href expands a step to its instances, or folds it; Log is an instance's output.
	Href, Log string
	Open      bool
	Status    string
	Bars      []timeBar
	// Waited and Ran are how long it has; while it does, WaitsSince or RunsSince is set
	// instead.
	Waited, Ran           string
	WaitsSince, RunsSince time.Time
	// Note says what there is no bar for.
	Note string
}

// timeBar is a span of time in the picture.
type timeBar struct {
	// Kind is waiting, running, succeeded, failed or canceled.
	Kind     string
	X, Width int
	Title    string
}

// waiting is the kind of a span of time without an attempt.
const waiting = "waiting"

// timeSpan is what something did from one time to another.
type timeSpan struct {
	kind     string
	from, to time.Time
	// open reports that it goes on: to is now.
	open bool
}

// timelineOf draws a timeline. The list has the instances of the step that is expanded.
func timelineOf(seen *seenRun, list *step.Instances, q runQuery, now time.Time) *timelineTab {
	t := &timelineTab{None: noSteps(seen)}
	var done [][]timeSpan
	add := func(row timelineRow, some []timeSpan) {
		row.describe(some)
		t.Rows, done = append(t.Rows, row), append(done, some)
	}
	add(timelineRow{Name: "the run", Status: string(seen.run.Status)}, timeOfRun(seen.run, now))
	if t.None == "" {
		var tree []step.Leaf
		tree, t.Pages = pageOfSteps(seen.overview, q)
		q = t.Pages.stay(q)
		for _, l := range tree {
			row, some := timelineStep(seen, l.Number, q, now)
			add(row, some)
			if row.Open && list != nil {
				for _, i := range list.Items {
					add(timelineRow{Name: i.Text(), Level: 2, Status: string(i.Status), Log: logOf(i.StepID)}, timeOfInstance(i, now))
				}
				if list.Next > 0 {
					more := onTab(q.run, tabTimeline).in(row.Name)
					more.from, more.after = q.from, list.Next-1
					t.Next = more.href()
				}
			}
		}
	}
	t.Axis = axisOf(seen.run, done, now)
	for n := range t.Rows {
		for _, s := range done[n] {
			if b, ok := t.Axis.bar(s); ok {
				t.Rows[n].Bars = append(t.Rows[n].Bars, b)
			}
		}
	}
	return t
}

// timelineStep is the row of a step, and what it has done.
func timelineStep(seen *seenRun, number int, q runQuery, now time.Time) (timelineRow, []timeSpan) {
	o := seen.overview
	s := &o.Steps[number]
	row := timelineRow{Name: s.Shape.Name, Level: 1, Open: s.Shape.Name == q.step, Status: outcomeOf(s)}
	to := onTab(q.run, tabTimeline)
	to.from = q.from
	if !row.Open {
		to = to.in(s.Shape.Name)
	}
	row.Href = to.href()
	some := timeOfStep(o, number, now)
	if len(some) == 0 {
		row.Note = saysOf(seen, number).Text
	}
	return row, some
}

// outcomeOf returns the status of a step in one word.
func outcomeOf(s *step.Summary) string {
	switch {
	case s.EndedAt.IsZero() && !s.StartedAt.IsZero():
		return string(step.Running)
	case s.EndedAt.IsZero():
		return waiting
	case s.Counts[step.Failed] > 0:
		return string(step.Failed)
	case s.Counts[step.Canceled] > 0:
		return string(step.Canceled)
	}
	return string(step.Succeeded)
}

// timeOfRun is what a run has done.
func timeOfRun(r *run.Run, now time.Time) []timeSpan {
	w := timeSpans{now: now}
	w.add(waiting, r.QueuedAt, firstOf(r.StartedAt, r.EndedAt))
	kind := string(run.Running)
	if r.Status.Ended() {
		kind = string(r.Status)
	}
	w.add(kind, r.StartedAt, r.EndedAt)
	return w.all
}

// timeOfStep is what a step has done: it waits from when it could begin until its first
// instance starts, and runs until its last has ended.
func timeOfStep(o *step.Overview, number int, now time.Time) []timeSpan {
	s := &o.Steps[number]
	w := timeSpans{now: now}
	if ready, ok := readyAt(o, s); ok && (s.StartedAt.IsZero() || ready.Before(s.StartedAt)) {
		w.add(waiting, ready, firstOf(s.StartedAt, s.EndedAt, o.Run.EndedAt))
	}
	w.add(outcomeOf(s), s.StartedAt, s.EndedAt)
	return w.all
}

// readyAt is when a step could begin, if it could: when all that it needs had ended well.
func readyAt(o *step.Overview, s *step.Summary) (at time.Time, ok bool) {
	at = o.Run.StartedAt
	for _, n := range s.Shape.Needs {
		before := &o.Steps[n]
		if before.EndedAt.IsZero() || before.Counts[step.Succeeded] != before.Shape.Count {
			return time.Time{}, false
		}
		if before.EndedAt.After(at) {
			at = before.EndedAt
		}
	}
	return at, !at.IsZero()
}

// timeOfInstance is what an instance has done in its last attempt, and since.
func timeOfInstance(i *step.Instance, now time.Time) []timeSpan {
	w := timeSpans{now: now}
	switch {
	case i.Status == step.Running, i.Status.Ended() && !i.StartedAt.IsZero():
		if i.ScheduledAt.Before(i.StartedAt) {
			w.add(waiting, i.ScheduledAt, i.StartedAt)
		}
		w.add(string(i.Status), i.StartedAt, i.EndedAt)
	case i.Status.Ended():
		w.add(waiting, i.ScheduledAt, i.EndedAt)
	default: // an attempt before may have failed
		if !i.EndedAt.IsZero() {
			w.add(string(step.Failed), i.StartedAt, i.EndedAt)
		}
		w.add(waiting, firstOf(i.ScheduledAt, i.EndedAt), time.Time{})
		if i.Status == step.Requested && !i.EndedAt.IsZero() {
			w.all[len(w.all)-1].from = i.EndedAt
		}
	}
	return w.all
}

// timeSpans collects the spans of something.
type timeSpans struct {
	now time.Time
	all []timeSpan
}

// add adds a span, unless it has no beginning; without an end it goes on. Clocks of hosts
// differ, so that an end can be before its beginning.
func (w *timeSpans) add(kind string, from, to time.Time) {
	if from.IsZero() {
		return
	}
	s := timeSpan{kind: kind, from: from, to: to}
	if to.IsZero() {
		s.to, s.open = w.now, true
	}
	if s.to.Before(from) {
		s.to = from
	}
	w.all = append(w.all, s)
}

// firstOf is the first of some times that is known.
func firstOf(times ...time.Time) time.Time {
	for _, t := range times {
		if !t.IsZero() {
			return t
		}
	}
	return time.Time{}
}

// describe sets how long a row waited and ran.
func (r *timelineRow) describe(some []timeSpan) {
	for _, s := range some {
		text, since := &r.Ran, &r.RunsSince
		if s.kind == waiting {
			text, since = &r.Waited, &r.WaitsSince
		}
		if s.open {
			*since = s.from
		} else {
			*text = took(s.from, s.to)
		}
	}
}

// title says what a bar is about.
func (s timeSpan) title() string {
	const clock = "2006-01-02 15:04:05 UTC"
	what := s.kind
	if s.open {
		return fmt.Sprintf("%s since %s", what, s.from.UTC().Format(clock))
	}
	if what != waiting {
		what += ", it ran"
	} else {
		what = "waited"
	}
	return fmt.Sprintf("%s %s, from %s to %s", what, took(s.from, s.to), s.from.UTC().Format(clock), s.to.UTC().Format(clock))
}

const (
	// axisWidth is how many units the picture of a timeline is wide.
	axisWidth = 600
	// axisMarks is how many marks it has at most, the first not counted.
	axisMarks = 8
	// leastBar is how wide the shortest bar is.
	leastBar = 2
	// longestAxis bounds how long the axis is, whatever the clocks of workers say.
	longestAxis = 100 * 365 * 24 * time.Hour
)

// timeAxis is how times lie in the picture.
type timeAxis struct {
	From, To time.Time
	Marks    []axisMark
	// Cut reports that the run was queued long before From.
	Cut bool
}

// axisMark is a time that is written at the axis: so long after its beginning.
type axisMark struct {
	X    int
	Text string
}

// axisSteps are the times between marks.
var axisSteps = []time.Duration{
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

// axisOf lays an axis under all that was done. If the run was in the queue for longer
// than all that came then, of the queue only the end is shown.
func axisOf(r *run.Run, done [][]timeSpan, now time.Time) timeAxis {
	var from, to, begun time.Time // begun: when something did that was no wait of the run
	open := false
	for n, some := range done {
		for _, s := range some {
			if from.IsZero() || s.from.Before(from) {
				from = s.from
			}
			if s.to.After(to) {
				to = s.to
			}
			if (n > 0 || s.kind != waiting) && (begun.IsZero() || s.from.Before(begun)) {
				begun = s.from
			}
			open = open || s.open
		}
	}
	if from.IsZero() {
		from, to = now, now
	}
	a := timeAxis{From: from, To: to}
	if active := to.Sub(begun); !begun.IsZero() && begun.Sub(from) > active {
		a.Cut = true
		a.From = begun.Add(-max(active, time.Second) / 4)
		if a.From.Before(from) {
			a.From, a.Cut = from, false
		}
	}
	a.mark(open)
	return a
}

// mark places the marks. Of what goes on, the axis ends at a mark, so that it does not
// change with every reading.
func (a *timeAxis) mark(open bool) {
	length := min(max(a.To.Sub(a.From), time.Millisecond), longestAxis)
	step := axisSteps[len(axisSteps)-1]
	for _, s := range axisSteps {
		if length <= s*axisMarks {
			step = s
			break
		}
	}
	for length > step*axisMarks {
		step *= 2
	}
	if open {
		length = (length + step - 1) / step * step
	}
	a.To = a.From.Add(length)
	for d := time.Duration(0); d <= length; d += step {
		a.Marks = append(a.Marks, axisMark{a.at(a.From.Add(d)), "+" + text.Duration(d)})
	}
}

// at is where a time is on the axis.
func (a *timeAxis) at(t time.Time) int {
	x := int(float64(t.Sub(a.From)) / float64(a.To.Sub(a.From)) * axisWidth)
	return min(max(x, 0), axisWidth)
}

// bar is the bar of a stretch, if any of it is on the axis.
func (a *timeAxis) bar(s timeSpan) (timeBar, bool) {
	if s.to.Before(a.From) {
		return timeBar{}, false
	}
	x := a.at(s.from)
	b := timeBar{Kind: s.kind, X: x, Width: max(a.at(s.to)-x, leastBar), Title: s.title()}
	b.X = min(b.X, axisWidth-b.Width)
	return b, true
}
