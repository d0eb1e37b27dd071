package ui

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

// runsPage is what the page of all runs shows.
type runsPage struct {
	// Total is how many runs there are, whatever is filtered by.
	Total      int
	Statuses   []statusLink
	Filter     filterForm
	Rows       []runRow
	Pager      listPager
	Unreadable unreadableRuns
}

// Submitters are the identities that have submitted the runs.
func (p runsPage) Submitters() []string {
	all := make([]string, len(p.Rows))
	for i, r := range p.Rows {
		all[i] = r.SubmittedBy
	}
	return all
}

// statusLink leads to the runs of a status. The first leads to those of any, and has none.
type statusLink struct {
	Status run.Status
	// Count is how many of the runs have it that the filter lets through.
	Count   int
	Href    string
	Current bool
}

// runRow is a run.
type runRow struct {
	ID, Name, Owner string
	// SubmittedBy is the identity that has submitted it.
	SubmittedBy string
	Status      run.Status
	Priority    int
	Tags        tagList
	// Submitted is when it came, and Since when it was started, or admitted, while it is
	// in progress.
	Submitted, Since time.Time
	// Took is from its last start to its end; 0 if it has not both.
	Took time.Duration
	// Steps is how far its step instances have come.
	Steps   stepsDone
	Host    string // of its executor
	Attempt int
	// Text is why it waits, or why it failed or was canceled.
	Text string
}

// runsState is what the page takes of the runs, while they are locked.
type runsState struct {
	page       listPage
	total      int
	counts     map[run.Status]int
	unreadable unreadableRuns
}

func runsStateOf(set *runSet, f *runFilter, statuses []run.Status, after listPlace) runsState {
	l := runsState{total: len(set.byID), counts: map[run.Status]int{}, unreadable: set.unreadable()}
	if f.Wrong != "" {
		return l
	}
	those := set.newest.only(f)
	if those == &set.newest {
		maps.Copy(l.counts, set.counts) // they change
	} else {
		for _, r := range those.all {
			l.counts[r.Status]++
		}
	}
	if len(statuses) > 0 {
		those = those.where(func(r *listed) bool { return slices.Contains(statuses, r.Status) })
	}
	l.page = those.pageAfter(after, rowsPerPage)
	return l
}

// viewRuns reads the page of all runs.
func (p *Pages) viewRuns(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	at := listAddressOf(r, "q", "tag", "status", "after")
	f := parseRunFilter(at.query)
	statuses := parseStatuses(at.query, &f)
	after, err := afterOf(at.query)
	if err != nil {
		return nil, err
	}
	var l runsState
	if err := p.runs.read(ctx, s.Runs, func(set *runSet) { l = runsStateOf(set, &f, statuses, after) }); err != nil {
		return nil, err
	}
	done, err := p.runs.progress.read(ctx, s.reader(nil), l.page.rows)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Runs", Data: runsOf(l, done, f, statuses, at)}, nil
}

// parseStatuses reads the statuses to filter by: none are all.
func parseStatuses(query url.Values, f *runFilter) (statuses []run.Status) {
	for _, line := range query["status"] {
		if line == "" {
			continue
		}
		s, err := run.ParseStatus(text.Cut(line, run.MaxText))
		if err != nil {
			f.Wrong = "The " + text.Visible(err.Error()) + "."
			return nil
		}
		statuses = append(statuses, s)
	}
	return statuses
}

// runsOf makes the page.
func runsOf(l runsState, done map[submitted]stepsDone, f runFilter, statuses []run.Status, at listAddress) runsPage {
	page := runsPage{
		Total: l.total, Filter: f.form(at, "status"), Pager: pagerOf(l.page, at), Unreadable: l.unreadable,
	}
	all := statusLink{Href: at.with("status", ""), Current: len(statuses) == 0 && f.Wrong == ""}
	page.Statuses = []statusLink{all}
	for _, status := range run.Statuses {
		page.Statuses[0].Count += l.counts[status]
		page.Statuses = append(page.Statuses, statusLink{
			status, l.counts[status], at.with("status", string(status)), slices.Contains(statuses, status),
		})
	}
	for _, r := range l.page.rows {
		page.Rows = append(page.Rows, runRowOf(r.Run, done[submittedOf(r.Run)], at))
	}
	return page
}

