package sidecar

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// sweepEvery is how often what is known here is held against etcd. It finds
	// what nobody asks about: runs that were canceled and whose executor is gone as
	// well.
	sweepEvery = 15 * time.Second
	// doubtEvery is how often starts are looked at of which the answer was lost.
	doubtEvery = time.Second
	// sweepTimeout bounds a sweep, and one try to delete a key.
	sweepTimeout = 2 * time.Second
)

// doubt is a start of which nobody knows whether it was made, or still will be.
type doubt struct {
	id string
	// published is when a step instance could be taken that was to be started so.
	published int64

	by   run.Executor
	room room
	ttl  time.Duration
}

// run looks at the executors until ctx ends: at their ttls, and apart from that,
// since it takes its time while etcd is away, at what etcd has.
func (x *executors) run(ctx context.Context) {
	var apart sync.WaitGroup
	defer apart.Wait()
	apart.Go(func() { x.compare(ctx) })
	tick := time.NewTicker(grace.Look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			x.look()
		case <-ctx.Done():
			return
		}
	}
}

// compare settles and sweeps until ctx ends.
func (x *executors) compare(ctx context.Context) {
	settle, sweep := time.NewTicker(doubtEvery), time.NewTicker(sweepEvery)
	defer settle.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-settle.C:
			x.settle(ctx)
		case <-sweep.C:
			if err := x.sweep(ctx); err != nil && ctx.Err() == nil {
				x.log.Debug("the executors could not be compared with etcd", keyError, err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// look ends the attempts of which the ttl has passed.
func (x *executors) look() {
	now := x.clock.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.byID {
		if e.giveUpAt > 0 && now >= e.giveUpAt && !x.closed {
			e.giveUpAt = 0
			x.tasks.Go(func() { x.giveUp(e) })
		}
		x.lookAtTimeout(e, now)
		if e.expires == 0 || now < e.expires || e.why != nil || x.closed {
			continue
		}
		x.log.Info("the executor of a run was not heard of within its ttl", keyRun, e.id, keyFence, e.fence, keyDuration, e.ttl)
		e.why = lostAttempt(e.id, e.fence, "no heartbeat came within its ttl of "+Duration(e.ttl).String())
		x.counts(e.id).lost(lossTTL)
		x.tasks.Go(func() { x.giveUp(e) })
	}
}

// giveUp deletes the key of an attempt, by which the coordinator knows that its
// executor is gone.
func (x *executors) giveUp(e *executor) {
	if !x.failOverdue(e) {
		if err := x.deleteKey(x.quit, e.id, e.fence); err != nil {
			return // the next server takes it over
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(e)
}

// deleteKey deletes the key of an attempt, and of no later one, however long that
// takes until ctx ends. That it is gone already is as good.
func (x *executors) deleteKey(ctx context.Context, id string, fence int64) error {
	key := x.store.Keys.Active(x.host) + id
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, lastPause
	_, err := backoff.Retry(ctx, func() (int64, error) {
		try, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		rev, err := store.Commit(try, x.store.Backend, []*pb.Compare{store.ModEquals(key, fence)}, store.Delete(key))
		if errors.Is(err, store.ErrChanged) {
			return 0, nil
		}
		return rev, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
	return err
}

// settle looks what has become of starts in doubt. One that was made is taken over
// from now on: its executor may ask again, and else its ttl ends it. One that was
// not made can't be any more once the run has moved on. It tells whether there was
// anything to settle.
func (x *executors) settle(ctx context.Context) bool {
	x.mu.Lock()
	doubts := x.doubts
	x.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	for _, d := range doubts {
		if ctx.Err() == nil {
			x.settleOne(ctx, d)
		}
	}
	return len(doubts) > 0
}

func (x *executors) settleOne(ctx context.Context, d doubt) {
	if d.published > 0 {
		x.settleStep(ctx, d)
		return
	}
	r, err := x.store.Get(ctx, d.id)
	if err != nil && problem.CodeOf(err) != problem.RunNotFound || err == nil && r.Status == run.NotStarted {
		return // it may still come
	}
	made := false
	if err == nil && r.Status == run.Running && *r.Executor == d.by {
		at, err := x.leaseOf(ctx, r.ID, r.Revision)
		if err != nil {
			return
		}
		made = at == d.room.Lease()
	}
	if !made {
		x.settled(d, nil)
		return
	}
	x.settled(d, &executor{id: d.id, fence: r.Revision, room: d.room, run: r, ttl: d.ttl})
}

// settled ends a doubt: by the attempt that was made, or nil if none can be any more.
func (x *executors) settled(d doubt, made *executor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.doubts, func(o doubt) bool { return o.room == d.room })
	if i < 0 {
		return // somebody else was faster
	}
	x.doubts = slices.Delete(slices.Clone(x.doubts), i, i+1)
	if e := x.byID[d.id]; made == nil || e != nil && e.fence == made.fence {
		d.room.Release() // its executor has asked again
		return
	}
	x.log.Info("a start was made of which the answer was lost", keyRun, d.id, keyFence, made.fence)
	_, _ = x.addLocked(made)
}

// sweep holds what is known here against etcd. An attempt whose key is gone has
// ended: the run was canceled, or finished elsewhere. A key on a lease of ours
// that nobody here knows was put for an earlier server, too late for it to be
// taken over: nobody will speak for it, and so it is deleted.
func (x *executors) sweep(ctx context.Context) error {
	x.mu.Lock()
	known := make([]*executor, 0, len(x.byID))
	for _, e := range x.byID {
		known = append(known, e)
	}
	x.mu.Unlock()
	try, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	prefix := x.store.Keys.Active(x.host)
	all, err := store.ReadAll(try, x.store.Backend, prefix)
	if err != nil {
		return err
	}
	seen := map[string]int64{}
	var strange []string
	x.mu.Lock()
	for _, kv := range all.KVs {
		id := strings.TrimPrefix(string(kv.Key), prefix)
		seen[id] = kv.ModRevision
		if x.keeps(store.LeaseID(kv.Lease)) && !x.knows(id) {
			strange = append(strange, id)
		}
	}
	for _, e := range known {
		if seen[e.id] != e.fence && !e.gone {
			x.counts(e.id).finished(e, endedElsewhere)
			x.drop(e)
		}
	}
	x.mu.Unlock()
	x.lookAtRuns(try, known)
	for _, id := range strange {
		x.log.Warn("nobody here knows an executor: it is taken to be gone", keyRun, id, keyFence, seen[id])
		if err := x.deleteKey(try, id, seen[id]); err != nil {
			return err
		}
	}
	return nil
}

// knows tells whether a key of a run may belong to somebody here.
func (x *executors) knows(id string) bool {
	if x.byID[id] != nil || x.starts[id] != nil {
		return true
	}
	for _, d := range x.doubts {
		if d.id == id {
			return true
		}
	}
	return false
}
