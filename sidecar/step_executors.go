package sidecar

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// takeTimeout bounds the wait for the answer to a take. Then it is in doubt.
const takeTimeout = 5 * time.Second

// idOf names a run or a step instance as the keys of executors do.
func idOf(id store.StepID) string {
	if id.Step == "" {
		return id.Run
	}
	return id.String()
}

// ofStep tells whether an id is that of a step instance. Ids of runs have no slash.
func ofStep(id string) bool { return strings.Contains(id, "/") }

// fileOf names the file of an executor: no id has a tilde.
func fileOf(id string) string { return strings.ReplaceAll(id, "/", "~") }

// fitsLine tells whether a name can be kept: see [run.MaxText].
func fitsLine(name string) bool {
	return len(name) <= run.MaxText && pool.IsLine(name)
}

// counts are the metrics of what has an id.
func (x *executors) counts(id string) *runMetrics {
	if ofStep(id) {
		return x.ofSteps
	}
	return x.metrics
}

// line is how an executor stands in line for the slots of a step instance.
type line struct {
	id string // of the claim
	// wait bounds it; nil is what the settings say.
	wait *time.Duration
}

// take gives a step instance to an executor, with the slots that it needs. One that asks
// again, by its name, gets the same attempt. If ctx ends while it waits for slots,
// nothing is taken.
func (x *executors) take(ctx context.Context, id store.StepID, name string, ttl time.Duration, in line) (*executor, error) {
	by := run.Executor{Host: x.host, Instance: x.instance, Name: name}
	if !fitsLine(name) {
		return nil, problem.Field("executor", "%s is no name of an executor: allowed are up to %d bytes of text in one line", quote(name), run.MaxText)
	}
	if name == "" {
		by.Name = ulid.Make().String() // so that a start is known for ours if its answer was lost
	}
	end, err := x.enter(ctx, id.String())
	if err != nil {
		return nil, err
	}
	defer end()
	r, err := x.steps.Raw(ctx, id)
	if err != nil {
		return nil, err
	}
	d := doubt{id: id.String(), by: by, ttl: ttl}
	switch {
	case !r.Shape.External:
		return nil, problem.New(problem.StepTaken, "step %q of run %q is no external one: workers of queue %q take it", id.Step, id.Run, r.Shape.Queue)
	case r.Status == step.Running && *r.Executor == by: // the answer was lost
		on, err := x.found(context.WithoutCancel(ctx), d, r.Revision)
		if err != nil {
			return nil, err
		}
		return x.add(&executor{id: d.id, fence: r.Revision, room: on, step: r.Taken(), ttl: ttl})
	case r.RunEnded:
		return nil, problem.New(problem.StepTaken, "step instance %s of run %q is not to be had: its run was canceled, or has failed", id.Text(), id.Run)
	case r.Published == nil:
		return nil, problem.New(problem.StepTaken, "step instance %s of run %q is not to be had: its status is %s", id.Text(), id.Run, r.Status)
	}
	if slots := x.slotsOf(r.Published); len(slots) > 0 {
		return x.takeWith(ctx, r.Published, by, slots, ttl, in)
	}
	return x.takePlain(ctx, r.Published, d)
}

// slotsOf are what an instance takes of pools: its own, and one of its task's if that
// has a limit.
func (x *executors) slotsOf(p *step.Published) map[string]int {
	if p.Task == "" || !x.hasPool(step.TaskPool(p.Task)) {
		return p.Pools
	}
	slots := map[string]int{step.TaskPool(p.Task): 1}
	maps.Copy(slots, p.Pools)
	return slots
}

// takePlain takes an instance that needs no slots.
func (x *executors) takePlain(ctx context.Context, p *step.Published, d doubt) (*executor, error) {
	h := &home{x: x, asker: ctx}
	// Who has hung up leaves an instance that is lost with its ttl, and no doubt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
	defer cancel()
	lease, err := h.Lease(ctx)
	if err != nil {
		return nil, err
	}
	t, err := x.steps.Take(ctx, p, d.by, lease)
	if t == nil {
		d.room, d.published = h.room, p.Revision
		x.notStarted(d, err)
		return nil, err
	}
	return x.taken(ctx, t, h.room, d.ttl, err)
}

