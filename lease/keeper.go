package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/internal/store"
)

// Config is what a [Keeper] needs.
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Host and Instance name the owner of the leases.
	Host, Instance string
	// Token marks the leases under leases/<host>/, so that a later process of
	// the instance can resume them. Without one they are not listed, and end
	// with this process.
	Token string
	// Clock is [BootClock] if nil.
	Clock Clock
	// Logger is silent if nil.
	Logger hclog.Logger
	// Registerer takes the metrics. Nil keeps none.
	Registerer prometheus.Registerer

	// OnReady is called after [Keeper.Acquire] was refused, when a set as large
	// as one of those refused would fit; sets that still don't are refused once
	// more. It is also called when this process has renewed an adopted lease for
	// the first time. Calls coalesce.
	OnReady func()
	// OnLost is called once for each lease whose validity has ended, within 250 ms,
	// with a cause that is [ErrValidityEnded], [store.ErrLeaseNotFound] or [store.ErrOtherCluster]. By then
	// the keeper no longer knows the lease.
	OnLost func(id store.LeaseID, cause error)
	// OnRenewed is called after each renewal that has succeeded. Again is set for the
	// first one after a gap: the try before had failed, or an earlier process had
	// the lease.
	//
	// None of these functions may block: all are called by Run itself, which does not
	// check the clock meanwhile. They are never called at the same time.
	OnRenewed func(id store.LeaseID, again bool)
}

// Keeper keeps the leases that an instance's claims are attached to.
//
// All methods may be called at any time, before, while and after Run runs, and
// by many goroutines. Only RevokeAll waits for etcd.
type Keeper struct {
	cfg     Config
	clock   Clock
	log     hclog.Logger
	metrics *keeperMetrics

	ran  atomic.Bool
	wake chan struct{} // coalesces: there is something to do before the next tick

	// mu guards what follows. It is held for moments only: never during I/O,
	// nor while a function of cfg runs.
	mu      sync.Mutex
	book    *book
	closed  bool  // RevokeAll was called: there will be no leases any more
	trouble error // why the last grant failed; nil after a success
	// unfinished are leases that a stop kept from being listed or given back.
	unfinished []store.LeaseID
}

