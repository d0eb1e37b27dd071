package ui

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// runEvery is how often the page of a run is read: its steps are many keys.
const runEvery = 2 * time.Second

// runPage is the page of one run.
func (p *Pages) runPage() page {
	l := &runReader{pages: p}
	return page{pattern: "GET /runs/{id}", name: "run", under: "runs", every: runEvery, view: l.view, takesTurns: true}
}

// runView is what the page of a run shows.
type runView struct {
	runHead
	Tab  string
	Tabs []runTab
	// One of them is there, the one of the tab.
	Steps       *stepsTab
	Timeline    *timelineTab
	Concurrency *concurrencyTab
	Logs        *logsTab
	Events      *eventsTab
	// Problem is why the tab can't be shown.
	Problem string
}

// runTab is a tab as a link.
type runTab struct {
	Name, Title, Href string
	Now               bool
}

// runTitles are what tabs are called.
var runTitles = map[string]string{
	tabSteps: "Steps", tabTimeline: "Timeline", tabConcurrency: "Concurrency", tabLogs: "Logs", tabEvents: "Events",
}

// runReader reads what the pages of runs show.
type runReader struct {
	pages     *Pages
	overviews glance[*step.Overview]
	instances glance[*step.Instances]
	events    glance[[]run.LoggedEvent]
	all       glance[run.All]
	space     glance[*pool.Space]
	outputs   step.Viewer
}

// seenRun is what was read of a run, whatever the tab.
type seenRun struct {
	run *run.Run
	why *run.Why
	// overview is nil if the run has no steps, or they can't be read.
	overview *step.Overview
	// trouble is why the steps can't be read.
	trouble error
	// leaderless reports that it waits, and no coordinator admits runs.
	leaderless bool
	// around is what waits of its instances depend on, and waits what each step waits for.
	around step.Around
	waits  []*step.Wait
}

func (l *runReader) view(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	id := r.PathValue("id")
	q, err := runQueryOf(id, r.URL.Query())
	if err != nil {
		return nil, err
	}
	leave, err := l.pages.turn(ctx)
	if err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	seen, err := l.readRun(ctx, s, id)
	if err != nil {
		return nil, err
	}
	if q.tab == tabLogs {
		leave() // what follows is small, and may wait for a worker
	}
	if q.tab == "" {
		q.tab = tabTimeline
		if seen.run.Steps > 0 {
			q.tab = tabSteps
		}
	}
	now := time.Now()
	v := &runView{runHead: headOf(seen), Tab: q.tab}
	for _, name := range runTabs {
		v.Tabs = append(v.Tabs, runTab{name, runTitles[name], onTab(id, name).href(), name == q.tab})
	}
	if err := l.fill(ctx, s, v, seen, q, now); err != nil {
		if code := problem.CodeOf(err); code != problem.CorruptValue {
			return nil, err
		}
		v.Problem = err.Error()
	}
	return &view{Title: v.Title(), Data: v}, nil
}

// fill reads what the tab shows.
func (l *runReader) fill(ctx context.Context, s *Session, v *runView, seen *seenRun, q runQuery, now time.Time) error {
	id := seen.run.ID
	switch q.tab {
	case tabSteps, tabTimeline:
		list, err := l.page(ctx, s, seen, q)
		if err != nil {
			return err
		}
		if q.tab == tabSteps {
			v.Steps = stepsTabOf(seen, list, q)
		} else {
			v.Timeline = timelineOf(seen, list, q, now)
		}
		return seen.trouble
	case tabLogs:
		t, err := logsOf(ctx, s, &l.outputs, seen, q)
		v.Logs = t
		return err
	}
	events, err := l.events.get(ctx, seen.key(), func(ctx context.Context) ([]run.LoggedEvent, error) { return s.Runs.Events(ctx, id) })
	if err != nil {
		return err
	}
	if q.tab == tabConcurrency {
		v.Concurrency = concurrencyOf(events)
	} else {
		v.Events = eventsTabOf(events, q)
	}
	return nil
}

// key names what was read of a run since its record changed.
func (s *seenRun) key() string { return fmt.Sprintf("%s@%d", s.run.ID, s.run.Revision) }