// takeWith takes an instance with its slots, for which it may stand in line.
func (x *executors) takeWith(ctx context.Context, p *step.Published, by run.Executor, slots map[string]int, ttl time.Duration, in line) (*executor, error) {
	opts := []berth.ClaimOption{
		berth.WithID(in.id), berth.WithPriority(p.Priority), berth.WithRun(p.Run, p.ID().Text()), berth.WithBind(bindStep),
		berth.WithSole(p.Revision),
	}
	if in.wait != nil {
		opts = append(opts, berth.WithWait(*in.wait))
	}
	var claim *berth.Claim
	t, err := x.steps.TakeWith(ctx, p, by, func(extra store.Extra) (int64, []*pb.ResponseOp, error) {
		c, err := x.claim(ctx, slots, append(opts, berth.WithExtra(extra))...)
		if err != nil {
			return 0, nil, err
		}
		claim = c
		return c.Fence(), c.Extra, nil
	})
	if claim == nil {
		if problem.CodeOf(err) == problem.ClaimCanceled {
			x.untake(p, by) // it may have been granted just then
		}
		return nil, err
	}
	return x.taken(context.WithoutCancel(ctx), t, &claimRoom{x: x, claim: claim}, ttl, err)
}

// taken adds an instance that was taken. If what it is to do can't be read, it has
// failed.
func (x *executors) taken(ctx context.Context, t *step.Taken, on room, ttl time.Duration, unread error) (*executor, error) {
	if unread != nil {
		_, _ = x.steps.Finish(ctx, t, step.Outcome{Status: step.Failed, Error: unread.Error()}, nil) // its lease ends it else
		on.Release()
		return nil, unread
	}
	return x.add(&executor{id: t.StepID.String(), fence: t.Revision, room: on, step: t, ttl: ttl})
}

// untake puts an instance back that was taken for somebody who had just left. Its slots
// are free already. If it fails, the next sweep finds the key that nobody speaks for.
func (x *executors) untake(p *step.Published, by run.Executor) {
	ctx, cancel := context.WithTimeout(x.quit, sweepTimeout)
	defer cancel()
	r, err := x.steps.Raw(ctx, p.ID())
	if err != nil || r.Status != step.Running || *r.Executor != by {
		return
	}
	t := r.Taken()
	t.Ready = *p
	if _, err := x.steps.HandBack(ctx, t, nil); err != nil {
		x.log.Debug("a step instance could not be put back", keyRun, p.ID().String(), keyError, err)
	}
}

// newsOfStep reads how it stands with an attempt of a step instance.
func (x *executors) newsOfStep(ctx context.Context, id store.StepID, fence int64, here bool) (news, error) {
	r, err := x.steps.Raw(ctx, id)
	if err != nil {
		return news{}, err
	}
	s := news{step: r.Taken()}
	switch {
	case r.EndFence == fence && fence > 0:
		s.against = problem.New(problem.StepEnded, "attempt %d of step instance %s of run %q was finished already", fence, id.Text(), id.Run)
	case s.step == nil || s.step.Revision != fence:
		s.against = lostAttempt(id.String(), fence, "its executor was not heard of in time, and somebody else may have it")
	case !r.Shape.External:
		s.against = lostAttempt(id.String(), fence, "a worker runs it")
	case !here && (r.Executor.Host != x.host || r.Executor.Instance != x.instance):
		s.against = problem.New(problem.NotHolder, "step instance %s of run %q was taken through %s/%s: send its heartbeats there", id.Text(), id.Run, r.Executor.Host, r.Executor.Instance)
	case !here:
		s.against = lostAttempt(id.String(), fence, "this server does not know it any more")
	case r.RunEnded:
		s.against, s.stops = problem.New(problem.RunEnded, "run %q was canceled, or has failed: stop, and finish step instance %s as canceled", id.Run, id.Text()), true
	case r.Canceled:
		s.against, s.stops = problem.New(problem.StepEnded, "step instance %s of run %q was canceled: stop, and finish it as canceled", id.Text(), id.Run), true
	}
	return s, nil
}

