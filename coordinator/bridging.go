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

const (
	// maxBridged bounds the runs with pools that one tick admits: the rest follows in
	// the next.
	maxBridged = 256
	// spaceTimeout bounds the look at the pools, which is one at memory.
	spaceTimeout = time.Second
	// settleTime is how long a leader waits for its first look at the pools before it
	// admits runs that need none.
	settleTime = 2 * time.Second
	// guardTimeout bounds the removal of the guard at the end.
	guardTimeout = time.Second
)

// bridge holds slots of pools for admitted runs until their executors take them over.
// It is there once a run needs any.
type bridge struct {
	cfg     Config
	leases  *bridgeLeases
	engine  *pool.Engine
	changed chan struct{} // holds one when pools have changed
	since   time.Time
	seen    bool // the pools were seen once
}

// settling tells whether the pools have not been seen yet, a moment after the start: to
// admit others meanwhile would let them pass.
func (b *bridge) settling(now time.Time) bool { return !b.seen && now.Sub(b.since) < settleTime }

func newBridge(cfg Config) *bridge {
	b := &bridge{cfg: cfg, leases: newBridgeLeases(cfg.Backend, cfg.StartTimeout), changed: make(chan struct{}, 1), since: time.Now()}
	b.engine = pool.New(pool.Config{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance,
		Leases: b.leases, Logger: cfg.Logger,
	})
	return b
}

// run works until ctx ends. What it holds then stays for those it is for, and else
// ends with its lease.
func (b *bridge) run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return b.leases.run(inner, b.engine.LeasesReady) })
	g.Go(func() error { return b.engine.Run(inner) })
	g.Go(func() error { return b.follow(inner) })
	err := g.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardTimeout)
	defer cancel()
	if left := b.engine.RemoveGuard(last); left != nil {
		b.cfg.Logger.Debug("a guard was left behind", "error", left)
	}
	return err
}

// follow tells that pools have changed.
func (b *bridge) follow(ctx context.Context) error {
	events, err := b.engine.Subscribe(ctx)
	if err == nil {
		err = b.engine.Ready(ctx)
	}
	if err != nil {
		return err
	}
	for {
		select {
		case b.changed <- struct{}{}:
		default:
		}
		select {
		case <-events:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look completes a snapshot with what the pools are like.
func (b *bridge) look(ctx context.Context, s *Snapshot) {
	var claims []string
	for _, r := range s.InProgress {
		if r.Status == run.NotStarted && r.Claim != "" {
			claims = append(claims, r.Claim)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, spaceTimeout)
	defer cancel()
	space, held, at, err := b.engine.Space(ctx, claims)
	if err != nil {
		b.cfg.Logger.Debug("runs that need pools wait: the pools can't be seen", "error", err)
	}
	b.seen = b.seen || err == nil
	s.Space, s.Kept = space, map[string]bool{}
	for _, r := range s.InProgress {
		if r.Claim != "" {
			_, there := held[r.Claim]
			s.Kept[r.ID] = there || at < r.Revision
		}
	}
}

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
				If: []*pb.Compare{
					l.fence.Unchanged(), store.ModEquals(l.cfg.Keys.Limits(), l.state.limitsRev), store.ModEquals(key, r.Revision),
				},
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
			b.claim, b.err = l.pools.engine.Claim(try, b.req)
			return nil
		})
	}
	_ = g.Wait() // each tells by itself
	return l.bridgedAll(all, now)
}

// bridgedAll takes what has become of admissions.
func (l *leader) bridgedAll(all []*bridged, now time.Time) error {
	var failed error
	for _, b := range all {
		switch code := problem.CodeOf(b.err); {
		case b.err == nil:
			l.state.put(&run.Run{ID: b.old.ID, Record: b.rec, Created: b.old.Created, Revision: b.claim.Fence})
			l.bridgedAt = max(l.bridgedAt, b.claim.Fence)
			l.metrics.admitted.Inc()
			l.me.Tick.Admitted++
		case code == problem.NoCapacity, code == problem.PoolNotFound, code == problem.ExceedsLimit:
			l.deadline = sooner(l.deadline, now.Add(l.cfg.TickInterval)) // somebody was faster
		default:
			// The run, the limits or the leader's own key are no longer what they were,
			// or nobody knows: the door settles it.
			l.open = true
			if code != problem.Precondition {
				l.journal.Forget() // its lease may be the reason
				failed = b.err
			}
		}
	}
	return failed
}

// split parts runs that need pools from those that don't.
func split(runs []*run.Run) (plain, gated []*run.Run) {
	plain = slices.DeleteFunc(slices.Clone(runs), func(r *run.Run) bool { return len(r.Pools) > 0 })
	gated = slices.DeleteFunc(slices.Clone(runs), func(r *run.Run) bool { return len(r.Pools) == 0 })
	return plain, gated
}
