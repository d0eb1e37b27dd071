package executor

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/claims"
)

// Bounds of the time to live of an attempt, and what an executor gets that names none.
const (
	MinTTL, MaxTTL = 5 * time.Second, 24 * time.Hour
	DefaultTTL     = time.Minute
)

// leaseDuration is that of the leases with the keys of executors: how long an attempt stays
// theirs if this host dies.
const leaseDuration = time.Minute

// ttlFolder is where times to live are kept, in the instance's state directory.
const ttlFolder = "runs"

var errStopping = problem.New(problem.Stopping, "the sidecar is stopping")

// Config is what is needed to keep executors.
type Config struct {
	Client *instance.Client
	Runs   run.Store
	Steps  step.Store
	// StateDir is where times to live are kept. Empty: they are not kept.
	StateDir string
	// Tracer makes a span of each attempt; nil makes none.
	Tracer  *trace.Tracer
	Log     hclog.Logger
	Metrics *Metrics
}

// Executors are the executors of runs and step instances that were started through a server,
// each from its start until its key is gone.
type Executors struct {
	clock   lease.Clock
	tracer  *trace.Tracer
	log     hclog.Logger
	silent  lograte.Limit // of the log of executors that did not report
	metrics *Metrics
	runs    run.Store
	steps   step.Store
	files   claims.Files
	// host and instance are this server's.
	host, instance string
	// reserve reserves a key on a lease, takeOver takes over a claim, claim makes one,
	// hasPool reports whether a pool exists, and renews whether a lease is ours.
	reserve  func(context.Context) (reservation, error)
	takeOver func(context.Context, pool.TakeOver) (*instance.Claim, error)
	claim    func(context.Context, instance.Slots, ...instance.ClaimOption) (*instance.Claim, error)
	hasPool  func(string) bool
	renews   func(store.LeaseID) bool

	quit    context.Context // ends with Leave
	abandon context.CancelFunc
	tasks   sync.WaitGroup // keys that are being deleted

	// mu guards what follows, and the executors. It is taken before any other lock.
	mu      sync.Mutex
	byID    map[string]*Executor
	starts  map[string]chan struct{} // in progress; closed at the end
	pending []pendingStart
	ended   claims.EndedLog // by id and fence
	closed  bool
}

// reservation is a lease that may have one more key: a [instance.KeyReservation], or that of a claim.
type reservation interface {
	Lease() store.LeaseID
	Context() context.Context
	ValidFor() (left, grace time.Duration)
	Release()
}

// Executor has one attempt of a run, or of a step instance.
type Executor struct {
	id    string // RUN, or RUN/STEP/INDEX: as in its key
	fence store.Fence
	on    reservation
	// unhook cancels the call at the end of the reservation.
	unhook func() bool
	// span is that of the attempt, and trace that span as the parent of others; none if it is not
	// recorded.
	span  trace.Span
	trace trace.Parent

	// What follows is guarded by mu of Executors.

	run   *run.Run    // as it was read last; nil if it was not yet, or is none
	step  *step.Taken // as it was read last; nil if it was not yet, or is none
	ttl   time.Duration
	saved bool // ttl is in a file
	// expires is when the ttl has passed; 0 without one.
	expires time.Duration
	// why the attempt is lost; nil while it is not. If its slots were revoked, giveUpAt is
	// when they are freed.
	why      *problem.Error
	giveUpAt time.Duration
	// overdue is when the timeout of a step instance has passed; 0 without one.
	overdue time.Duration
	failed  bool   // that is why it is lost
	status  string // how it has ended; empty before
	gone    bool   // no longer among the executors
}

