package sidecar

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/claims"
)

// runLease is the duration of the leases by which executors are seen to live: how
// long a run stays theirs if this host dies.
const runLease = time.Minute

// executors are the runs and step instances that were started through a server, each
// from its start until its key is gone by which the executor is seen to live.
type executors struct {
	clock   lease.Clock
	log     hclog.Logger
	metrics *runMetrics // of runs
	ofSteps *runMetrics // of step instances
	store   run.Store
	steps   step.Store
	files   claims.Files
	// host and instance are this server's.
	host, instance string
	// room finds room for a key, takeOver takes over a claim, claim makes one, hasPool
	// tells whether there is a pool, and keeps whether a lease is ours.
	room     func(context.Context) (room, error)
	takeOver func(context.Context, pool.TakeOver) (*berth.Claim, error)
	claim    func(context.Context, berth.Slots, ...berth.ClaimOption) (*berth.Claim, error)
	hasPool  func(string) bool
	keeps    func(store.LeaseID) bool

	quit    context.Context // ends with leave
	abandon context.CancelFunc
	tasks   sync.WaitGroup // keys that are being deleted

	// mu guards what follows, and the executors. It is taken before any other lock.
	mu     sync.Mutex
	byID   map[string]*executor
	starts map[string]chan struct{} // that are under way; closed at the end
	doubts []doubt
	ended  claims.EndedLog // by id and fence
	closed bool
}

// room is room for one key on a lease: a [berth.Room].
type room interface {
	Lease() store.LeaseID
	Context() context.Context
	ValidFor() (left, grace time.Duration)
	Release()
}

// executor is who runs one attempt of a run, or of a step instance.
type executor struct {
	id    string // RUN, or RUN/STEP/INDEX: as in the key by which it is seen to live
	fence int64
	room  room
	// unhook keeps the end of the room from being told.
	unhook func() bool

	// What follows is guarded by mu of executors.

	run   *run.Run    // as it was read last; nil if it was not yet, or is none
	step  *step.Taken // as it was read last; nil if it was not yet, or is none
	ttl   time.Duration
	saved bool // ttl stands in a file
	// expires is when the ttl has passed; 0 without one.
	expires time.Duration
	// why the attempt is lost; nil while it is not. If its slots are wanted back,
	// giveUpAt is when they are taken.
	why      *problem.Error
	giveUpAt time.Duration
	// overdue is when the timeout of a step instance has passed; 0 without one.
	overdue time.Duration
	failed  bool // that is why it is lost
	gone    bool // no longer among the executors
}