// readRun reads a run, and what all tabs show of it.
func (l *runReader) readRun(ctx context.Context, s *Session, id string) (*seenRun, error) {
	r, err := s.Runs.Get(ctx, id)
	switch code := problem.CodeOf(err); {
	case err == nil:
	case code == problem.RunNotFound, code == problem.Invalid:
		return nil, noSuchRun(id)
	default:
		return nil, err
	}
	seen := &seenRun{run: r, why: &run.Why{Run: r}}
	if r.Status == run.Queued {
		if err := l.waits(ctx, s, seen); err != nil {
			return nil, err
		}
	}
	if r.Steps == 0 || r.Status == run.Storing {
		return seen, nil
	}
	o, err := l.overviews.get(ctx, seen.key(), func(ctx context.Context) (*step.Overview, error) { return s.Steps.Overview(ctx, id) })
	switch code := problem.CodeOf(err); {
	case err == nil:
		seen.overview = o
	case code == problem.RunNotFound:
		return nil, noSuchRun(id)
	case code == problem.CorruptValue:
		seen.trouble = err
		return seen, nil
	default:
		return nil, err
	}
	if seen.around, err = l.outlook(s).Around(ctx, o.Has); err != nil {
		return nil, err
	}
	seen.waits = o.Waits(seen.around)
	return seen, nil
}

// noSuchRun is the problem of an address that leads to no run.
func noSuchRun(id string) error {
	if run.ValidateID(id) != nil {
		return problem.New(problem.RunNotFound, "there is no run %.100q: no run can have that id. /runs lists the runs that there are", id)
	}
	return problem.New(problem.RunNotFound, "there is no run %q: its id may be misspelled, or it ended longer ago than runs are kept (run_retention, 24h unless the settings say otherwise). "+
		"/runs lists the runs that there are, and 'berth runs events %s' may still list what happened to it", id, id)
}

// waits reads what a queued run waits for.
func (l *runReader) waits(ctx context.Context, s *Session, seen *seenRun) error {
	env, err := l.pages.runs.environment.read(ctx, s)
	if err != nil {
		return err
	}
	all, err := l.all.get(ctx, "", func(ctx context.Context) (run.All, error) { return l.copy(ctx, s) })
	if err != nil {
		return err
	}
	// The copy may be a moment behind: then the record is used.
	if why := all.Why(seen.run.ID, pool.NewSpace(env.pools...), time.Now()); why != nil && why.Position > 0 {
		seen.why = why
	}
	seen.leaderless = len(env.candidates) == 0
	return nil
}

// copy takes all runs from the copy that the pages watch.
func (l *runReader) copy(ctx context.Context, s *Session) (all run.All, err error) {
	err = l.pages.runs.read(ctx, s.Runs, func(set *runSet) {
		all.Runs = make([]*run.Run, 0, len(set.newest.all))
		for _, r := range set.newest.all {
			all.Runs = append(all.Runs, r.Run)
		}
	})
	slices.SortFunc(all.Runs, func(a, b *run.Run) int { return strings.Compare(a.ID, b.ID) })
	return all, err
}

// page reads the instances of the step that is expanded, if one is.
func (l *runReader) page(ctx context.Context, s *Session, seen *seenRun, q runQuery) (*step.Instances, error) {
	if q.step == "" || seen.overview == nil {
		return nil, nil
	}
	p := step.Page{From: q.after + 1, Limit: instancesShown}
	if q.status != "" && q.tab == tabSteps {
		p.Statuses = []step.Status{q.status}
	}
	key := fmt.Sprintf("%s/%s/%v/%d", seen.key(), q.step, p.Statuses, p.From)
	return l.instances.get(ctx, key, func(ctx context.Context) (*step.Instances, error) {
		return s.Steps.Instances(ctx, seen.run.ID, q.step, p)
	})
}

// runHead is the head of a run, above the tabs.
type runHead struct {
	ID, Name string
	Status   run.Status
	// Reason says what it waits for, and more about its status.
	Reason string
	// Error is why it failed or who canceled it, which can be many lines.
	Error string
	// Queued is set while it is in the queue.
	Queued *queuedHead
	// Progress of its steps; nil if it has none.
	Progress *progress
	// Open reports whether it has not ended.
	Open bool

	Owner, SubmittedBy, Instances, Retries, Executor, Claim string
	Priority, Attempt                                       int
	Fence                                                   int64
	Tags, Labels                                            []pair
	Pools                                                   []poolNeed
	Times                                                   []runTime

	// Notes are further reasons why it waits.
	Notes []string
}

// queuedHead is the head of a queued run.
type queuedHead struct {
	Position, Line int
	// InTheWay are the runs that block it, at most 20 of them.
	InTheWay []wayRow
	// Estimate is when it may be admitted; empty if none is known.
	Estimate string
}

