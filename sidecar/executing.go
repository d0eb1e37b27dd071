package sidecar

import (
	"context"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// roomTimeout bounds the wait for a lease to start a run on.
	roomTimeout = 5 * time.Second
	// recordTimeout bounds the look at a run's record with a heartbeat: while etcd
	// is away, the trust in the lease decides.
	recordTimeout = time.Second
	// trustLook is how often a lease is looked at that was taken over.
	trustLook = 5 * time.Millisecond
)

// start gives a run to an executor. One that asks again, by its name, gets the
// same attempt.
func (x *executors) start(ctx context.Context, id, name string, ttl time.Duration) (*executor, error) {
	by := run.Executor{Host: x.host, Instance: x.instance, Name: name}
	if name == "" {
		by.Name = ulid.Make().String() // so that a start is known for ours if its answer was lost
	}
	end, err := x.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer end()
	home := &home{x: x, asker: ctx}
	// Who has hung up leaves a run that ends with its ttl, and no doubt.
	ctx = context.WithoutCancel(ctx)
	r, err := x.store.Start(ctx, id, by, home)
	on := home.room
	if err != nil {
		x.notStarted(doubt{id: id, by: by, room: on, ttl: ttl}, err)
		return nil, err
	}
	if name != "" {
		d := doubt{id: id, by: *r.Executor, room: on, ttl: ttl}
		if on, err = x.found(ctx, d, r.Revision); err != nil {
			return nil, err
		}
	}
	return x.add(&executor{id: id, fence: r.Revision, room: on, run: r, ttl: ttl})
}

