package executor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

const (
	// sweepEvery is how often what is known here is compared with etcd. That also finds
	// runs that were canceled and whose executors are gone.
	sweepEvery = 15 * time.Second
	// sweepTimeout bounds a sweep, and one try to delete a key.
	sweepTimeout = 2 * time.Second
	// firstPause and lastPause are those between tries to delete a key.
	firstPause, lastPause = 200 * time.Millisecond, 5 * time.Second
)

// Run checks the executors until ctx ends: their ttls, and asynchronously, since it takes
// its time while etcd does not answer, what etcd has.
func (x *Executors) Run(ctx context.Context) {
	var comparing sync.WaitGroup
	defer comparing.Wait()
	comparing.Go(func() { x.compare(ctx) })
	tick := time.NewTicker(grace.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			x.check()
		case <-ctx.Done():
			return
		}
	}
}

// compare resolves and sweeps until ctx ends.
func (x *Executors) compare(ctx context.Context) {
	resolve, sweep := time.NewTicker(resolveEvery), time.NewTicker(sweepEvery)
	defer resolve.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-resolve.C:
			x.resolve(ctx)
		case <-sweep.C:
			if err := x.sweep(ctx); err != nil && ctx.Err() == nil {
				x.log.Debug("the executors could not be compared with etcd", keyError, err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// check ends the attempts whose ttl or timeout has passed.
func (x *Executors) check() {
	now := x.clock.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.byID {
		if e.giveUpAt > 0 && now >= e.giveUpAt && !x.closed {
			e.giveUpAt = 0
			x.tasks.Go(func() { x.giveUp(e) })
		}
		x.checkTimeout(e, now)
		if e.expires == 0 || now < e.expires || e.why != nil || x.closed {
			continue
		}
		x.silent.Log(x.log, hclog.Info, "ttl", "an executor did not report within its ttl", keyRun, e.id, keyFence, e.fence, keyDuration, e.ttl)
		e.why = lostAttempt(e.id, e.fence, "its executor did not report within its ttl of "+text.Duration(e.ttl))
		x.counts(e.id).lost(lossTTL)
		x.tasks.Go(func() { x.giveUp(e) })
	}
}

// bound begins the time that an attempt of a step instance may take, once that is known. It
// counts from when the attempt was started, by the wall clock.
func (x *Executors) bound(e *Executor) {
	if e.step == nil || e.overdue > 0 || e.step.Work.Timeout == 0 {
		return
	}
	left := time.Until(e.step.StartedAt.Add(time.Duration(e.step.Work.Timeout)))
	e.overdue = x.clock.Now() + max(left, 1)
}

// checkTimeout ends the attempt of a step instance whose timeout has passed. Its executor
// is notified with its next heartbeat, and has [pool.RevokeGrace] to stop before its slots
// are free.
func (x *Executors) checkTimeout(e *Executor, now time.Duration) {
	if e.overdue == 0 || now < e.overdue || e.why != nil || x.closed {
		return
	}
	x.log.Info("a step instance took longer than it may", keyRun, e.id, keyFence, e.fence)
	e.why = lostAttempt(e.id, e.fence, "it took longer than %s", e.step.Work.Timeout)
	e.failed, e.giveUpAt = true, now+pool.RevokeGrace
	x.metrics.steps.lost(lossTimeout)
}

// giveUp deletes the key of an attempt, by which the coordinator knows that its executor is
// gone.
func (x *Executors) giveUp(e *Executor) {
	if !x.failOverdue(e) {
		if err := x.deleteKey(x.quit, e.id, e.fence.Revision()); err != nil {
			return // the next server takes it over
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(e)
}

// failOverdue finishes an attempt that took too long, and reports whether it has. If etcd
// refuses that, the attempt counts as lost.
func (x *Executors) failOverdue(e *Executor) bool {
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

// deleteKey deletes the key of an attempt, and of no later one, however long that takes
// until ctx ends. That it is gone already is no error.
func (x *Executors) deleteKey(ctx context.Context, id string, fence int64) error {
	key := x.runs.Keys.Active(x.host) + id
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, lastPause
	_, err := backoff.Retry(ctx, func() (int64, error) {
		try, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		rev, err := store.Commit(try, x.runs.Backend, []*pb.Compare{store.ModEquals(key, fence)}, store.Delete(key))
		if errors.Is(err, store.ErrChanged) {
			return 0, nil
		}
		return rev, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
	return err
}

// sweep compares what is known here with etcd. An attempt whose key is gone has ended: the
// run was canceled, or finished elsewhere. An orphaned key, on a lease of ours and of no
// executor here, was put for an earlier server, too late for it to be taken over, and is
// deleted.
func (x *Executors) sweep(ctx context.Context) error {
	x.mu.Lock()
	known := make([]*Executor, 0, len(x.byID))
	for _, e := range x.byID {
		known = append(known, e)
	}
	x.mu.Unlock()
	try, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	prefix := x.runs.Keys.Active(x.host)
	all, err := store.ReadAll(try, x.runs.Backend, prefix)
	if err != nil {
		return err
	}
	seen := map[string]int64{}
	var orphaned []string
	x.mu.Lock()
	for _, kv := range all.KVs {
		id := strings.TrimPrefix(string(kv.Key), prefix)
		seen[id] = kv.ModRevision
		if x.renews(store.LeaseID(kv.Lease)) && !x.knows(id) {
			orphaned = append(orphaned, id)
		}
	}
	for _, e := range known {
		if store.FenceAt(seen[e.id]) != e.fence && !e.gone {
			x.counts(e.id).finished(e, endedElsewhere)
			x.drop(e)
		}
	}
	x.mu.Unlock()
	x.checkRuns(try, known)
	for _, id := range orphaned {
		x.log.Warn("an orphaned key of an executor is deleted", keyRun, id, keyFence, seen[id])
		if err := x.deleteKey(try, id, seen[id]); err != nil {
			return err
		}
	}
	return nil
}

// knows reports whether a key may belong to an executor here.
func (x *Executors) knows(id string) bool {
	if x.byID[id] != nil || x.starts[id] != nil {
		return true
	}
	for _, p := range x.pending {
		if p.id == id {
			return true
		}
	}
	return false
}

// checkRuns has the untimed executors of step instances stop whose runs have ended: those
// with a ttl are notified by their heartbeats, or their ttl ends. It also reads what an
// earlier server has left, so that its timeout is known.
func (x *Executors) checkRuns(ctx context.Context, known []*Executor) {
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
		now, err := x.recordedStep(ctx, id, e.fence, true)
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