// NewKeeper returns a keeper without leases. It does no I/O.
func NewKeeper(cfg Config) *Keeper {
	if cfg.Clock == nil {
		cfg.Clock = BootClock()
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.OnReady == nil {
		cfg.OnReady = func() {}
	}
	if cfg.OnLost == nil {
		cfg.OnLost = func(store.LeaseID, error) {}
	}
	if cfg.OnRenewed == nil {
		cfg.OnRenewed = func(store.LeaseID, bool) {}
	}
	k := &Keeper{
		cfg:   cfg,
		clock: cfg.Clock,
		log:   cfg.Logger.Named("lease"),
		wake:  make(chan struct{}, 1),
		book:  newBook(),
	}
	k.metrics = newKeeperMetrics(cfg.Registerer, k.countLeases, k.leastMargin)
	return k
}

// lock locks the keeper, and drops the leases of a cluster that another one has replaced.
func (k *Keeper) lock() {
	k.mu.Lock()
	if id, _ := k.cfg.Backend.Cluster(); id != k.book.cluster {
		k.book.in(k.clock.Now(), id)
		k.forgetUnfinished()
	}
}

// Run grants, renews and judges until ctx ends, and returns the cause. By then
// everything it started has ended. The leases live on: they are for a later
// process to resume, for RevokeAll to end, or run out.
//
// A keeper runs once; a second call is [ErrRan].
func (k *Keeper) Run(ctx context.Context) error {
	if !k.ran.CompareAndSwap(false, true) {
		return ErrRan
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		_, replaced := k.cfg.Backend.Cluster()
		select {
		case <-tick.C:
		case <-k.wake:
		case <-replaced:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		k.step(ctx, &tasks)
	}
}

// step does what is due now. What takes longer becomes a task.
func (k *Keeper) step(ctx context.Context, tasks *sync.WaitGroup) {
	k.lock()
	w := k.book.due(k.clock.Now())
	there := store.WithCluster(ctx, k.book.cluster)
	k.mu.Unlock()
	for _, l := range w.lost {
		k.report(l)
	}
	for _, s := range w.renewed {
		k.cfg.OnRenewed(s.id, s.again)
	}
	for _, try := range w.renew {
		tasks.Go(func() { k.renew(there, try) })
	}
	for _, job := range w.grant {
		tasks.Go(func() { k.grant(ctx, job) })
	}
	for _, id := range w.revoke {
		tasks.Go(func() { k.giveBack(there, id) })
	}
	if w.ready {
		k.cfg.OnReady()
	}
}

// report reports a loss.
func (k *Keeper) report(l loss) {
	cause, level := causeExpired, hclog.Error
	switch {
	case errors.Is(l.cause, store.ErrLeaseNotFound):
		cause = causeGone
	case errors.Is(l.cause, store.ErrOtherCluster):
		cause, level = causeReplaced, hclog.Info // the change was logged, once
	}
	k.metrics.lost.WithLabelValues(cause).Inc()
	k.log.Log(level, "lost a lease", "lease", name(l.id), "error", l.cause)
	k.cfg.OnLost(l.id, l.cause)
}

// poke makes Run check for work at once.
func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Acquire reserves keys on one lease of exactly duration d, and returns it. It is
// false if they fit on no such lease now: one is being granted then, and OnReady
// will be called. It never blocks.
//
// A set of more than [KeysPerLease] keys gets a lease that has no others.
func (k *Keeper) Acquire(d time.Duration, keys int) (store.LeaseID, bool) {
	now := k.clock.Now()
	k.lock()
	if k.closed {
		k.mu.Unlock()
		return 0, false
	}
	id, ok, more := k.book.acquire(now, d, keys)
	k.mu.Unlock()
	if more {
		k.poke()
	}
	return id, ok
}

// Release releases the reservation of keys that are no longer on a lease, or never
// got there. A lease that is lost needs none, but takes it.
func (k *Keeper) Release(id store.LeaseID, keys int) {
	now := k.clock.Now()
	k.lock()
	awaited, bad := k.book.release(now, id, keys)
	k.mu.Unlock()
	if awaited {
		k.poke()
	}
	if bad {
		k.log.Error("more keys were released than reserved, which is a fault of berth: the lease is kept until the end",
			"lease", name(id), "keys", keys)
	}
}

// Suspect reports that a transaction was refused because one of these leases is
// gone. Those that are not take new keys again as soon as a renewal sent from
// now on has succeeded; the one that is will be reported lost.
func (k *Keeper) Suspect(ids ...store.LeaseID) {
	now := k.clock.Now()
	k.lock()
	k.book.suspect(now, ids)
	k.mu.Unlock()
	k.poke()
}

// Validity returns how long a lease is valid. It is false for a lease that is not known
// or lost.
func (k *Keeper) Validity(id store.LeaseID) (Window, bool) { return k.ValidityAt(id, k.clock.Now()) }

// ValidityAt is [Keeper.Validity] at a time of the keeper's clock: to read that takes longer than
// the rest.
func (k *Keeper) ValidityAt(id store.LeaseID, now time.Duration) (Window, bool) {
	k.lock()
	defer k.mu.Unlock()
	return k.book.validity(now, id)
}

// Valid reports whether a lease is valid now.
func (k *Keeper) Valid(id store.LeaseID) bool {
	_, ok := k.Validity(id)
	return ok
}

// Adopt takes over a lease with so many keys on it that an earlier process of the
// instance made; [Resume] finds them. It is valid for as long as etcd said then, and
// renewed at once; until that has succeeded, when OnReady is called, it takes no new
// keys. If it does not succeed within the window, the lease is lost.
func (k *Keeper) Adopt(l Resumable, keys int) {
	now := k.clock.Now()
	k.lock()
	if !k.closed {
		k.book.adopt(now, l, keys)
	}
	k.mu.Unlock()
	k.poke()
}

// Trouble returns why no lease can be granted at present: the last error of etcd. It is
// nil while grants succeed. A claim that waits for a lease waits for this.
func (k *Keeper) Trouble() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble
}

func (k *Keeper) setTrouble(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble = err
}
