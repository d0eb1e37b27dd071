package ui

import (
	"context"
	"fmt"
	"time"

	"github.com/berthhq/berth/coordinator/step"
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
	// Previous and Next lead to the instances beside it.
	Previous, Next string
	// Command is what it runs, as its arguments.
	Command []string
	EndedAt time.Time
	// Text is the output; None says why there is none.
	Text string
	None string
	// Notes say what the text is not.
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
		t.None = "This run has no steps: what its executor writes is not berth's to keep."
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
	beside := d.StepID
	if beside.Index = d.Index - 1; beside.Index >= 0 {
		l.Previous = logOf(beside)
	}
	if beside.Index = d.Index + 1; beside.Index <= l.Last {
		l.Next = logOf(beside)
	}
	if d.Unasked != nil {
		l.Notes = append(l.Notes, text.Visible(fmt.Sprintf("What it has written so far can't be shown: %v.", d.Unasked)))
	}
	if d.Log == nil {
		l.None = whyNoOutput(d)
		return l
	}
	standing := d.Log.Standing(&d.Instance)
	if len(d.Log.Text) == 0 && standing != step.OfEarlier {
		l.None = "It has written nothing."
		if standing == step.SoFar {
			l.None = "It runs, and has written nothing so far."
		}
		return l
	}
	l.Text = text.Visible(string(d.Log.Text))
	if note := standingNote(d, standing); note != "" {
		l.Notes = append(l.Notes, note)
	}
	if left := d.Log.LeftOut(); left != "" {
		l.Notes = append(l.Notes, text.Visible(left)+".")
	}
	return l
}

// standingNote says which attempt the output is of, if that is not the last that has ended.
func standingNote(d *step.Seen, standing step.Standing) string {
	running := d.Status == step.Running
	switch {
	case standing == step.SoFar:
		return "It runs still: this is what it has written so far."
	case standing == step.OfLost:
		return "This is of an attempt that was lost, as it was seen before that."
	case standing == step.OfEarlier && running && d.Shape.External:
		return "This is of an earlier attempt. The executor of the one that runs now hands its output in at its end."
	case standing == step.OfEarlier && running:
		return "This is of an earlier attempt. The worker of the one that runs now has not shown its output yet."
	case standing == step.OfEarlier:
		return "This is of an earlier attempt: the last one has written nothing."
	case !d.Status.Ended():
		return "This is of the last attempt. It is tried again."
	}
	return ""
}

// whyNoOutput says why there is none of an instance.
func whyNoOutput(d *step.Seen) string {
	const late = "It has written nothing, or that was longer ago than output is kept (run_retention, 24h unless the settings say otherwise)."
	switch {
	case d.Status == step.Running && d.Shape.External:
		return "It runs, and its executor hands its output in at its end."
	case d.Status == step.Running:
		return "It runs, and its worker has not shown its output yet."
	case d.Attempt == 0 && (d.Status == step.Scheduled || d.Status == step.Requested):
		return "It has not been begun."
	case d.Status == step.Canceled && d.StartedAt.IsZero():
		return "It was canceled before it was begun."
	case d.Shape.External:
		return "Its executor has handed in none, or that was longer ago than output is kept (run_retention, 24h unless the settings say otherwise)."
	}
	return late
}
