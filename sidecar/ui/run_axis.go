package ui

import (
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

const (
	// axisWidth is how many units the picture of a timeline is wide.
	axisWidth = 600
	// axisMarks is how many marks it has at most, the first not counted.
	axisMarks = 8
	// leastBar is how wide the shortest bar is.
	leastBar = 2
)

// timeAxis is how times lie in the picture.
type timeAxis struct {
	From, To time.Time
	Marks    []axisMark
	// Cut tells that the run was queued long before From.
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
func axisOf(r *run.Run, done [][]stretchOfTime, now time.Time) timeAxis {
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
// change at every look.
func (a *timeAxis) mark(open bool) {
	length := max(a.To.Sub(a.From), time.Millisecond)
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
func (a *timeAxis) bar(s stretchOfTime) (timeBar, bool) {
	if s.to.Before(a.From) {
		return timeBar{}, false
	}
	x := a.at(s.from)
	b := timeBar{Kind: s.kind, X: x, Width: max(a.at(s.to)-x, leastBar), Title: s.title()}
	b.X = min(b.X, axisWidth-b.Width)
	return b, true
}
