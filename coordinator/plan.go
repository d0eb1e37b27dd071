package coordinator

import (
	"slices"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// Snapshot is all that a plan is made from.
type Snapshot struct {
	Now    time.Time
	Limits run.Limits
	// Queue has the queued runs, and Deferred those that are to join it later: the next
	// first; nil is none.
	Queue, Deferred *Queue
	// InProgress are the runs that are not started or running, in any order.
	InProgress []*run.Run
	// Alive has the ids of the runs whose executor is seen to live.
	Alive map[string]bool
	// WaitingSince is since when a run that is not started is known to wait for its
	// executor; of one that is missing it is since its admission.
	WaitingSince map[string]time.Time
	// Space is what there is of the pools; nil while it is not known, and then no run
	// that needs any goes.
	Space *pool.Space
	// Kept has the ids of the runs that are not started and whose slots are kept for
	// them, as far as is known.
	Kept map[string]bool
	// Hold has nobody admitted: what there is of the pools is about to be known.
	Hold bool
	// StartTimeout is how long an admitted run waits for an executor; 0 is for ever.
	StartTimeout time.Duration
	// MaxDue bounds how many runs join the queue in one plan.
	MaxDue int
	// MaxBlocks bounds how many reasons a plan changes: a full queue has as many of
	// them as runs.
	MaxBlocks int
}

// Plan is what is to be done about a snapshot. Its runs are those of the snapshot.
//
// Admissions take the room that losses make. If a loss is refused because its run
// has moved on, the admissions of the plan must not be made: a new snapshot tells
// what room there is.
type Plan struct {
	// Lost runs are running, and their executor is gone. Expired ones were admitted,
	// and nobody came for them. Both are in the order of the queue, which they may
	// go back to: a later plan admits them again, never this one.
	Lost, Expired []*run.Run
	// Back are the runs that nobody has started and whose slots are not kept any more:
	// they go back to the queue, in its order.
	Back []*run.Run
	// Due are the runs whose time has come, the earliest first. They join the queue: a later
	// plan admits them.
	Due []Joining
	// Admit are the runs that may go, in the order of the queue.
	Admit []*run.Run
	// Blocks are the runs that stay in the queue for another reason than is noted
	// with them, or of which it is not noted yet that pools hold them up, in its order.
	Blocks []Blocked
	// NextDeadline is when the next run expires unless somebody starts it, comes to
	// reserve slots, or is due; zero if there is none. Until then a snapshot that differs in its time alone has the same
	// plan.
	NextDeadline time.Time
}

// Joining is a run that joins the queue, behind those that were submitted up to a
// revision.
type Joining struct {
	Run    *run.Run
	Behind int64
}

// Blocked is a run with the reason for which it is still queued.
type Blocked struct {
	Run   *run.Run
	Block run.Block
	// Held tells that pools hold it up from now on.
	Held bool
}

// Empty tells whether there is nothing to do.
func (p *Plan) Empty() bool {
	return len(p.Lost)+len(p.Expired)+len(p.Back)+len(p.Due)+len(p.Admit)+len(p.Blocks) == 0
}

// Plan decides what is to be done. It is pure: it reads nothing but the snapshot,
// changes nothing, and decides the same about the same.
//
//  1. Reconcile. Running runs whose executor is not seen are lost, admitted ones
//     that nobody has started in time have expired, and those whose slots are gone
//     go back. From here on they count against no limit. While some go back, nobody
//     else gets slots: they are in the queue when the next plan is made.
//  2. Join. Deferred runs whose time has come join the queue, in the place that they would
//     have if they had been submitted then. They are in it when the next plan is made.
//  3. Admit. Runs go in the order of the queue while fewer than
//     max_concurrent_runs are in progress. One that meets a limit of a tag that is
//     reached is passed over, and those behind it are tried; so is one whose slots
//     do not fit into its pools. Each that goes counts at once, and takes its slots.
//     The first that is held up by some pools keeps what it needs of them together,
//     once it has waited for as long as they say: none behind it takes that. Nobody
//     is stopped where more are in progress than a limit allows.
//  4. Block. Each run that is left is held up by max_concurrent_runs if that is
//     reached now, and else by the first limit of its tags that is, in the order of
//     the limits, and then by its pools. The numbers are those of now: after
//     admitting, every run with such tags reads the same. What is noted of pools stays
//     while it is true, or each slot would have the whole queue written anew. A run that
//     was passed over because of its pools ages from then on, even if others reach a
//     limit later in the plan.
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

// reconcile finds the runs that are in progress by their record only, and counts
// the others.
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

// join finds the deferred runs whose time has come.
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
	// Of those that were there before its time came, each is found with the first that
	// stands behind it.
	stand := func(r *run.Run) {
		at := r.JoinedAt()
		i, _ := slices.BinarySearchFunc(p.Due, at, func(j Joining, at time.Time) int { return j.Run.NotBefore.Compare(at) })
		if i < len(p.Due) {
			p.Due[i].Behind = max(p.Due[i].Behind, r.Place())
		}
	}
	for r := range s.Queue.All() {
		stand(r)
	}
	for _, r := range s.InProgress {
		stand(r)
	}
	for i := 1; i < len(p.Due); i++ {
		p.Due[i].Behind = max(p.Due[i].Behind, p.Due[i-1].Behind)
	}
}

// sooner is the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
