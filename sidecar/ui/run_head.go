package ui

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

// runHead is what stands above the tabs of a run.
type runHead struct {
	ID, Name string
	Status   run.Status
	// Standing says what it waits for, or how it stands.
	Standing string
	// Error is why it has failed or who canceled it, which can be many lines.
	Error string
	// Queued is set while it is in the queue.
	Queued *queuedHead
	// Progress of its steps; nil if it has none.
	Progress *progress
	// Open tells that it can be canceled.
	Open bool

	Owner, Instances, Retries, Executor, Claim string
	Priority, Attempt                          int
	Fence                                      int64
	Tags, Labels                               []pair
	Pools                                      []poolNeed
	Times                                      []runTime

	// Notes are what keeps it from going on besides.
	Notes []string
}

// queuedHead is what there is to say of a queued run.
type queuedHead struct {
	Position, Line int
	// InTheWay are runs that take what it waits for, at most 20 of them.
	InTheWay []wayRow
	// Estimate is when it may be admitted; empty if none is known.
	Estimate string
}

// wayRow is a run that is in the way of another.
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
	h := runHead{
		ID: r.ID, Name: text.Visible(r.Name), Status: r.Status, Standing: text.Visible(standing(r)), Error: text.Visible(r.Error), Open: !r.Status.Ended(),
		Owner: text.Visible(r.Owner), Instances: instancesText(r), Retries: retriesText(r), Executor: executorText(r.Executor),
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
		h.Notes = append(h.Notes, "Nobody coordinates, so queued runs wait: start 'berth coordinator', 'berth sidecar --coordinator' or 'berth dev'.")
	}
	h.Notes = append(h.Notes, stuckOf(seen)...)
	if o := seen.overview; o != nil {
		counts, total := totalOf(o.Steps)
		h.Progress = progressOf(counts, total)
	}
	return h
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
	if w.Estimate > 0 {
		q.Estimate = "in about " + text.Duration(w.Estimate.Round(time.Second)) + ", by how long runs took lately"
	}
	return q
}

// standing says what a run waits for, or how it stands.
func standing(r *run.Run) string {
	switch r.Status {
	case run.Queued:
		if b := r.BlockAt(time.Now()); b != nil {
			return b.Text
		}
		return "waiting for the coordinator's first look"
	case run.Storing:
		return "it is being stored, and in no queue yet"
	case run.NotStarted:
		if r.Steps > 0 {
			return "it was admitted, and its steps are about to start"
		}
		return "it was admitted, and waits for an executor to start it"
	case run.Running:
		if r.Executor != nil {
			return fmt.Sprintf("it runs on host '%s'", r.Executor.Host)
		}
		return "its steps are in progress"
	}
	return ""
}

// instancesText says how many step instances a run has, and how many at a time.
func instancesText(r *run.Run) string {
	if r.Steps == 0 {
		return ""
	}
	text := plural(r.Steps, "instance", "instances")
	if r.MaxConcurrentSteps > 0 {
		text += fmt.Sprintf(", at most %d in flight", r.MaxConcurrentSteps)
	}
	if r.MaxStepsPerTick > 0 {
		text += fmt.Sprintf(", at most %d published in one tick", r.MaxStepsPerTick)
	}
	return text
}

// retriesText says how often a run may be queued again, and how often its executor was
// lost. Of one with steps it is they that are tried again.
func retriesText(r *run.Run) string {
	if r.Steps > 0 {
		return ""
	}
	text := strconv.Itoa(r.Retries)
	if r.Lost > 0 {
		text += ", " + plural(r.Lost, "executor", "executors") + " lost"
	}
	return text
}

func executorText(e *run.Executor) string {
	if e == nil {
		return ""
	}
	s := e.Host + "/" + e.Instance
	if e.Name != "" {
		s += ", " + e.Name
	}
	return text.Visible(s)
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
