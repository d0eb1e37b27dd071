package coordinator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/engine"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// bridgeMargin is how much longer a bridge lease lives than an admitted run may wait
	// for its executor. For bridgeFor it takes more keys, which then live long enough.
	bridgeMargin = 30 * time.Second
	bridgeFor    = 15 * time.Second
	// bridgeKeys bounds the keys on one lease: with RBAC, a put costs time in proportion.
	bridgeKeys = 300
	// bridgePause is the longest pause between attempts to get one.
	bridgePause = 5 * time.Second
)

// bridgeLeases provides the leases of the slots of admitted runs until they are started:
// leases that live as long as a run may wait, and are never renewed. If the run is not
// started, they expire, even without a coordinator.
type bridgeLeases struct {
	backend store.Backend
	ttl     time.Duration
	wanted  chan struct{} // signals that a lease is needed

	mu      sync.Mutex // guards what follows
	lease   store.LeaseID
	left    int                         // keys that can still be attached
	until   time.Time                   // when it takes no more
	valid   map[store.LeaseID]time.Time // until when leases take what was reserved
	trouble error
}

func newBridgeLeases(b store.Backend, startTimeout time.Duration) *bridgeLeases {
	return &bridgeLeases{backend: b, ttl: startTimeout + bridgeMargin, wanted: make(chan struct{}, 1), valid: map[store.LeaseID]time.Time{}}
}

// Acquire reserves keys. The lease duration of the pools does not matter: the claim must
// not outlive the wait for its executor.
func (l *bridgeLeases) Acquire(_ time.Duration, keys int) (store.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 || l.left < keys && l.left < bridgeKeys || time.Now().After(l.until) {
		select {
		case l.wanted <- struct{}{}:
		default:
		}
		return 0, false
	}
	l.left = max(0, l.left-keys)
	return l.lease, true
}

// Release does nothing: the lease takes new keys only for a short time.
func (l *bridgeLeases) Release(store.LeaseID, int) {}

// Valid reports whether a lease lives for long enough.
func (l *bridgeLeases) Valid(id store.LeaseID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.valid[id])
}

// Suspect makes the next claim use another lease.
func (l *bridgeLeases) Suspect(ids ...store.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if delete(l.valid, id); id == l.lease {
			l.left = 0
		}
	}
}

// Trouble returns why there is no lease.
func (l *bridgeLeases) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// run grants leases when they are needed, and calls ready, until ctx ends.
func (l *bridgeLeases) run(ctx context.Context, ready func()) error {
	for {
		select {
		case <-l.wanted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause := backoff.NewExponentialBackOff()
		pause.InitialInterval, pause.MaxInterval = fencePause, bridgePause
		_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, l.grant(ctx) },
			backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
		if err != nil {
			return context.Cause(ctx)
		}
		ready()
	}
}

func (l *bridgeLeases) grant(ctx context.Context) error {
	begun := time.Now()
	try, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	id, _, err := l.backend.Grant(try, l.ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = err
	if err == nil {
		maps.DeleteFunc(l.valid, func(_ store.LeaseID, until time.Time) bool { return begun.After(until) })
		l.lease, l.left, l.until = id, bridgeKeys, begun.Add(bridgeFor)
		l.valid[id] = begun.Add(bridgeMargin)
	}
	return err
}

const (
	// maxBridged bounds the runs with pools that one tick admits. The next tick continues.
	maxBridged = 256
	// firstReadTime is how long a new leader waits for the pools before it admits runs that
	// need none.
	firstReadTime = 2 * time.Second
	// guardTimeout bounds the removal of the guard at the end.
	guardTimeout = time.Second
)

// bridge dispatches the claims that wait on any host. It holds slots of pools for admitted runs until their executors
// take them over, and follows the pools once a run needs some.
type bridge struct {
	cfg      Config
	leases   *bridgeLeases
	presence *lease.Keeper // of the leases of the dispatcher's role
	engine   *engine.Engine
	pools    *list.Follower
	// changed signals that pools have changed.
	changed chan struct{}
	since   time.Time // when it began to follow them; zero before
	seen    bool      // the pools have been read
}

// starting reports whether the pools are not read yet, shortly after the start: runs
// without pools would pass the others if they were admitted meanwhile.
func (b *bridge) starting(now time.Time) bool { return !b.seen && now.Sub(b.since) < firstReadTime }

// following reports whether a run has needed pools.
func (b *bridge) following() bool { return !b.since.IsZero() }

func newBridge(cfg Config) *bridge {
	b := &bridge{cfg: cfg, leases: newBridgeLeases(cfg.Backend, cfg.StartTimeout), changed: make(chan struct{}, 1)}
	b.pools = list.NewFollower(cfg.Backend, cfg.Keys, cfg.Logger)
	b.presence = lease.NewKeeper(lease.Config{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance, Logger: cfg.Logger.Named("waiters"),
		OnReady: func() { b.engine.LeasesReady() },
		OnLost:  func(id store.LeaseID, cause error) { b.engine.LeaseLost(id, cause) },
	})
	b.engine = engine.New(engine.Config{
		Backend: cfg.Backend, Keys: cfg.Keys, Host: cfg.Host, Instance: cfg.Instance, Kind: wire.Coordinator,
		Leases: b.leases, WaiterLeases: b.presence, PollInterval: cfg.TickInterval, Logger: cfg.Logger,
	})
	return b
}

// run works until ctx ends, and then has another instance dispatch. The slots that it holds expire with their lease unless they
// are taken over.
func (b *bridge) run(ctx context.Context) error {
	g, inner := errgroup.WithContext(context.WithoutCancel(ctx))
	g.Go(func() error { return b.leases.run(inner, b.engine.LeasesReady) })
	g.Go(func() error { return b.presence.Run(inner) })
	g.Go(func() error { return b.engine.Run(inner) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(inner, guardTimeout)
			defer cancel()
			_ = b.engine.Stop(last) // else others see that its mark is old
		case <-inner.Done():
		}
		return cmp.Or(context.Cause(ctx), context.Cause(inner))
	})
	err := g.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardTimeout)
	defer cancel()
	b.presence.RevokeAll(last)
	if left := b.engine.RemoveGuard(last); left != nil {
		b.cfg.Logger.Debug("the guard could not be removed", "error", left)
	}
	return err
}

// follow follows the pools, and signals that they have changed once the engine can claim.
func (b *bridge) follow(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.pools.Run(ctx) })
	g.Go(func() error { return b.signal(ctx) })
	return g.Wait()
}

func (b *bridge) signal(ctx context.Context) error {
	if err := b.engine.Ready(ctx); err != nil {
		return err
	}
	for {
		select {
		case b.changed <- struct{}{}:
		default:
		}
		select {
		case <-b.pools.Changed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// complete adds the free capacity of the pools to a snapshot. It is unknown while the engine
// can't claim.
func (b *bridge) complete(s *Snapshot) {
	var claims []string
	for _, r := range s.InProgress {
		if r.Status == run.NotStarted && r.Claim != "" {
			claims = append(claims, r.Claim)
		}
	}
	space, held, at, err := b.pools.Space(claims)
	if err == nil {
		err = b.engine.Trouble()
	}
	if err != nil {
		space = nil
		b.cfg.Logger.Debug("runs that need pools wait: the pools cannot be read", "error", err)
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
			b.claim, b.err = l.pools.engine.Claim(try, &b.req)
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
