package executor

import (
	"context"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// recordTimeout bounds the read of a record with a heartbeat: while etcd does not
	// answer, the validity of the lease decides.
	recordTimeout = time.Second
	// validEvery is how often a lease is checked that was taken over.
	validEvery = 5 * time.Millisecond
)

// Heartbeat records that the executor of an attempt lives. An error says why the attempt is
// not its own any more. The caller of ctx must be who started or took it, or an operator.
func (x *Executors) Heartbeat(ctx context.Context, id string, fence store.Fence) (*Executor, error) {
	reading, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	e, err := x.held(id, fence)
	if e == nil && err == nil && x.resolve(reading) {
		e, err = x.held(id, fence)
	}
	if err != nil {
		return nil, x.orEnded(reading, id, fence, err)
	}
	now, unread := x.recorded(reading, id, fence, e != nil)
	switch code := problem.CodeOf(unread); {
	case unread == nil:
		if now.against != nil {
			err = now.against
		}
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case e == nil || code == problem.RunNotFound || code == problem.StepNotFound:
		err = unread
	case code == problem.EtcdUnavailable || code == problem.EtcdDenied:
		if refused := MayReport(ctx, x.executorOf(e)); refused != nil {
			return nil, refused
		}
		return x.beat(e, now, unread)
	default:
		return nil, unread
	}
	if err != nil {
		if !now.stops {
			x.Ended(id, fence, endedAs(err))
		}
		return nil, err
	}
	if refused := MayReport(ctx, now.executor()); refused != nil {
		return nil, refused
	}
	x.awaitValid(reading, e)
	return x.beat(e, now, nil)
}

// record is an attempt as its record in etcd says.
type record struct {
	run  *run.Run    // of a run
	step *step.Taken // of a step instance
	// against is why the attempt is not its executor's any more; nil if it is.
	against *problem.Error
	// stops means that the executor has to stop, and then to finish.
	stops bool
}

// executor returns the executor of the record; nil if there is no record.
func (r record) executor() *run.Executor {
	switch {
	case r.step != nil:
		return r.step.Executor
	case r.run != nil:
		return r.run.Executor
	}
	return nil
}

// record returns the record of an attempt as it was read last.
func (e *Executor) record() record { return record{run: e.run, step: e.step} }

// executorOf returns the executor of an attempt as it was read last; nil if it was not yet.
func (x *Executors) executorOf(e *Executor) *run.Executor {
	x.mu.Lock()
	defer x.mu.Unlock()
	return e.record().executor()
}

// IsOf reports whether this server knows that an identity has the attempt of a run or a step instance.
func (x *Executors) IsOf(id store.StepID, who access.Identity) bool {
	x.mu.Lock()
	e := x.byID[idOf(id)]
	x.mu.Unlock()
	if e == nil {
		return false
	}
	by := x.executorOf(e)
	return by != nil && who.Is(by.By)
}

// MayReport returns nil if the caller of ctx may report for an executor: it is the identity that
// started or took the attempt, or an operator of everything. Otherwise it returns the refusal.
func MayReport(ctx context.Context, e *run.Executor) error {
	if e != nil && access.Of(ctx).Is(e.By) {
		return nil
	}
	return access.Allow(ctx, access.Operate, access.Everything)
}

// recorded reads the record of an attempt; here is whether this server knows it.
func (x *Executors) recorded(ctx context.Context, id string, fence store.Fence, here bool) (record, error) {
	if of, err := store.ParseStepID(id); err == nil {
		return x.recordedStep(ctx, of, fence, here)
	}
	r, err := x.runs.Get(ctx, id)
	if err != nil {
		return record{}, err
	}
	return record{run: r, against: x.verdict(r, fence, here)}, nil
}

// orEnded returns the error of a lost attempt, or that its run has ended: then its slots
// were revoked for that reason, and the executor has nothing to finish.
func (x *Executors) orEnded(ctx context.Context, id string, fence store.Fence, lost error) error {
	if ofStep(id) {
		return lost // it is to be finished even so
	}
	r, err := x.runs.Get(ctx, id)
	if err != nil {
		return lost
	}
	ended := x.verdict(r, fence, true)
	if ended == nil || ended.Code != problem.RunEnded {
		return lost
	}
	x.Ended(id, fence, endedAs(ended))
	return ended
}

// awaitValid waits until ctx ends for the first renewal of a lease that was taken over: an
// executor that is answered that its attempt is not valid has to stop.
func (x *Executors) awaitValid(ctx context.Context, e *Executor) {
	tick := time.NewTicker(validEvery)
	defer tick.Stop()
	for {
		if left, _ := e.on.ValidFor(); left > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-e.on.Context().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// beat begins the ttl of an attempt again, with its record as it was read. If it could not
// be read, the last one counts, if there is one.
func (x *Executors) beat(e *Executor, now record, unread error) (*Executor, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case e.why != nil:
		return nil, e.why
	case e.gone:
		return nil, lostAttempt(e.id, e.fence, "it has ended meanwhile")
	case now.run != nil || now.step != nil:
		e.run, e.step = now.run, now.step
		x.bound(e)
	case e.run == nil && e.step == nil:
		return nil, unread
	}
	x.extend(e)
	return e, nil
}

// held returns the executor of an attempt; nil if this server does not know it. An error
// says why the attempt is lost.
func (x *Executors) held(id string, fence store.Fence) (*Executor, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil && e.fence == fence {
		if e.why != nil {
			return nil, e.why
		}
		return e, nil
	}
	if why := x.ended.Why(attempt(id, fence), x.clock.Now()); why != nil {
		return nil, why
	}
	return nil, nil
}

// verdict returns why an attempt no longer has a run, by the run's record; nil if it has.
// here is whether this server knows the attempt.
func (x *Executors) verdict(r *run.Run, fence store.Fence, here bool) *problem.Error {
	switch {
	case r.Status == run.Canceled:
		return problem.New(problem.RunEnded, "run %q was canceled%s", r.ID, after(r.Error))
	case r.Status.Ended() && r.EndFence == fence:
		return problem.New(problem.RunEnded, "run %q has ended already: it has %s", r.ID, r.Status)
	case r.Status != run.Running || r.Fence() != fence:
		return lostAttempt(r.ID, fence, "it had no heartbeat in time, and another executor may have the run")
	case here:
		return nil
	case r.Executor == nil:
		return lostAttempt(r.ID, fence, "workers run its steps")
	case r.Executor.Host != x.host || r.Executor.Instance != x.instance:
		return problem.New(problem.NotHolder, "run %q was started through %s/%s: send its heartbeats there", r.ID, r.Executor.Host, r.Executor.Instance)
	}
	return lostAttempt(r.ID, fence, "this server does not know it any more")
}

// endedAs returns the status of an attempt that ends because of a verdict.
func endedAs(verdict error) string {
	if code := problem.CodeOf(verdict); code == problem.RunLost || code == problem.StepLost {
		return lossTaken
	}
	return endedElsewhere
}

func after(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// lostAttempt returns the problem of an executor that has lost its run or step instance; why
// is formatted.
func lostAttempt(id string, fence store.Fence, why string, args ...any) *problem.Error {
	if of, err := store.ParseStepID(id); err == nil {
		args = append([]any{fence, of.Text(), of.Run}, args...)
		return problem.New(problem.StepLost, "attempt %d of step instance %s of run %q is lost: "+why, args...)
	}
	return problem.New(problem.RunLost, "attempt %d of run %q is lost: "+why, append([]any{fence, id}, args...)...)
}