// wayRow is a run that blocks another.
type wayRow struct {
	ID, Name, Host string
	Status         run.Status
	Tags           []pair
	Since          time.Time
}

// poolNeed is how many slots of a pool are needed.
type poolNeed struct {
	Name, Href string
	Slots      int
}

// runTime is a moment of a run.
type runTime struct {
	What string
	At   time.Time
	// Took is how long after the moment before it.
	Took string
}

// Title names the page.
func (h *runHead) Title() string {
	if h.Name != "" {
		return "Run " + h.Name + " (" + h.ID + ")"
	}
	return "Run " + h.ID
}

// headOf makes the head of a run.
func headOf(seen *seenRun) runHead {
	r := seen.why.Run // its reason has the numbers of now
	record := inspect.RunOf(r)
	h := runHead{
		ID: r.ID, Name: text.Visible(r.Name), Status: r.Status, Reason: text.Visible(explained(record, seen)), Error: text.Visible(r.Error), Open: !r.Status.Ended(),
		Owner: text.Visible(r.Owner), SubmittedBy: text.Visible(r.SubmittedBy), Instances: record.InstancesText(), Retries: record.RetriesText(), Executor: text.Visible(record.ExecutorText()),
		Priority: r.Priority, Attempt: r.Attempt, Tags: pairsOf(r.Tags), Labels: pairsOf(r.Labels), Pools: needsOf(r.Pools),
		Times: timesOf(r),
	}
	if r.Status.InProgress() {
		h.Claim = r.Claim
	}
	if r.Status == run.Running && r.Steps == 0 {
		h.Fence = r.Revision
	}
	if r.Status == run.Queued {
		h.Queued = queuedHeadOf(seen.why)
	}
	if seen.leaderless {
		h.Notes = append(h.Notes, strings.ToUpper(inspect.NoLeader[:1])+inspect.NoLeader[1:]+".")
	}
	if o := seen.overview; o != nil {
		counts, total := totalOf(o.Steps)
		h.Progress = progressOf(counts, total)
	}
	return h
}

// explained returns the reason of a run; empty if it has ended: its error is shown apart.
func explained(r inspect.Run, seen *seenRun) string {
	if run.Status(r.Status).Ended() {
		return ""
	}
	var holds []step.Hold
	if seen.overview != nil && run.Status(r.Status).InProgress() {
		holds = seen.overview.Holds(seen.waits)
	}
	return strings.TrimPrefix(inspect.RunWhyOf(seen.why, holds).Reason, r.Status+" ") // the badge has it
}

func queuedHeadOf(w *run.Why) *queuedHead {
	q := &queuedHead{Position: w.Position, Line: w.Line}
	for _, r := range w.InTheWay {
		row := wayRow{ID: r.ID, Name: text.Visible(r.Name), Status: r.Status, Tags: pairsOf(r.Tags), Since: r.AdmittedAt}
		if r.Executor != nil {
			row.Host = text.Visible(r.Executor.Host)
		}
		q.InTheWay = append(q.InTheWay, row)
	}
	record := inspect.RunWhyOf(w, nil)
	q.Estimate = record.EstimateText()
	return q
}

// needsOf are slots by pool.
func needsOf(slots map[string]int) []poolNeed {
	var all []poolNeed
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		v := url.Values{"q": {name}, "open": {name}}
		all = append(all, poolNeed{name, "/pools?" + v.Encode(), slots[name]})
	}
	return all
}

// timesOf are the moments of a run in their order.
func timesOf(r *run.Run) []runTime {
	var all []runTime
	before := time.Time{}
	due := time.Time{}
	if r.Joined != 0 && r.NotBefore.After(r.QueuedAt) {
		due = r.NotBefore.Time
	}
	for _, t := range []runTime{{What: "queued", At: r.QueuedAt}, {What: "due", At: due}, {What: "admitted", At: r.AdmittedAt}, {What: "started", At: r.StartedAt}, {What: "ended", At: r.EndedAt}} {
		if t.At.IsZero() {
			continue
		}
		t.Took, before = took(before, t.At), t.At
		all = append(all, t)
	}
	return all
}

// totalOf adds the counts of all steps up.
func totalOf(steps []step.Summary) (counts map[step.Status]int, instances int) {
	counts = map[step.Status]int{}
	for i := range steps {
		instances += steps[i].Shape.Count
		for status, n := range steps[i].Counts {
			counts[status] += n
		}
	}
	return counts, instances
}
