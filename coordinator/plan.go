package coordinator

import (
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// Snapshot is the input of a [Plan].
type Snapshot struct {
	Now    time.Time
	Limits run.Limits
	// Queue holds the queued runs, and Deferred those that join it later, the next one
	// first; nil is none.
	Queue, Deferred *Queue
	// InProgress are the runs that are not started or running, in any order.
	InProgress []*run.Run
	// Alive has the ids of the runs with a living executor.
	Alive map[string]bool
	// WaitingSince is since when a run that is not started is known to wait for its
	// executor. A run that is missing has waited since its admission.
	WaitingSince map[string]time.Time
	// Space is the free capacity of the pools; nil while it is not known, and then no run
	// that needs pools is admitted.
	Space *pool.Space
	// Kept has the ids of the runs that are not started and whose slots are still held.
	Kept map[string]bool
	// Hold admits nothing: the free capacity of the pools will be known soon.
	Hold bool
	// StartTimeout is how long an admitted run waits for an executor; 0 is unlimited.
	StartTimeout time.Duration
	// MaxDue bounds the runs that join the queue in one plan.
	MaxDue int
	// MaxBlocks bounds the block reasons that a plan changes.
	MaxBlocks int
}

// Plan is the decision on a snapshot. Its runs are those of the snapshot.
//
// Admissions use the capacity that losses free. If a loss is refused because its run has
// changed, the admissions of the plan must not be made: they need a new snapshot.
type Plan struct {
	// Lost runs are running, but their executor is gone. Expired runs were admitted, but
	// not started in time. Both are in the order of the queue, to which they may return: a
	// later plan admits them again.
	Lost, Expired []*run.Run
	// Back are the runs that are not started and whose slots are not held any more: they
	// return to the queue, in its order.
	Back []*run.Run
	// Due are the runs that are due, the earliest first. They join the queue: a later plan
	// admits them.
	Due []Joining
	// Admit are the admitted runs, in the order of the queue.
	Admit []*run.Run
	// Blocks are the runs that stay in the queue for another reason than is recorded, or
	// whose wait for pools is not recorded yet, in its order.
	Blocks []Blocked
	// NextDeadline is when the next run expires, begins to reserve slots, or is due; zero
	// if there is none. Until then, a snapshot that differs only in its time has the same
	// plan.
	NextDeadline time.Time
}

// Joining is a run that joins the queue, after those that were submitted up to a
// revision.
type Joining struct {
	Run    *run.Run
	Behind int64
}

// Blocked is a run with the reason why it is still queued.
type Blocked struct {
	Run   *run.Run
	Block run.Block
	// Held states that pools block it from now on.
	Held bool
}

// Empty tells whether there is nothing to do.
func (p *Plan) Empty() bool {
	return len(p.Lost)+len(p.Expired)+len(p.Back)+len(p.Due)+len(p.Admit)+len(p.Blocks) == 0
}

// Plan decides what to do. It is pure: it reads only the snapshot, and changes nothing.
//
//  1. Reconcile. Running runs without a living executor are lost, admitted runs that were
//     not started in time have expired, and those whose slots are gone return to the
//     queue. From here on they count against no limit. While some return, no other run
//     gets slots: they are in the queue in the next plan.
//  2. Join. Deferred runs that are due join the queue, at the place that they would have if
//     they had been submitted then. They are in the queue in the next plan.
//  3. Admit. Runs are admitted in the order of the queue while fewer than
//     max_concurrent_runs are in progress. A run over a tag limit is skipped, and later
//     runs are tried; so is a run whose slots do not fit into its pools. An admitted run
//     counts at once, and takes its slots. The first run that is blocked by certain pools
//     reserves what it needs of them, once it has waited for their reserve_after: no later
//     run takes that. If more runs are in progress than a limit allows, none is stopped.
//  4. Block. Each remaining run is blocked by max_concurrent_runs if that is reached now,
//     else by the first of its tag limits that is reached, in the order of the limits, else
//     by its pools. The numbers are those after the admissions. A recorded reason about
//     pools stays while it is true: otherwise each slot would change the records of the
//     whole queue. A run that was skipped because of its pools ages from then on, even if
//     others reach a limit later in the plan.
func (s *Snapshot) Plan() Plan {
	var p Plan
	q := s.Queue.under(s.Limits)
	t := newTally(s.Limits, q.classes)
	s.reconcile(&p, t)
	s.join(&p)
	g := newGate(s, q, len(p.Back) > 0)
	if s.Hold {
		return p
	}
	p.Admit = t.admit(q, g)
	p.NextDeadline = sooner(p.NextDeadline, g.ages)
	p.Blocks = t.blocks(q, g, p.Admit, s.MaxBlocks)
	return p
}

// reconcile finds the runs that are in progress only by their records, and counts the
// others.
func (s *Snapshot) reconcile(p *Plan, t *tally) {
	for _, r := range s.InProgress {
		switch r.Status {
		case run.Running:
			if !s.Alive[r.ID] {
				p.Lost = append(p.Lost, r)
				continue
			}
		case run.NotStarted:
			if len(r.Pools) > 0 && !s.Kept[r.ID] {
				p.Back = append(p.Back, r)
				continue
			}
			if s.StartTimeout > 0 && r.Steps == 0 {
				since, ok := s.WaitingSince[r.ID]
				if !ok {
					since = r.AdmittedAt
				}
				deadline := since.Add(s.StartTimeout)
				if !s.Now.Before(deadline) {
					p.Expired = append(p.Expired, r)
					continue
				}
				p.NextDeadline = sooner(p.NextDeadline, deadline)
			}
		default:
			continue // it is not in progress
		}
		t.add(r)
	}
	slices.SortFunc(p.Lost, (*run.Run).Compare)
	slices.SortFunc(p.Expired, (*run.Run).Compare)
	slices.SortFunc(p.Back, (*run.Run).Compare)
}

// join finds the deferred runs that are due.
func (s *Snapshot) join(p *Plan) {
	for r := range s.Deferred.All() {
		if r.NotBefore.After(s.Now) {
			p.NextDeadline = sooner(p.NextDeadline, r.NotBefore.Time)
			break
		}
		if len(p.Due) < s.MaxDue {
			p.Due = append(p.Due, Joining{r, r.Created})
		}
	}
	if len(p.Due) == 0 {
		return
	}
	// Each run that was in the queue before a due run is found at the first due run after
	// it.
	place := func(r *run.Run) {
		at := r.JoinedAt()
		i, _ := slices.BinarySearchFunc(p.Due, at, func(j Joining, at time.Time) int { return j.Run.NotBefore.Compare(at) })
		if i < len(p.Due) {
			p.Due[i].Behind = max(p.Due[i].Behind, r.Place())
		}
	}
	for r := range s.Queue.All() {
		place(r)
	}
	for _, r := range s.InProgress {
		place(r)
	}
	for i := 1; i < len(p.Due); i++ {
		p.Due[i].Behind = max(p.Due[i].Behind, p.Due[i-1].Behind)
	}
}

// sooner returns the earlier of two times; a zero time is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
