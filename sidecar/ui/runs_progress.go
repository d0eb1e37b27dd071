package ui

import (
	"context"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// progressAge is how old it may be what is told of a run's progress.
	progressAge = 5 * time.Second
	// progressRuns is how many runs of a page it is read of, and progressSteps how many
	// instances such a run may have: all of its states are read.
	progressRuns, progressSteps = 10, 1000
	// progressKept bounds the runs whose progress is kept in memory.
	progressKept = 500
)

// stepsDone is how far the step instances of a run have come.
type stepsDone struct {
	// Done have ended, Failed among them, of so many.
	Done, Failed, Of int
	// Known tells whether it was counted.
	Known bool
}

// Percent is how much has ended, rounded down: only all of it is 100.
func (d stepsDone) Percent() int { return d.Done * 100 / max(1, d.Of) }

// doneNotes keeps the progress of runs for all who look.
type doneNotes struct {
	mu  sync.Mutex
	now map[submitted]doneNote
}

type doneNote struct {
	stepsDone
	at time.Time
}

// look returns the progress of those of some runs that have steps. It is counted where
// that is cheap.
func (n *doneNotes) look(ctx context.Context, s step.Store, runs []*listed) (map[submitted]stepsDone, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil || len(n.now) > progressKept {
		n.now = map[submitted]doneNote{}
	}
	found := map[submitted]stepsDone{}
	counted := 0
	for _, l := range runs {
		p := stepsDone{Of: l.Steps}
		switch id := submittedOf(l.Run); {
		case l.Steps == 0:
			continue
		case l.Status == run.Succeeded:
			p.Done, p.Known = l.Steps, true
		case l.Status.InProgress() && l.Steps <= progressSteps && counted < progressRuns:
			counted++
			note, ok := n.now[id]
			if !ok || time.Since(note.at) >= progressAge {
				var err error
				if note, err = readProgress(ctx, s, l); err != nil {
					return nil, err
				}
				n.now[id] = note
			}
			p = note.stepsDone
		}
		found[submittedOf(l.Run)] = p
	}
	return found, nil
}

func (n *doneNotes) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = nil
}

// readProgress counts what has ended. If that can't be read, it is not known.
func readProgress(ctx context.Context, s step.Store, l *listed) (doneNote, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aroundTimeout)
	defer cancel()
	note := doneNote{stepsDone: stepsDone{Of: l.Steps}, at: time.Now()}
	o, err := s.Overview(ctx, l.ID)
	switch {
	case err == nil:
	case problem.CodeOf(err).Status() == problem.EtcdUnavailable.Status():
		return note, err
	default:
		return note, nil // the run is gone, or its steps can't be read
	}
	note.Known = true
	for _, sum := range o.Steps {
		note.Failed += sum.Counts[step.Failed]
		note.Done += sum.Counts[step.Succeeded] + sum.Counts[step.Failed] + sum.Counts[step.Canceled]
	}
	return note, nil
}
