package ui

import (
	"context"
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// logsTab is the output of an instance, or the choice of one.
type logsTab struct {
	// None says why there is no output at all.
	None string
	// Steps are those to choose from.
	Steps []logChoice
	More  int // steps that are not among them
	// Log is what was chosen.
	Log *instanceLog
}

// logChoice is a step to choose from.
type logChoice struct {
	Name   string
	Count  int
	Chosen bool
	Counts string
	Href   string
	// Failed leads to its instances that have failed, if some have.
	Failed string
}

// instanceLog is what is kept of the output of an instance.
type instanceLog struct {
	instanceRow
	Name string
	Last int // index of the last instance of the step
	// Previous and Next lead to the neighbours of the instance.
	Previous, Next string
	// Command is what it runs, as its arguments.
	Command []string
	EndedAt time.Time
	// Text is the output; None says why there is none.
	Text string
	None string
	// Note says which attempt it is of, and Notes what is missing.
	Note  string
	Notes []string
}

// stepsChosen bounds the steps to choose from on a page.
const stepsChosen = 200

// outputWait bounds the wait of a page for what an attempt that runs has written so far.
const outputWait = time.Second

// logsOf reads the tab.
func logsOf(ctx context.Context, s *Session, v *step.Viewer, seen *seenRun, q runQuery) (*logsTab, error) {
	t := logChoices(seen, q)
	if q.step == "" || seen.overview == nil {
		return t, seen.trouble
	}
	id := store.StepID{Run: seen.run.ID, Step: q.step, Index: max(0, q.index)}
	out, err := v.See(ctx, s.Steps, id, outputWait)
	if err != nil {
		return nil, err
	}
	t.Log = instanceLogOf(out)
	t.Log.Waits = waitOf(seen, &out.Instance)
	return t, nil
}

// logChoices are the steps of a run.
func logChoices(seen *seenRun, q runQuery) *logsTab {
	t := &logsTab{None: noSteps(seen)}
	switch {
	case seen.run.Steps == 0:
		t.None = "It has no steps, and what its executor writes is not berth's."
		return t
	case t.None != "":
		return t
	}
	tree := step.Tree(seen.overview.Steps)
	t.More = max(0, len(tree)-stepsChosen)
	for _, l := range tree[:min(len(tree), stepsChosen)] {
		s := &seen.overview.Steps[l.Number]
		c := logChoice{Name: s.Shape.Name, Count: s.Shape.Count, Chosen: s.Shape.Name == q.step, Counts: countsText(s.Counts), Href: logOf(store.StepID{Run: q.run, Step: s.Shape.Name})}
		if s.Shape.Count > 1 && s.Counts[step.Failed] > 0 {
			failed := onTab(q.run, tabSteps).in(s.Shape.Name)
			failed.status = step.Failed
			c.Failed = failed.href()
		}
		t.Steps = append(t.Steps, c)
	}
	return t
}

// instanceLogOf makes what is shown of an instance's output.
func instanceLogOf(d *step.Seen) *instanceLog {
	l := &instanceLog{
		instanceRow: instanceRowOf(&d.Instance), Name: d.Text(), Last: d.Shape.Count - 1, EndedAt: d.EndedAt,
	}
	for _, arg := range d.Work.Command {
		l.Command = append(l.Command, text.Visible(arg))
	}
	next := d.StepID
	if next.Index = d.Index - 1; next.Index >= 0 {
		l.Previous = logOf(next)
	}
	if next.Index = d.Index + 1; next.Index <= l.Last {
		l.Next = logOf(next)
	}
	if d.Unasked != nil {
		l.Notes = append(l.Notes, text.Visible(fmt.Sprintf("Its output so far can't be shown: %v.", d.Unasked)))
	}
	if d.Log == nil {
		l.None = inspect.NoOutputText(d.Detail)
		return l
	}
	of := d.Log.Standing(&d.Instance)
	l.Note = inspect.OutputNote(&d.Instance, of)
	if len(d.Log.Text) == 0 && of != step.OfEarlier {
		l.None = "it has written nothing"
		return l
	}
	l.Text = text.Visible(string(d.Log.Text))
	if left := d.Log.LeftOut(); left != "" {
		l.Notes = append(l.Notes, text.Visible(left)+".")
	}
	return l
}
