package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// maxBridged bounds the runs with pools that one tick admits. The next tick continues.
const maxBridged = 256

// bridged is a run that is admitted with its slots.
type bridged struct {
	old *run.Run
	rec run.Record
	req pool.Request

	claim *pool.Claim
	err   error
}

// bridge admits runs together with their slots. Each is admitted or not by itself. All
// compare the leader's key as it is now: when that has been written again, none of them
// can happen any more.
func (l *leader) bridge(ctx context.Context, runs []*run.Run, now time.Time) error {
	if len(runs) > maxBridged {
		runs, l.dirty = runs[:maxBridged], true
	}
	all := make([]*bridged, 0, len(runs))
	for _, r := range runs {
		b := &bridged{old: r}
		claim := ulid.Make().String()
		rec, event := r.Record.Admit(claim, now)
		logged, err := l.journal.Op(ctx, r.ID, event)
		if err != nil {
			return err
		}
		key := l.cfg.Keys.Run(r.ID)
		b.rec, b.req = rec, pool.Request{
			ID: claim, Slots: r.Pools, Priority: r.Priority, Bridge: true,
			Holder: pool.Holder{Run: r.ID, Bind: run.BindBridge},
			Extra: store.Extra{
				If: append(l.sameHistory(), l.fence.Unchanged(), store.ModEquals(l.cfg.Keys.Limits(), l.state.limitsRev),
					store.ModEquals(key, r.Revision)),
				Then: []*pb.RequestOp{store.Put(key, rec.Encode(), 0), logged},
			},
		}
		all = append(all, b)
	}
	try, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var g errgroup.Group
	for _, b := range all {
		g.Go(func() error {
			b.claim, b.err = l.pools.claimer.engine.Claim(try, &b.req)
			return nil
		})
	}
	_ = g.Wait() // each has its own error
	return l.bridgedAll(all, now)
}

// bridgedAll applies the results of admissions.
func (l *leader) bridgedAll(all []*bridged, now time.Time) error {
	var failed error
	for _, b := range all {
		switch code := problem.CodeOf(b.err); {
		case b.err == nil:
			l.state.put(&run.Run{ID: b.old.ID, Record: b.rec, Created: b.old.Created, Revision: b.claim.Fence.Revision()})
			l.bridgedAt = max(l.bridgedAt, b.claim.Fence.Revision())
			l.metrics.admitted.Inc()
			l.metrics.estimates.admitted(b.old.ID, now)
			l.me.Tick.Admitted++
		case code == problem.NoCapacity, code == problem.PoolNotFound, code == problem.ExceedsLimit:
			l.deadline = sooner(l.deadline, now.Add(l.cfg.TickInterval)) // other claims were faster
		default:
			// The run, the limits or the leader's key have changed, or the outcome is
			// unknown.
			l.unresolved = true
			if code != problem.Precondition {
				l.journal.Forget() // its lease may have expired
				failed = b.err
			}
		}
	}
	return failed
}

// split separates the runs that need pools from those that do not.
func split(runs []*run.Run) (plain, gated []*run.Run) {
	plain = slices.DeleteFunc(slices.Clone(runs), func(r *run.Run) bool { return len(r.Pools) > 0 })
	gated = slices.DeleteFunc(slices.Clone(runs), func(r *run.Run) bool { return len(r.Pools) == 0 })
	return plain, gated
}
