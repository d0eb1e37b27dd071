package executor

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// takeTimeout bounds the wait for the answer to a take. Then its outcome is unknown.
const takeTimeout = 5 * time.Second

// Waiter says how an executor waits for the slots of a step instance.
type Waiter struct {
	ID string // of the claim
	// Wait bounds the wait; nil is the default of the client.
	Wait *time.Duration
}

// Take gives a step instance to an executor, with the slots that it needs. One that asks
// again, by its name, gets the same attempt. The caller of ctx needs [access.Execute] for the
// queue, and is recorded. If ctx ends while it waits for slots, nothing
// is taken.
func (x *Executors) Take(ctx context.Context, id store.StepID, name string, ttl time.Duration, w Waiter) (*Executor, error) {
	begun := time.Now()
	by := run.Executor{Host: x.host, Instance: x.instance, Name: name, By: access.Of(ctx).String()}
	if len(name) > run.MaxText || !pool.IsLine(name) {
		return nil, problem.Field("executor", "%s is no name of an executor: use up to %d bytes of text in one line", problem.Quote(name), run.MaxText)
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
	if err := access.Allow(ctx, access.Execute, r.Shape.Queue); err != nil {
		return nil, err
	}
	p := pendingStart{id: id.String(), by: by, ttl: ttl}
	switch {
	case !r.Shape.External:
		return nil, problem.New(problem.StepTaken, "step %q of run %q is no external one: workers of queue %q take it", id.Step, id.Run, r.Shape.Queue)
	case r.Status == step.Running && *r.Executor == by: // the answer was lost
		on, err := x.found(context.WithoutCancel(ctx), p, r.Fence())
		if err != nil {
			return nil, err
		}
		return x.add(x.traced(ctx, &Executor{id: p.id, fence: r.Fence(), on: on, step: r.Taken(), ttl: ttl}, begun))
	case r.RunEnded:
		return nil, problem.New(problem.StepTaken, "step instance %s of run %q can't be taken: its run was canceled, or has failed", id.Text(), id.Run)
	case r.Published == nil:
		return nil, problem.New(problem.StepTaken, "step instance %s of run %q can't be taken: its status is %s", id.Text(), id.Run, r.Status)
	}
	if slots := x.slotsOf(r.Published); len(slots) > 0 {
		return x.takeWith(ctx, r.Published, by, slots, ttl, w, begun)
	}
	return x.takePlain(ctx, r.Published, p, begun)
}

// slotsOf returns what an instance takes of pools: its own slots, and one of its task's pool
// if that has a limit.
func (x *Executors) slotsOf(p *step.Published) map[string]int {
	if p.Task == "" || !x.hasPool(step.TaskPool(p.Task)) {
		return p.Pools
	}
	slots := map[string]int{step.TaskPool(p.Task): 1}
	maps.Copy(slots, p.Pools)
	return slots
}

// takePlain takes an instance that needs no slots.
func (x *Executors) takePlain(ctx context.Context, of *step.Published, p pendingStart, begun time.Time) (*Executor, error) {
	h := &home{x: x, request: ctx}
	// A client that hangs up leaves an instance that is lost with its ttl, and no unknown
	// outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
	defer cancel()
	lease, err := h.Lease(ctx)
	if err != nil {
		return nil, err
	}
	t, err := x.steps.Take(ctx, of, p.by, lease)
	if t == nil {
		p.on, p.published = h.on, of.Revision
		x.notStarted(p, err)
		return nil, err
	}
	return x.taken(ctx, t, h.on, p.ttl, begun, err)
}

// takeWith takes an instance with its slots, for which it may wait.
func (x *Executors) takeWith(ctx context.Context, of *step.Published, by run.Executor, slots map[string]int, ttl time.Duration, w Waiter, begun time.Time) (*Executor, error) {
	opts := []instance.ClaimOption{
		instance.WithOwnID(w.ID), instance.WithPriority(of.Priority), instance.WithRun(of.Run, of.ID().Text()), instance.WithBind(run.BindStep),
		instance.WithSole(of.Revision, false), instance.WithClaimedBy(by.By),
	}
	if w.Wait != nil {
		opts = append(opts, instance.WithWait(*w.Wait))
	}
	var claim *instance.Claim
	t, err := x.steps.TakeWith(ctx, of, by, func(extra store.Extra) (store.Fence, []*pb.ResponseOp, error) {
		c, err := x.claim(ctx, slots, append(opts, instance.WithExtra(extra))...)
		if err != nil {
			return 0, nil, err
		}
		claim = c
		return c.Fence(), c.Extra, nil
	})
	if claim == nil {
		if problem.CodeOf(err) == problem.ClaimCanceled {
			x.untake(of, by) // it may have been granted just then
		}
		return nil, err
	}
	return x.taken(context.WithoutCancel(ctx), t, &claimReservation{x: x, claim: claim}, ttl, begun, err)
}

// taken adds an instance that was taken. If what it is to do can't be read, it has failed.
func (x *Executors) taken(ctx context.Context, t *step.Taken, on reservation, ttl time.Duration, begun time.Time, unread error) (*Executor, error) {
	var mismatch *step.MismatchError
	if errors.As(unread, &mismatch) {
		x.log.Error("a step instance was not given to an executor: its publication is not what was submitted, so another user of etcd has written it",
			keyRun, problem.Clip(t.StepID.String()), "queue", mismatch.Queue, "reason", mismatch.Why)
		_ = x.steps.Return(ctx, t, mismatch, nil) // if that fails, its lease ends it
		on.Release()
		return nil, problem.New(problem.StepTaken, "%w", mismatch)
	}
	if unread != nil {
		// If that fails, its lease ends it.
		_, _ = x.steps.Finish(ctx, t, step.Outcome{Status: step.Failed, Error: unread.Error()}, nil)
		on.Release()
		return nil, unread
	}
	return x.add(x.traced(ctx, &Executor{id: t.StepID.String(), fence: t.Fence(), on: on, step: t, ttl: ttl}, begun))
}

// untake returns an instance to its queue that was taken for a client that had just hung up.
// Its slots are free already. If it fails, the next sweep finds the orphaned key.
func (x *Executors) untake(of *step.Published, by run.Executor) {
	ctx, cancel := context.WithTimeout(x.quit, sweepTimeout)
	defer cancel()
	r, err := x.steps.Raw(ctx, of.ID())
	if err != nil || r.Status != step.Running || *r.Executor != by {
		return
	}
	t := r.Taken()
	t.Ready = *of
	if _, err := x.steps.HandBack(ctx, t, nil); err != nil {
		x.log.Debug("a step instance could not be returned to its queue", keyRun, of.ID().String(), keyError, err)
	}
}

// recordedStep reads the record of an attempt of a step instance.
func (x *Executors) recordedStep(ctx context.Context, id store.StepID, fence store.Fence, here bool) (record, error) {
	r, err := x.steps.Raw(ctx, id)
	if err != nil {
		return record{}, err
	}
	s := record{step: r.Taken()}
	switch {
	case r.EndFence == fence && fence > 0:
		s.against = problem.New(problem.StepEnded, "attempt %d of step instance %s of run %q was finished already", fence, id.Text(), id.Run)
	case s.step == nil || s.step.Fence() != fence:
		s.against = lostAttempt(id.String(), fence, "it was not renewed in time, and another executor may have it")
	case !r.Shape.External:
		s.against = lostAttempt(id.String(), fence, "a worker runs it")
	case !here && (r.Executor.Host != x.host || r.Executor.Instance != x.instance):
		s.against = problem.New(problem.NotHolder, "step instance %s of run %q was taken through %s/%s: renew it there", id.Text(), id.Run, r.Executor.Host, r.Executor.Instance)
	case !here:
		s.against = lostAttempt(id.String(), fence, "this server does not know it any more")
	case r.RunEnded:
		s.against, s.stops = problem.New(problem.RunEnded, "run %q was canceled, or has failed: stop, and finish step instance %s as canceled", id.Run, id.Text()), true
	case r.Canceled:
		s.against, s.stops = problem.New(problem.StepEnded, "step instance %s of run %q was canceled: stop, and finish it as canceled", id.Text(), id.Run), true
	}
	return s, nil
}

// resolveTake finds out what has become of a step instance whose take has an unknown outcome.
func (x *Executors) resolveTake(ctx context.Context, p pendingStart) {
	id, err := store.ParseStepID(p.id)
	if err != nil {
		return // it was made from one
	}
	r, err := x.steps.Raw(ctx, id)
	switch code := problem.CodeOf(err); {
	case err == nil:
	case code == problem.RunNotFound || code == problem.StepNotFound:
		x.resolved(p, nil)
		return
	default:
		return
	}
	if r.Status == step.Scheduled && r.Revision == p.published && !r.RunEnded {
		return // it may still be made
	}
	if r.Status != step.Running || *r.Executor != p.by {
		x.resolved(p, nil)
		return
	}
	at, err := x.leaseOf(ctx, p.id, r.Fence())
	switch {
	case err != nil:
	case at != p.on.Lease():
		x.resolved(p, nil)
	default:
		x.resolved(p, &Executor{id: p.id, fence: r.Fence(), on: p.on, step: r.Taken(), ttl: p.ttl})
	}
}