// textShown bounds what a list shows of why a run has ended; the run's own page has all.
const textShown = 240

func runRowOf(r *run.Run, done stepsDone, at listAddress) runRow {
	record := inspect.RunOf(r)
	row := runRow{
		ID: r.ID, Name: text.Visible(r.Name), Owner: text.Visible(r.Owner), SubmittedBy: r.SubmittedBy, Status: r.Status, Priority: r.Priority, Tags: at.tags(r.Tags),
		Submitted: r.QueuedAt, Steps: done, Attempt: r.Attempt, Text: record.Reason(),
	}
	switch {
	case r.Status == run.Running:
		row.Since = r.StartedAt
	case r.Status == run.NotStarted:
		row.Since = r.AdmittedAt
	case r.Status.Ended() && !r.StartedAt.IsZero():
		row.Took = max(0, r.EndedAt.Sub(r.StartedAt))
	}
	if r.Executor != nil && (r.Status == run.Running || r.Status.Ended()) {
		row.Host = text.Visible(r.Executor.Host)
	}
	if row.Text == "" {
		row.Text = done.Waits
	}
	row.Text = text.Visible(text.Cut(row.Text, textShown))
	return row
}

const (
	// progressAge is how old the progress of a run may be.
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
	// Known reports whether it was counted.
	Known bool
	// Waits is what the steps wait for; empty if they wait for nothing.
	Waits string
}

// Open reports whether the run has not ended.
func (r runRow) Open() bool { return !r.Status.Ended() }

// Percent returns how much has ended, rounded down: only all of it is 100.
func (d stepsDone) Percent() int { return d.Done * 100 / max(1, d.Of) }

// doneNotes caches the progress of runs for all pages.
type doneNotes struct {
	mu  sync.Mutex
	now map[submitted]doneNote
}

type doneNote struct {
	stepsDone
	at time.Time
}

// read returns the progress of those of some runs that have steps. It is counted where that is
// cheap.
func (n *doneNotes) read(ctx context.Context, r *inspect.Reader, runs []*listed) (map[submitted]stepsDone, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil || len(n.now) > progressKept {
		n.now = map[submitted]doneNote{}
	}
	found := map[submitted]stepsDone{}
	counted := 0
	var around *step.Around // read once, if at all
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
				if note, err = readProgress(ctx, r, &around, l); err != nil {
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

// readProgress counts what has ended, and what the steps wait for. If that can't be read,
// it is not known.
func readProgress(ctx context.Context, r *inspect.Reader, around **step.Around, l *listed) (doneNote, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), environmentTimeout)
	defer cancel()
	note := doneNote{stepsDone: stepsDone{Of: l.Steps}, at: time.Now()}
	o, err := r.Steps.Overview(ctx, l.ID)
	switch {
	case err == nil:
	case problem.CodeOf(err).Status() == problem.EtcdUnavailable.Status():
		return note, err
	default:
		return note, nil // the run is gone, or its steps can't be read
	}
	note.Known = true
	if *around == nil {
		a, err := r.Outlook().Around(ctx, func(step.Status) bool { return true })
		if err != nil {
			return note, err
		}
		*around = &a
	}
	note.Waits = inspect.HoldsSummary(o.Holds(o.Waits(**around)))
	for _, sum := range o.Steps {
		note.Failed += sum.Counts[step.Failed]
		note.Done += sum.Counts[step.Succeeded] + sum.Counts[step.Failed] + sum.Counts[step.Canceled]
	}
	return note, nil
}