// enter waits for its turn to start a run: one after the other, so that what is
// known of a run is known before the next one looks. The function that it returns
// ends the turn.
func (x *executors) enter(ctx context.Context, id string) (end func(), err error) {
	for {
		x.mu.Lock()
		if x.closed {
			x.mu.Unlock()
			return nil, errStopping
		}
		before := x.starts[id]
		if before == nil {
			mine := make(chan struct{})
			x.starts[id] = mine
			x.mu.Unlock()
			return func() {
				x.mu.Lock()
				defer x.mu.Unlock()
				delete(x.starts, id)
				close(mine)
			}, nil
		}
		x.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// notStarted takes that a start has failed: for certain, or so that it may still
// be made.
func (x *executors) notStarted(d doubt, err error) {
	if d.room == nil {
		return // it did not come to that
	}
	switch problem.CodeOf(err) {
	case problem.Invalid, problem.RunNotFound, problem.RunNotAdmitted, problem.RunTaken, problem.RunEnded, problem.CorruptValue,
		problem.EtcdDenied, problem.StepTaken:
		d.room.Release()
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.doubts = append(x.doubts, d)
}

// found returns the room that the key of a start is on: that of this one, or that of
// an earlier start by the same executor. If it is on no lease of ours, what was started
// will be lost with the lease that it is on.
func (x *executors) found(ctx context.Context, this doubt, fence int64) (room, error) {
	on := this.room
	at, err := x.leaseOf(ctx, this.id, fence)
	if err != nil {
		x.notStarted(this, err)
		return nil, err
	}
	if on != nil && at == on.Lease() {
		return on, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[this.id]; e != nil && e.fence == fence {
		return on, nil // add gives it back
	}
	if on != nil {
		on.Release()
	}
	for i, d := range x.doubts {
		if d.id == this.id && d.room.Lease() == at {
			x.doubts = slices.Delete(slices.Clone(x.doubts), i, i+1)
			return d.room, nil
		}
	}
	return nil, lostAttempt(this.id, fence, "the server that it was started through has left nothing to take over")
}

// leaseOf returns the lease that the key of a running attempt is on; 0 if the key
// is gone.
func (x *executors) leaseOf(ctx context.Context, id string, fence int64) (store.LeaseID, error) {
	try, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	resp, err := x.store.Backend.Range(try, &pb.RangeRequest{Key: []byte(x.store.Keys.Active(x.host) + id)})
	if err != nil {
		return 0, store.Problem("the start could not be seen", err)
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != fence {
		return 0, nil
	}
	return store.LeaseID(resp.Kvs[0].Lease), nil
}

// heartbeat takes that the executor of an attempt lives. An error says why the run
// is not its own any more.
func (x *executors) heartbeat(ctx context.Context, id string, fence int64) (*executor, error) {
	look, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	e, err := x.held(id, fence)
	if e == nil && err == nil && x.settle(look) {
		e, err = x.held(id, fence)
	}
	if err != nil {
		return nil, x.orEnded(look, id, fence, err)
	}
	now, unread := x.newsOf(look, id, fence, e != nil)
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
		return x.beat(e, now, unread)
	default:
		return nil, unread
	}
	if err != nil {
		if !now.stops {
			x.leftUs(id, fence, leftAs(err))
		}
		return nil, err
	}
	x.awaitTrust(look, e)
	return x.beat(e, now, nil)
}

// news is how it stands with an attempt, as its record says.
type news struct {
	run  *run.Run    // of a run
	step *step.Taken // of a step instance
	// against is why the attempt is not its executor's any more; nil if it is.
	against *problem.Error
	// stops tells that the executor has to stop, and to finish then.
	stops bool
}

// newsOf reads how it stands with an attempt; here tells whether it is known to this
// server.
func (x *executors) newsOf(ctx context.Context, id string, fence int64, here bool) (news, error) {
	if of, err := store.ParseStepID(id); err == nil {
		return x.newsOfStep(ctx, of, fence, here)
	}
	r, err := x.store.Get(ctx, id)
	if err != nil {
		return news{}, err
	}
	return news{run: r, against: x.verdict(r, fence, here)}, nil
}

// orEnded tells of an attempt that is lost whether its run has ended: then its slots
// were asked back because of that, and the executor has nothing to finish.
func (x *executors) orEnded(ctx context.Context, id string, fence int64, lost error) error {
	if ofStep(id) {
		return lost // it is to be finished even so
	}
	r, err := x.store.Get(ctx, id)
	if err != nil {
		return lost
	}
	ended := x.verdict(r, fence, true)
	if ended == nil || ended.Code != problem.RunEnded {
		return lost
	}
	x.leftUs(id, fence, leftAs(ended))
	return ended
}

// awaitTrust waits a moment for the first renewal of a lease that was taken over:
// an executor that is answered that it can't trust its run has to stop.
func (x *executors) awaitTrust(ctx context.Context, e *executor) {
	tick := time.NewTicker(trustLook)
	defer tick.Stop()
	for {
		if left, _ := e.room.ValidFor(); left > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-e.room.Context().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// beat begins the ttl of an attempt anew, with its record as it was read. If it
// could not be read, the last one counts, if there is one.
func (x *executors) beat(e *executor, now news, unread error) (*executor, error) {
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

// held returns the executor of an attempt; nil if it is not known here. An error
// says why the attempt is lost.
func (x *executors) held(id string, fence int64) (*executor, error) {
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

// verdict tells from its record whether an attempt still has a run; here tells
// whether it is known to this server.
func (x *executors) verdict(r *run.Run, fence int64, here bool) *problem.Error {
	switch {
	case r.Status == run.Canceled:
		return problem.New(problem.RunEnded, "run %q was canceled%s", r.ID, after(r.Error))
	case r.Status.Ended() && r.EndFence == fence:
		return problem.New(problem.RunEnded, "run %q has ended already: it has %s", r.ID, r.Status)
	case r.Status != run.Running || r.Revision != fence:
		return lostAttempt(r.ID, fence, "its executor was not heard of in time, and somebody else may have the run")
	case here:
		return nil
	case r.Executor == nil:
		return lostAttempt(r.ID, fence, "workers run its steps")
	case r.Executor.Host != x.host || r.Executor.Instance != x.instance:
		return problem.New(problem.NotHolder, "run %q was started through %s/%s: send its heartbeats there", r.ID, r.Executor.Host, r.Executor.Instance)
	}
	return lostAttempt(r.ID, fence, "this server does not know it any more")
}

// leftAs is how an attempt ends that a verdict has gone against.
func leftAs(verdict error) string {
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

// lostAttempt is the problem of an executor that has lost its run or step instance; why
// is formatted.
func lostAttempt(id string, fence int64, why string, args ...any) *problem.Error {
	if of, err := store.ParseStepID(id); err == nil {
		args = append([]any{fence, of.Text(), of.Run}, args...)
		return problem.New(problem.StepLost, "attempt %d of step instance %s of run %q is lost: "+why, args...)
	}
	return problem.New(problem.RunLost, "attempt %d of run %q is lost: "+why, append([]any{fence, id}, args...)...)
}