// settleStep looks what has become of a step instance in doubt.
func (x *executors) settleStep(ctx context.Context, d doubt) {
	id, err := store.ParseStepID(d.id)
	if err != nil {
		return // it was made from one
	}
	r, err := x.steps.Raw(ctx, id)
	switch code := problem.CodeOf(err); {
	case err == nil:
	case code == problem.RunNotFound || code == problem.StepNotFound:
		x.settled(d, nil)
		return
	default:
		return
	}
	if r.Status == step.Scheduled && r.Revision == d.published && !r.RunEnded {
		return // it may still come
	}
	if r.Status != step.Running || *r.Executor != d.by {
		x.settled(d, nil)
		return
	}
	at, err := x.leaseOf(ctx, d.id, r.Revision)
	switch {
	case err != nil:
	case at != d.room.Lease():
		x.settled(d, nil)
	default:
		x.settled(d, &executor{id: d.id, fence: r.Revision, room: d.room, step: r.Taken(), ttl: d.ttl})
	}
}

// bound begins the time that an attempt of a step instance may take, once that is known.
// It counts from when the attempt was started, by the wall clock.
func (x *executors) bound(e *executor) {
	if e.step == nil || e.overdue > 0 || e.step.Work.Timeout == 0 {
		return
	}
	left := time.Until(e.step.StartedAt.Add(time.Duration(e.step.Work.Timeout)))
	e.overdue = x.clock.Now() + max(left, 1)
}

// lookAtTimeout ends the attempt of a step instance of which the timeout has passed. Its
// executor hears of it, and has a moment to stop before its slots are given to others.
func (x *executors) lookAtTimeout(e *executor, now time.Duration) {
	if e.overdue == 0 || now < e.overdue || e.why != nil || x.closed {
		return
	}
	x.log.Info("a step instance took longer than it may", keyRun, e.id, keyFence, e.fence)
	e.why = lostAttempt(e.id, e.fence, "it took longer than %s", e.step.Work.Timeout)
	e.failed, e.giveUpAt = true, now+pool.RevokeGrace
	x.ofSteps.lost(lossTimeout)
}

// failOverdue finishes an attempt that took too long, and tells whether it has. If etcd
// does not take that, it counts as lost.
func (x *executors) failOverdue(e *executor) bool {
	x.mu.Lock()
	t, failed := e.step, e.failed && !e.gone
	x.mu.Unlock()
	if !failed {
		return false
	}
	_, err := x.steps.Finish(x.quit, t, step.Outcome{
		Status: step.Failed, Error: "it took longer than " + t.Work.Timeout.String(),
	}, nil)
	return err == nil || problem.CodeOf(err) == problem.StepLost
}

// lookAtRuns has the untimed executors of step instances stop whose runs have ended:
// those that have a ttl hear of it by their heartbeats, or their ttl ends. It reads what
// an earlier server has left, too, so that its timeout is known.
func (x *executors) lookAtRuns(ctx context.Context, known []*executor) {
	for _, e := range known {
		id, err := store.ParseStepID(e.id)
		if err != nil {
			continue
		}
		x.mu.Lock()
		idle := e.why != nil || e.gone || e.step != nil && e.ttl > 0
		x.mu.Unlock()
		if idle {
			continue
		}
		now, err := x.newsOfStep(ctx, id, e.fence, true)
		if err != nil {
			return
		}
		x.mu.Lock()
		switch {
		case e.why != nil || e.gone:
		case now.stops && e.ttl == 0:
			e.why, e.giveUpAt = now.against, x.clock.Now()+pool.RevokeGrace
		case now.step != nil && now.against == nil:
			e.step = now.step
			x.bound(e)
		}
		x.mu.Unlock()
	}
}
