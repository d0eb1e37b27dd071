package inspect

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/text"
)

// Run is a run as it is now.
type Run struct {
	ID     string            `json:"id"`
	Name   string            `json:"name,omitempty"`
	Status string            `json:"status" enum:"storing,queued,not_started,running,succeeded,failed,canceled"`
	Tags   map[string]string `json:"tags,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Owner  string            `json:"owner,omitempty"`
	// SubmittedBy is the identity that submitted it.
	SubmittedBy string `json:"submitted_by,omitempty" doc:"Who submitted it: user:NAME over the unix socket, token:NAME, cert:NAME, or anonymous; etcd:NAME or unauthenticated for a command or source with a connection to etcd."`
	Priority    int    `json:"priority"`
	Retries     int    `json:"retries,omitempty" doc:"How often it may be queued again after its executor was lost."`

	NotBefore time.Time `json:"not_before,omitzero" doc:"When it joins the queue, or joined it; also of a run that was submitted with a delay."`
	Delay     Duration  `json:"delay,omitzero" doc:"As it was submitted."`

	Pools map[string]int `json:"pools,omitempty" doc:"Slots that the run needs as a whole."`
	Claim string         `json:"claim,omitempty" doc:"The claim that holds its slots while it is in progress."`

	Steps              int `json:"steps,omitempty" doc:"How many instances its steps have; left out if it has no steps."`
	MaxConcurrentSteps int `json:"max_concurrent_steps,omitempty" doc:"How many step instances are in flight at a time; left out if there is no bound."`
	MaxStepsPerTick    int `json:"max_steps_per_tick,omitempty" doc:"How many step instances one tick publishes; left out if there is no bound."`

	BlockReason string `json:"block_reason,omitempty" doc:"Why the run is still queued, once the coordinator has checked it; or what its steps wait for."`
	BlockKind   string `json:"block_kind,omitempty" doc:"Of a queued run: run_limit, tag_limit, pool, or not_before. Of a run in progress: as of a step. New kinds may be added."`

	QueuedAt   time.Time `json:"queued_at"`
	AdmittedAt time.Time `json:"admitted_at,omitzero"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`

	Attempt  int       `json:"attempt,omitempty" doc:"Counts the starts."`
	Lost     int       `json:"lost,omitempty" doc:"Counts the executors that were lost, or never came."`
	Executor *Executor `json:"executor,omitempty" doc:"The current or last executor."`
	// Fence is the fencing token of the current attempt: a finish must name it.
	Fence int64  `json:"fence,omitempty" doc:"The fencing token of the current attempt: larger for every later attempt."`
	Error string `json:"error,omitempty" doc:"Why it failed, or was canceled."`
}

// Executor runs a run or a step instance.
type Executor struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Name     string `json:"name,omitempty"`
	By       string `json:"by,omitempty" doc:"The identity that started or took it, of an executor over HTTP."`
}

func executorOf(e *run.Executor) *Executor {
	if e == nil {
		return nil
	}
	return &Executor{Host: e.Host, Instance: e.Instance, Name: e.Name, By: e.By}
}

// RunOf returns the record of a run. A queued run whose time has not come has that as
// its reason, as of now.
func RunOf(r *run.Run) Run {
	v := Run{
		ID: r.ID, Name: r.Name, Status: string(r.Status), Tags: r.Tags, Labels: r.Labels, Owner: r.Owner, SubmittedBy: r.SubmittedBy,
		Priority: r.Priority, Retries: r.Retries, Pools: r.Pools, NotBefore: r.NotBefore.Time, Delay: Duration(r.Delay),
		Steps: r.Steps, MaxConcurrentSteps: r.MaxConcurrentSteps, MaxStepsPerTick: r.MaxStepsPerTick,
		QueuedAt: r.QueuedAt, AdmittedAt: r.AdmittedAt, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
		Attempt: r.Attempt, Lost: r.Lost, Executor: executorOf(r.Executor), Error: r.Error,
	}
	if b := r.BlockAt(time.Now()); b != nil {
		v.BlockReason, v.BlockKind = b.Text, string(b.Kind)
	}
	if r.Status.InProgress() {
		v.Claim = r.Claim
	}
	if r.Status == run.Running && r.Steps == 0 {
		v.Fence = int64(r.Fence())
	}
	return v
}

// Reason returns why a run waits, or why it failed or was canceled; empty if there is
// nothing to explain. It is the REASON of lists.
func (r *Run) Reason() string {
	if r.Status == string(run.Queued) {
		return cmp.Or(r.BlockReason, run.NotChecked)
	}
	return cmp.Or(r.Error, r.BlockReason)
}

// StatusText returns the status of a run with what explains it.
func (r *Run) StatusText() string {
	switch run.Status(r.Status) {
	case run.Queued:
		return r.Reason()
	case run.Storing:
		return "its steps are being stored"
	case run.NotStarted:
		if r.Steps > 0 {
			return "admitted, its steps are about to start"
		}
		return "admitted, waiting for an executor to start it"
	case run.Running:
		if r.Executor == nil {
			return "running its steps"
		}
		s := fmt.Sprintf("running on host '%s'", r.Executor.Host)
		if r.Attempt > 1 {
			s += fmt.Sprintf(", attempt %d", r.Attempt)
		}
		return s
	}
	if r.Error != "" {
		return r.Status + ": " + r.Error
	}
	return r.Status
}

// InstancesText writes how many step instances a run has, and their bounds; empty if it
// has no steps.
func (r *Run) InstancesText() string {
	if r.Steps == 0 {
		return ""
	}
	s := text.Count(r.Steps, "instance")
	if r.MaxConcurrentSteps > 0 {
		s += fmt.Sprintf(", at most %d in flight", r.MaxConcurrentSteps)
	}
	if r.MaxStepsPerTick > 0 {
		s += fmt.Sprintf(", at most %d published in one tick", r.MaxStepsPerTick)
	}
	return s
}

// RetriesText writes how often a run may be queued again, and how many executors were
// lost. It is empty for a run with steps: its steps are retried.
func (r *Run) RetriesText() string {
	if r.Steps > 0 {
		return ""
	}
	s := strconv.Itoa(r.Retries)
	if r.Lost > 0 {
		s += ", " + text.Count(r.Lost, "executor") + " lost"
	}
	return s
}

// ExecutorText names the executor of a run; empty if it has had none.
func (r *Run) ExecutorText() string {
	if r.Executor == nil {
		return ""
	}
	s := r.Executor.Host + "/" + r.Executor.Instance
	if r.Executor.Name != "" {
		s += ", " + r.Executor.Name
	}
	return s
}

// EstimateText writes when a queued run may be admitted; empty if that is not known.
func (w *RunWhy) EstimateText() string {
	if w.Estimate == 0 {
		return ""
	}
	return "in about " + text.About(time.Duration(w.Estimate)) + ", " + w.EstimateBasis
}

// NoLeader is the warning that no coordinator admits queued runs.
const NoLeader = "no coordinator is running, so queued runs wait: start 'berth coordinator', 'berth sidecar --coordinator' or 'berth dev'"

// RunList is a page of runs.
type RunList struct {
	Items []Run  `json:"items" nullable:"false"`
	Next  string `json:"next,omitempty" doc:"Where the next page begins, if there is more: give it as the query parameter cursor."`
	// Unreadable are records that can't be read: they are not among the items.
	Unreadable []Unreadable `json:"unreadable,omitempty" nullable:"false" doc:"Records that can't be read, of all pages; at most 100."`
}

// RunWhy explains what a run waits for.
type RunWhy struct {
	Run    Run    `json:"run"`
	Reason string `json:"reason" doc:"What it waits for; of a run that is not queued, its status in a sentence."`
	// Position, Line, InTheWay, Holders and Estimate are of a queued run.
	Position      int         `json:"position,omitempty" doc:"In the queue, from 1; left out if its time has not come."`
	Waiting       int         `json:"waiting,omitempty" doc:"How many runs are queued."`
	InTheWay      []Run       `json:"in_the_way,omitempty" nullable:"false" doc:"The runs in progress that count against the limit that blocks it, or have slots of the pools that it waits for; the earliest admitted first, at most 20."`
	Holders       []HolderRef `json:"holders,omitempty" nullable:"false" doc:"The holders of the slots that are short, up to ten for each pool."`
	Estimate      Duration    `json:"estimate,omitzero" doc:"When it may be admitted. Left out where it is not known: if a run in the way has not started, or no run of its name has ended."`
	EstimateBasis string      `json:"estimate_basis,omitempty" doc:"What the estimate is judged by."`
	// Steps are of a run in progress that has steps.
	Steps []StepHold `json:"steps,omitempty" nullable:"false" doc:"What its steps wait for, other than their needs and windows."`
}

// RunWhyOf returns the record of an explanation. Holds are what the steps of the run
// wait for.
func RunWhyOf(w *run.Why, holds []step.Hold) RunWhy {
	r := RunOf(w.Run)
	return RunWhy{
		Run: r, Reason: r.StatusText() + holdsText(holds), Position: w.Position, Waiting: w.Line,
		InTheWay: ListOf(w.InTheWay, RunOf).Items, Estimate: Duration(w.Estimate.In.Round(time.Second)), EstimateBasis: w.Estimate.Basis,
		Steps: StepHoldsOf(holds),
	}
}

// maxHolds bounds the holds that a reason names.
const maxHolds = 3

// holdsText follows the status of a run with what its steps wait for; it is empty if
// they wait for nothing.
func holdsText(holds []step.Hold) string {
	if s := HoldsSummary(holds); s != "" {
		return "; waiting: " + s
	}
	return ""
}

// HoldsSummary names what steps wait for, and not too much of it.
func HoldsSummary(holds []step.Hold) string {
	var all []string
	for _, h := range holds[:min(len(holds), maxHolds)] {
		all = append(all, h.String())
	}
	s := strings.Join(all, "; ")
	if more := len(holds) - maxHolds; more > 0 {
		s += fmt.Sprintf("; and %d more", more)
	}
	return s
}

// SetHolds sets what the steps of a run wait for as its reason.
func (r *Run) SetHolds(holds []step.Hold) {
	if len(holds) > 0 {
		r.BlockReason, r.BlockKind = HoldsSummary(holds), string(holds[0].Kind)
	}
}

// RunEvent is an event of a run.
type RunEvent struct {
	Type     string            `json:"type" doc:"Of the run: RunQueued, RunDue, RunDequeued, RunStarted, RunLaunchFailed, RunLost, RunSucceeded, RunFailed, RunCanceled. Of its step instances, the first 150 of them: StepStarted, StepSucceeded, StepFailed, StepRetried, StepCanceled, StepHandedBack, and of later ones StepFailed, 20 by each process; and StepRetried once for all that an operator retries. Of claims that carry it: StepSlotWaiting, StepSlotClaimed, StepSlotRenewed (the first time, and after a gap), StepSlotReleased, StepSlotLost. There may be others later."`
	At       time.Time         `json:"at"`
	By       string            `json:"by,omitempty" doc:"The instance that wrote it: host/instance."`
	Reason   string            `json:"reason,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Revision int64             `json:"revision" doc:"The order of all events of all runs."`
}

// RunEventOf returns the record of an event.
func RunEventOf(e run.LoggedEvent) RunEvent {
	return RunEvent{
		Type: string(e.Type), At: e.At, By: e.By, Reason: e.Reason, Metadata: e.Metadata, Revision: e.Revision,
	}
}
