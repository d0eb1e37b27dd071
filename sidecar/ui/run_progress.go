package ui

import (
	"context"
	"fmt"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// progress is how far instances are, as a bar and in words.
type progress struct {
	Ended, Count int
	// Text describes the bar.
	Text  string
	Parts []barPart
}

// barPart is a part of a bar, in its units from the left.
type barPart struct {
	Status   step.Status
	X, Width int
}

// barWidth is how many units a bar is wide.
const barWidth = 200

// leastPart is how wide the narrowest part is that can be seen.
const leastPart = 3

// barOrder is the order of statuses in a bar. The rest of the bar is not started.
var barOrder = []step.Status{step.Succeeded, step.Failed, step.Canceled, step.Running, step.Scheduled}

// progressOf makes a progress of counts.
func progressOf(counts map[step.Status]int, total int) *progress {
	p := &progress{Ended: endedOf(counts), Count: total, Parts: barParts(counts, total)}
	p.Text = fmt.Sprintf("%s of %s ended", text.Number(int64(p.Ended)), text.Number(int64(total)))
	if s := countsText(counts); s != "" {
		p.Text += ": " + s
	}
	return p
}

// Percent of what has ended, rounded down: 100 is all.
func (p *progress) Percent() int {
	if p.Count == 0 {
		return 0
	}
	return p.Ended * 100 / p.Count
}

// endedOf is how many instances have ended.
func endedOf(counts map[step.Status]int) int {
	return counts[step.Succeeded] + counts[step.Failed] + counts[step.Canceled]
}

// barParts shares a bar out. No status in [barOrder] that there is goes unseen, however
// few have it, and the bar is full only if no instance is merely requested.
func barParts(counts map[step.Status]int, total int) []barPart {
	var parts []barPart
	begun, used, longest := 0, 0, 0
	for _, s := range barOrder {
		n := counts[s]
		if n <= 0 {
			continue
		}
		begun += n
		p := barPart{Status: s, Width: max(leastPart, n*barWidth/total)}
		used += p.Width
		if parts = append(parts, p); p.Width > parts[longest].Width {
			longest = len(parts) - 1
		}
	}
	if len(parts) == 0 {
		return nil
	}
	// Rounding has taken some from all, or the few have got more than their share: the
	// longest part pays for it.
	switch most := barWidth - leastPart; {
	case begun == total:
		parts[longest].Width += barWidth - used
	case used > most:
		parts[longest].Width -= used - most
	}
	x := 0
	for i := range parts {
		parts[i].X, x = x, x+parts[i].Width
	}
	return parts
}

// outlook returns what the waits of step instances depend on. One reading serves all pages.
func (l *runReader) outlook(s *Session) *step.Outlook {
	return &step.Outlook{
		Candidates: func(ctx context.Context) ([]run.Candidate, error) {
			env, err := l.pages.runs.environment.read(ctx, s)
			return env.candidates, err
		},
		Workers: func(ctx context.Context) ([]step.Worker, bool, error) {
			f, err := l.pages.fleet.read(ctx, s)
			if err != nil {
				return nil, false, err
			}
			return f.StepWorkers(), len(f.Bad) > 0, nil
		},
		Space: func(ctx context.Context) (*pool.Space, error) {
			return l.space.get(ctx, "", s.Client.Space) // it goes through all lines
		},
	}
}

// saying is what a row of the tree says of a step that waits.
type saying struct {
	Text string
	// Soon reports that nothing blocks it.
	Soon bool
}

// saysOf says what a step waits for, or why it does not run; empty if it does not wait.
func saysOf(seen *seenRun, number int) saying {
	w := seen.waits[number]
	switch {
	case w == nil:
		return saying{}
	case w.Kind == step.WaitNever:
		return saying{Text: waitText(w)}
	}
	s := &seen.overview.Steps[number]
	line := "waits: "
	switch {
	case s.Shape.Count > 1 && w.Count == 1:
		line = "1 waits: "
	case s.Shape.Count > 1:
		line = text.Number(int64(w.Count)) + " wait: "
	}
	return saying{Text: line + waitText(w), Soon: w.Soon}
}

// inOrder reports whether a wait is for the run, or for other steps of it.
func inOrder(w *step.Wait) bool {
	return w.Kind == step.WaitRun || w.Kind == step.WaitNeeds || w.Kind == step.WaitNever
}

// waitText is the text of a wait, which names pools and queues.
func waitText(w *step.Wait) string { return text.Visible(text.Cut(w.Text, reasonShown)) }

// waitsByStatus says what the instances of a step wait for that have a status, unless
// they wait for other steps, or for their run.
func waitsByStatus(seen *seenRun, number int) (all []string) {
	o := seen.overview
	for _, status := range []step.Status{step.Scheduled, step.Requested} {
		n := o.Steps[number].Counts[status]
		if n == 0 {
			continue
		}
		w := o.WaitOf(number, &step.Instance{Record: step.Record{Status: status}}, seen.around)
		if w != nil && !inOrder(w) {
			all = append(all, fmt.Sprintf("%s %s: %s", text.Number(int64(n)), status, waitText(w)))
		}
	}
	return all
}

// waitOf says what an instance waits for; nothing if it does not, or if that is not known
// because it has come to wait since the steps were read.
func waitOf(seen *seenRun, i *step.Instance) string {
	o := seen.overview
	for n := range o.Steps {
		if o.Steps[n].Shape.Name != i.Step || o.Steps[n].Counts[i.Status] == 0 {
			continue
		}
		if w := o.WaitOf(n, i, seen.around); w != nil {
			return waitText(w)
		}
	}
	return ""
}