// New returns executors without any attempt.
func New(cfg Config) *Executors {
	client := cfg.Client
	x := &Executors{
		clock: lease.BootClock(), tracer: cfg.Tracer, log: cfg.Log, metrics: cfg.Metrics, runs: cfg.Runs, steps: cfg.Steps,
		host: client.Host(), instance: client.Instance(),
		files: claims.NewFiles(cfg.StateDir, client.Instance(), ttlFolder, cfg.Log),
		reserve: func(ctx context.Context) (reservation, error) {
			r, err := client.ReserveKey(ctx, leaseDuration)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
		takeOver: client.TakeOver, claim: client.Claim, hasPool: client.HasPool, renews: client.Renews,
	}
	x.init()
	return x
}

func (x *Executors) init() {
	x.byID, x.starts, x.ended = map[string]*Executor{}, map[string]chan struct{}{}, claims.NewEndedLog()
	x.quit, x.abandon = context.WithCancel(context.Background())
}

// add adds an attempt. If it is there already, its ttl begins again, and the new reservation
// is released.
func (x *Executors) add(e *Executor) (*Executor, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.addLocked(e)
}

func (x *Executors) addLocked(e *Executor) (*Executor, error) {
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
		if e.on != nil {
			e.on.Release()
		}
		if old.fence > e.fence {
			return nil, lostAttempt(e.id, e.fence, "another executor has it")
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
		e.unhook = context.AfterFunc(e.on.Context(), func() { x.reservationEnded(e) })
	}
	x.extend(e)
	x.save(e)
	return e, nil
}

// save keeps the ttl for a later server, unless it is the default.
func (x *Executors) save(e *Executor) {
	if e.ttl == DefaultTTL && !e.saved {
		return
	}
	e.saved = true
	if err := x.files.SaveTTL(fileOf(e.id), e.fence, e.ttl); err != nil {
		x.log.Error("the ttl of an executor can't be kept; after a restart it would be the default",
			keyRun, e.id, keyDuration, e.ttl, keyError, err)
	}
}

// extend begins the ttl again.
func (x *Executors) extend(e *Executor) {
	e.expires = 0
	if e.ttl > 0 {
		e.expires = x.clock.Now() + e.ttl
	}
}

// drop removes an attempt whose key is gone.
func (x *Executors) drop(e *Executor) {
	if e.gone {
		return
	}
	e.gone = true
	e.endSpan()
	x.counts(e.id).executing.Dec()
	e.unhook()
	e.on.Release()
	if x.byID[e.id] == e {
		delete(x.byID, e.id)
	}
	if e.saved {
		x.files.Remove(fileOf(e.id))
	}
	if e.why != nil {
		by := ""
		if of := e.record().executor(); of != nil {
			by = of.By
		}
		x.ended.Add(attempt(e.id, e.fence), e.fence, by, e.why, x.clock.Now())
	}
}

// attempt names an attempt of a run or a step instance.
func attempt(id string, fence store.Fence) string {
	return id + "/" + strconv.FormatInt(int64(fence), 10)
}

// idOf names a run or a step instance as the keys of executors do.
func idOf(id store.StepID) string {
	if id.Step == "" {
		return id.Run
	}
	return id.String()
}

// ofStep reports whether an id is that of a step instance. Ids of runs have no slash.
func ofStep(id string) bool { return strings.Contains(id, "/") }

// fileOf names the file of an executor: no id has a tilde.
func fileOf(id string) string { return strings.ReplaceAll(id, "/", "~") }

// Ended records that an attempt is not running here any more: its run was finished or
// canceled, or its step instance was finished, with that status. Fence 0 is any attempt.
func (x *Executors) Ended(id string, fence store.Fence, status string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil && (fence == 0 || e.fence == fence) {
		x.counts(id).finished(e, status)
		e.why, e.status = nil, status // its record says why
		x.drop(e)
	}
}

// reservationEnded records that the lease of an attempt is no longer valid, or that the
// server shuts down. In the latter case the key stays until the executor has stopped, which
// it reports by finishing, or its time to stop is over.
func (x *Executors) reservationEnded(e *Executor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e.gone {
		return
	}
	cause := context.Cause(e.on.Context())
	if e.why == nil {
		x.log.Warn("a run is lost to its executor", keyRun, e.id, keyFence, e.fence, keyReason, cause)
		e.why = lostAttempt(e.id, e.fence, "%w", cause)
		x.counts(e.id).lost(lossOf(cause))
	}
	if shutsDown(cause) {
		return
	}
	if _, holds := e.on.(*claimReservation); !holds {
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

// View is an executor at one moment.
type View struct {
	Run  *run.Run    // nil for a step instance, or if it was not read yet
	Step *step.Taken // nil for a run, or if it was not read yet
	TTL  time.Duration
	// Trace is the trace context of the attempt.
	Trace trace.Parent
	// Left is for how long the attempt is valid from At on, unless a heartbeat comes, and
	// Grace how long its executor may take to stop. Both are 0 if it is not valid.
	At          time.Time
	Left, Grace time.Duration
}

// View returns an executor as it is now.
func (x *Executors) View(e *Executor) View {
	x.mu.Lock()
	defer x.mu.Unlock()
	v := View{Run: e.run, Step: e.step, TTL: e.ttl, Trace: cmp.Or(e.trace, e.parent()), At: time.Now()} // before what is left from then on
	left, grace := e.on.ValidFor()
	if e.expires > 0 {
		left = min(left, max(0, e.expires-x.clock.Now()))
		grace = min(grace, lease.StopGrace(e.ttl))
	}
	if left > 0 && e.why == nil && !e.gone {
		v.Left, v.Grace = left, grace
	}
	return v
}

// Resume takes over the attempts of an earlier server: the keys that were reserved, and the
// claims of runs and step instances. Their ttls begin again. Their records are read with
// the first heartbeats.
func (x *Executors) Resume(keys []*instance.KeyReservation, claims []*instance.Claim) {
	held := map[string]bool{}
	claimOf := map[string]*instance.Claim{}
	for _, c := range claims {
		claimOf[heldFor(c)] = c
	}
	for _, r := range keys {
		_, of, err := x.runs.Keys.ParseActive(r.Adopted().Key)
		if err != nil {
			x.log.Error("a key is none of an executor", keyError, err)
			r.Release()
			continue
		}
		id, holder := idOf(of), holderOf(of)
		held[fileOf(id)] = true
		e := &Executor{id: id, fence: store.FenceAt(r.Adopted().Revision), on: r, ttl: DefaultTTL}
		if c := claimOf[holder]; c != nil && c.Fence() == e.fence {
			e.on = &claimReservation{x: x, claim: c, key: r}
			delete(claimOf, holder)
		}
		ttl, saved := x.files.LoadTTL(fileOf(id), e.fence)
		if e.saved = saved; saved {
			e.ttl = ttl
		}
		_, _ = x.add(e) // there is no other
	}
	for _, c := range claimOf {
		x.log.Info("releasing the slots of a run that has ended", keyRun, c.Holder.Run, keyClaim, c.ID)
		(&claimReservation{x: x, claim: c}).Release()
	}
	x.files.Sweep(func(id string) bool { return held[id] })
}

// Follow writes what happens to claims of runs among the events of these runs, from when it
// returns until ctx ends, in one of the tasks.
func (x *Executors) Follow(ctx context.Context, subscribe func(context.Context) (<-chan pool.Event, error), tasks *sync.WaitGroup) {
	events, err := subscribe(ctx)
	if err != nil {
		return // the client has ended, and the server will
	}
	tasks.Go(func() {
		_ = x.runs.Journal.Follow(ctx, events, run.Followed{ // it ends with ctx
			Host: x.host, Takes: x.takes,
			Dropped: func(n int) {
				x.log.Debug("what happened to claims is not among the events of their runs", keyEvents, n)
			},
		})
	})
}

// takesOf bounds the executors of a run on this host that are checked for one claim.
const takesOf = 100

// takes reports whether the identity that has made a claim has a step instance of the run that
// the claim names, on this host.
func (x *Executors) takes(ctx context.Context, h pool.Holder) (bool, error) {
	all, err := x.steps.ActiveOn(ctx, x.host, h.Run, takesOf)
	return slices.ContainsFunc(all, func(e run.Executor) bool { return e.Owns(h) }), err
}

// Count returns how many attempts there are.
func (x *Executors) Count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byID)
}

// Leave forgets all attempts without ending any, and waits for what is in progress. The
// next server takes them over.
func (x *Executors) Leave() {
	x.abandon()
	x.mu.Lock()
	x.closed = true
	for _, e := range x.byID {
		e.gone = true
		e.endSpan()
		e.unhook()
	}
	clear(x.byID)
	x.metrics.runs.executing.Set(0)
	x.metrics.steps.executing.Set(0)
	x.mu.Unlock()
	x.tasks.Wait()
}
