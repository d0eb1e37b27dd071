package executor

import (
	"context"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// reserveTimeout bounds the wait for a lease to start a run on.
	reserveTimeout = 5 * time.Second
	// resolveEvery is how often starts are checked whose outcome is unknown.
	resolveEvery = time.Second
)

// pendingStart is a start whose outcome is unknown: it was made, was not made, or still
// will be.
type pendingStart struct {
	id string
	// published is when a step instance could be taken that was to be started so.
	published int64

	by  run.Executor
	on  reservation
	ttl time.Duration
}

// Start gives a run to an executor. One that asks again, by its name, gets the same attempt.
// An empty name is no name. The caller of ctx is recorded: see [access.Of].
func (x *Executors) Start(ctx context.Context, id, name string, ttl time.Duration) (*Executor, error) {
	begun, request := time.Now(), ctx
	by := run.Executor{Host: x.host, Instance: x.instance, Name: name, By: access.Of(ctx).String()}
	if name == "" {
		by.Name = ulid.Make().String() // so that a start is known for ours if its answer was lost
	}
	end, err := x.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer end()
	home := &home{x: x, request: request}
	// A client that hangs up leaves a run that ends with its ttl, and no unknown outcome.
	ctx = context.WithoutCancel(ctx)
	r, err := x.runs.Start(ctx, id, by, home)
	on := home.on
	if err != nil {
		x.notStarted(pendingStart{id: id, by: by, on: on, ttl: ttl}, err)
		return nil, err
	}
	if name != "" {
		p := pendingStart{id: id, by: *r.Executor, on: on, ttl: ttl}
		if on, err = x.found(ctx, p, r.Fence()); err != nil {
			return nil, err
		}
	}
	return x.add(x.traced(request, &Executor{id: id, fence: r.Fence(), on: on, run: r, ttl: ttl}, begun))
}

// enter waits for its turn to start a run: one after the other, so that what is known of a
// run is known before the next start checks it. The function that it returns ends the turn.
func (x *Executors) enter(ctx context.Context, id string) (end func(), err error) {
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

// notStarted records that a start has failed: for certain, or so that it may still be made.
func (x *Executors) notStarted(p pendingStart, err error) {
	if p.on == nil {
		return // it did not come to that
	}
	switch problem.CodeOf(err) {
	case problem.Invalid, problem.RunNotFound, problem.RunNotAdmitted, problem.RunTaken, problem.RunEnded, problem.CorruptValue,
		problem.EtcdDenied, problem.StepTaken:
		p.on.Release()
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pending = append(x.pending, p)
}

// found returns the reservation that the key of a start is on: that of this one, or that of
// an earlier start by the same executor. If it is on no lease of ours, what was started
// will be lost with the lease that it is on.
func (x *Executors) found(ctx context.Context, this pendingStart, fence store.Fence) (reservation, error) {
	on := this.on
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
		return on, nil // add releases it
	}
	if on != nil {
		on.Release()
	}
	for i, p := range x.pending {
		if p.id == this.id && p.on.Lease() == at {
			x.pending = slices.Delete(slices.Clone(x.pending), i, i+1)
			return p.on, nil
		}
	}
	return nil, lostAttempt(this.id, fence, "the server that it was started through has left nothing to take over")
}

// leaseOf returns the lease that the key of a running attempt is on; 0 if the key is gone.
func (x *Executors) leaseOf(ctx context.Context, id string, fence store.Fence) (store.LeaseID, error) {
	try, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	resp, err := x.runs.Backend.Range(try, &pb.RangeRequest{Key: []byte(x.runs.Keys.Active(x.host) + id)})
	if err != nil {
		return 0, store.Problem("the start could not be seen", err)
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != fence.Revision() {
		return 0, nil
	}
	return store.LeaseID(resp.Kvs[0].Lease), nil
}

// resolve finds out what has become of pending starts. One that was made is taken over from
// now on: its executor may ask again, or its ttl ends it. One that was not made can't be any
// more once the run has moved on. It reports whether there were any.
func (x *Executors) resolve(ctx context.Context) bool {
	x.mu.Lock()
	pending := x.pending
	x.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	for _, p := range pending {
		if ctx.Err() == nil {
			x.resolveOne(ctx, p)
		}
	}
	return len(pending) > 0
}

func (x *Executors) resolveOne(ctx context.Context, p pendingStart) {
	if p.published > 0 {
		x.resolveTake(ctx, p)
		return
	}
	r, err := x.runs.Get(ctx, p.id)
	if err != nil && problem.CodeOf(err) != problem.RunNotFound || err == nil && r.Status == run.NotStarted {
		return // it may still be made
	}
	made := false
	if err == nil && r.Status == run.Running && *r.Executor == p.by {
		at, err := x.leaseOf(ctx, r.ID, r.Fence())
		if err != nil {
			return
		}
		made = at == p.on.Lease()
	}
	if !made {
		x.resolved(p, nil)
		return
	}
	x.resolved(p, &Executor{id: p.id, fence: r.Fence(), on: p.on, run: r, ttl: p.ttl})
}

// resolved ends a pending start: with the attempt that was made, or nil if none can be any
// more.
func (x *Executors) resolved(p pendingStart, made *Executor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.pending, func(o pendingStart) bool { return o.on == p.on })
	if i < 0 {
		return // another goroutine was faster
	}
	x.pending = slices.Delete(slices.Clone(x.pending), i, i+1)
	if e := x.byID[p.id]; made == nil || e != nil && e.fence == made.fence {
		p.on.Release() // its executor has asked again
		return
	}
	x.log.Info("a start was made of which the answer was lost", keyRun, p.id, keyFence, made.fence)
	_, _ = x.addLocked(made)
}