func newExecutors(cfg *Config, client *berth.Client, m *metrics) *executors {
	backend, keys := client.Store()
	journal := run.NewJournal(backend, keys, client.Host()+"/"+client.Instance(), cfg.RunRetention)
	x := &executors{
		clock: lease.BootClock(), log: cfg.Logger, metrics: m.runs, ofSteps: m.steps, host: client.Host(), instance: client.Instance(),
		store: run.Store{Backend: backend, Keys: keys, Journal: journal},
		steps: step.Store{Backend: backend, Keys: keys, Journal: journal, Group: &store.Group{}},
		files: claims.NewFiles(cfg.Options.StateDir, cfg.Options.Instance, "runs", cfg.Logger),
		room: func(ctx context.Context) (room, error) {
			r, err := client.ReserveKey(ctx, runLease)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
		takeOver: client.TakeOver, claim: client.Claim, hasPool: client.HasPool, keeps: client.Renews,
	}
	x.init()
	return x
}

func (x *executors) init() {
	x.byID, x.starts, x.ended = map[string]*executor{}, map[string]chan struct{}{}, claims.NewEndedLog()
	x.quit, x.abandon = context.WithCancel(context.Background())
}

// add takes an attempt, or the same once more: then its room is given back.
func (x *executors) add(e *executor) (*executor, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.addLocked(e)
}

func (x *executors) addLocked(e *executor) (*executor, error) {
	switch old := x.byID[e.id]; {
	case x.closed:
		return nil, errStopping
	case old == nil:
	case old.fence < e.fence:
		if old.why == nil {
			x.counts(old.id).lost(lossTaken)
		}
		x.drop(old)
	default:
		if e.room != nil {
			e.room.Release()
		}
		if old.fence > e.fence {
			return nil, lostAttempt(e.id, e.fence, "somebody else has it")
		}
		if old.why != nil {
			return nil, old.why
		}
		old.run, old.step, old.ttl = e.run, e.step, e.ttl
		e = old
	}
	if x.byID[e.id] == nil {
		x.byID[e.id] = e
		x.counts(e.id).executing.Inc()
		if e.run != nil || e.step != nil { // or it was taken over
			x.counts(e.id).starts.Inc()
		}
		x.bound(e)
		e.unhook = context.AfterFunc(e.room.Context(), func() { x.roomEnded(e) })
	}
	x.extend(e)
	x.save(e)
	return e, nil
}

// save keeps the ttl for a later server, unless it is the one that is supposed.
func (x *executors) save(e *executor) {
	if e.ttl == DefaultRunTTL && !e.saved {
		return
	}
	e.saved = true
	if err := x.files.SaveTTL(fileOf(e.id), e.fence, e.ttl); err != nil {
		x.log.Error("the ttl of an executor can't be kept; after a restart it would be the default",
			keyRun, e.id, keyDuration, e.ttl, keyError, err)
	}
}

// extend begins the ttl anew.
func (x *executors) extend(e *executor) {
	e.expires = 0
	if e.ttl > 0 {
		e.expires = x.clock.Now() + e.ttl
	}
}

// drop forgets an attempt whose key is gone.
func (x *executors) drop(e *executor) {
	if e.gone {
		return
	}
	e.gone = true
	x.counts(e.id).executing.Dec()
	e.unhook()
	e.room.Release()
	if x.byID[e.id] == e {
		delete(x.byID, e.id)
	}
	if e.saved {
		x.files.Remove(fileOf(e.id))
	}
	if e.why != nil {
		x.ended.Add(attempt(e.id, e.fence), e.fence, e.why, x.clock.Now())
	}
}

// attempt names an attempt of a run or a step instance.
func attempt(id string, fence int64) string { return id + "/" + strconv.FormatInt(fence, 10) }

// leftUs takes that a run is not running here any more: it was finished or
// canceled, as the status says, or the verdict on it is that. Fence 0 is any attempt.
func (x *executors) leftUs(id string, fence int64, status string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil && (fence == 0 || e.fence == fence) {
		x.counts(id).finished(e, status)
		e.why = nil // its record tells
		x.drop(e)
	}
}

// roomEnded takes that trust in the lease has ended, or that the server shuts
// down: then the room is kept until the executor has stopped, which it says by
// finishing, or its time to stop is over.
func (x *executors) roomEnded(e *executor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e.gone {
		return
	}
	cause := context.Cause(e.room.Context())
	if e.why == nil {
		x.log.Warn("a run is lost to its executor", keyRun, e.id, keyFence, e.fence, keyReason, cause)
		e.why = lostAttempt(e.id, e.fence, "%w", cause)
		x.counts(e.id).lost(lossOf(cause))
	}
	if shutsDown(cause) {
		return
	}
	if _, holds := e.room.(*claimRoom); !holds {
		x.drop(e)
		return
	}
	// The key may live longer than the slots.
	if problem.CodeOf(cause) == problem.ClaimRevoked {
		e.giveUpAt = x.clock.Now() + pool.RevokeGrace
		return
	}
	x.tasks.Go(func() { x.giveUp(e) })
}

// answer tells an executor about its run. The request that it answers was begun
// then: what is trusted counts from there.
func (x *executors) answer(e *executor, begun time.Time) StartedRun {
	x.mu.Lock()
	defer x.mu.Unlock()
	a := StartedRun{Trusted: x.trust(e, begun), TTL: Duration(e.ttl)}
	if e.run != nil {
		a.Run = inspect.RunOf(e.run)
	}
	return a
}

// trust tells for how long an attempt can be believed to be its executor's.
func (x *executors) trust(e *executor, begun time.Time) (t Trusted) {
	now := time.Now() // before what is left from then on
	left, grace := e.room.ValidFor()
	if e.expires > 0 {
		left = min(left, max(0, e.expires-x.clock.Now()))
		grace = min(grace, lease.StopGrace(e.ttl))
	}
	if left <= 0 || e.why != nil || e.gone {
		return t
	}
	t.TrustedUntil = now.Add(left)
	t.TrustedFor = validFor(begun, now, left)
	t.Grace = grace.Milliseconds()
	return t
}

// resume takes over the attempts that an earlier server left. Their ttls begin
// anew. Their records are read with the first heartbeats.
func (x *executors) resume(rooms []*berth.KeyReservation, claims []*berth.Claim) {
	held := map[string]bool{}
	claimOf := map[string]*berth.Claim{}
	for _, c := range claims {
		claimOf[claimFor(c)] = c
	}
	for _, r := range rooms {
		_, of, err := x.store.Keys.ParseActive(r.Adopted().Key)
		if err != nil {
			x.log.Error("a key is none of an executor", keyError, err)
			r.Release()
			continue
		}
		id, holder := idOf(of), holderOfStep(of)
		held[fileOf(id)] = true
		e := &executor{id: id, fence: r.Adopted().Revision, room: r, ttl: DefaultRunTTL}
		if c := claimOf[holder]; c != nil && c.Fence() == e.fence {
			e.room = &claimRoom{x: x, claim: c, key: r}
			delete(claimOf, holder)
		}
		ttl, saved := x.files.LoadTTL(fileOf(id), e.fence)
		if e.saved = saved; saved {
			e.ttl = ttl
		}
		_, _ = x.add(e) // there is no other
	}
	for _, c := range claimOf {
		x.log.Info("giving back the slots of a run that has ended", keyRun, c.Holder.Run, keyClaim, c.ID)
		(&claimRoom{x: x, claim: c}).Release()
	}
	x.files.Sweep(func(id string) bool { return held[id] })
}

// follow writes what happens to claims that carry a run among the run's events,
// from when it returns until ctx ends.
func (x *executors) follow(ctx context.Context, source source, tasks *sync.WaitGroup) {
	claims, err := source(ctx)
	if err != nil {
		return // the client has ended, and the server will
	}
	tasks.Go(func() {
		_ = x.store.Journal.Follow(ctx, claims, func(n int) { // it ends with ctx
			x.log.Debug("what happened to claims is not among the events of their runs", keyEvents, n)
		})
	})
}

// count is how many attempts there are.
func (x *executors) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byID)
}

// leave lets go of all attempts without ending any, and waits for what was under
// way.
func (x *executors) leave() {
	x.abandon()
	x.mu.Lock()
	x.closed = true
	for _, e := range x.byID {
		e.gone = true
		e.unhook()
	}
	clear(x.byID)
	x.metrics.executing.Set(0)
	x.ofSteps.executing.Set(0)
	x.mu.Unlock()
	x.tasks.Wait()
}
