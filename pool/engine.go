package pool

import (
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// batchTimeout bounds the wait for the answer to a batch; then its
	// outcome is unknown and is resolved.
	batchTimeout = 2 * time.Second
	// tickEvery is how often the core's tick runs.
	tickEvery = 250 * time.Millisecond
	// catchUpEvery is how often progress is asked for while something waits for
	// the view.
	catchUpEvery = 20 * time.Millisecond
	// spinTries and maxTries are how often a caller tries to become the owner in place of another
	// one, which takes a microsecond or two: first without leaving the processor, some 1 µs in
	// all. Waiting for the mutex would put nearly every caller to sleep and wake it again.
	spinTries, maxTries = 64, 256
)

// Config is what an [Engine] needs.
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Host and Instance name this engine. No two run under one name.
	Host, Instance string
	Leases         Leases
	// WaiterLeases provides the leases of waiters: of [WaiterTTL], and with few keys
	// on each. Without them, claims wait on this host only, and not in etcd.
	WaiterLeases Leases
	// Journal keeps to whom slots were granted without a write, for the next process of the
	// instance. Without one, the holders must die with this process.
	Journal Journal
	// PollInterval and PollJitter are how often waiting claims are tried again
	// without an event: a fallback. 0 is never.
	PollInterval, PollJitter time.Duration
	Logger                   hclog.Logger
	Registerer               prometheus.Registerer
}

// Engine claims and releases slots for one instance. One goroutine, the loop, takes what
// happens to the view and the wait queue; it collects operations while a transaction is in
// flight, and sends them as the next one. While it has nothing to do, claims and releases of
// retained slots are carried out by their callers: see [Engine.inline].
type Engine struct {
	cfg Config
	// owner guards the core, the watches, the collector and wakes. The loop has it, except
	// while it waits for what happens next.
	owner   sync.Mutex
	core    *core
	watches *watches
	wakes   time.Time // when the loop wakes for the core; zero if it does not
	revoke  *store.Feed
	// poked wakes the loop: see [Engine.poke].
	poked chan struct{}

	urgent    urgent
	collector collector
	calls     chan *call
	answers   chan answered
	stopped   chan struct{} // closed when Run returns
	ready     chan struct{} // closed when the first view is complete and earlier writes are resolved
	once      sync.Once

	reads *reads
	specs specs
	// revision is the latest that etcd is known to have reached.
	revision atomic.Int64
	feeds    *poolFeeds
}

type answered struct {
	call *call
	resp *pb.TxnResponse
	err  error
}

// New returns an engine that does nothing until [Engine.Run].
func New(cfg Config) *Engine {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	cfg.Logger = cfg.Logger.Named("pool")
	e := &Engine{
		cfg:     cfg,
		core:    newCore(cfg),
		calls:   make(chan *call, 1),
		answers: make(chan answered, 1),
		stopped: make(chan struct{}),
		ready:   make(chan struct{}),
	}
	e.reads, e.feeds = newReads(cfg.Backend, cfg.Keys), newPoolFeeds(e)
	e.urgent.wake, e.poked = make(chan struct{}, 1), make(chan struct{}, 1)
	e.collector.ops, e.collector.urgent = make(chan func(*core, time.Time), opsBuffer), &e.urgent
	e.watches = newWatches(e)
	e.revoke = store.NewFeed(cfg.Backend, cfg.Keys.Revocations(cfg.Host), cfg.Logger, func() {})
	return e
}

// Adopt has the engine take over the claims on leases of an earlier life of its
// instance. It is to be called before Run.
func (e *Engine) Adopt(ids ...store.LeaseID) {
	e.core.adopt = map[store.LeaseID]bool{}
	for _, id := range ids {
		e.core.adopt[id] = true
	}
}

// Run works until ctx ends, and returns when all goroutines have. Claims are
// not given back: see [Engine.Stop].
func (e *Engine) Run(ctx context.Context) error {
	defer e.feeds.close()
	defer close(e.stopped)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.revoke.Run(ctx) })
	g.Go(func() error { return e.caller(ctx) })
	g.Go(func() error { return e.loop(ctx) })
	g.Go(func() error { return e.sweep(ctx) })
	return g.Wait()
}

// caller sends one transaction after the other.
func (e *Engine) caller(ctx context.Context) error {
	for {
		select {
		case call := <-e.calls:
			try, cancel := context.WithTimeout(ctx, batchTimeout)
			resp, err := e.cfg.Backend.Txn(store.WithCluster(try, call.cluster), call.txn)
			cancel()
			e.answers <- answered{call, resp, err}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// loop works until ctx ends. It keeps the core then: nothing else may change it any more.
func (e *Engine) loop(ctx context.Context) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	catchUp := time.NewTimer(catchUpEvery)
	defer catchUp.Stop()
	poll := time.NewTimer(e.pollPause())
	defer poll.Stop()
	wake := time.NewTimer(waiterDelay)
	defer wake.Stop()
	polls := time.NewTicker(pollEvery)
	defer polls.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer e.watches.close()
	defer cancel() // also if the loop panics: the watches would be waited for without end
	behind := false
	for e.owner.Lock(); ; {
		e.collector.all(e.core)
		cluster, _ := e.cfg.Backend.Cluster() // before the history, which changes with it
		e.core.present(e.cfg.Backend.History())
		at, more := e.collector.waits(time.Now())
		if !more {
			if call := e.core.nextIfSlow(time.Now()); call != nil {
				e.collector.sent(call.batch)
				call.cluster = cluster
				e.calls <- call
			}
			at = e.core.wakesAt()
		}
		if !at.IsZero() && !at.Equal(e.wakes) {
			e.wakes = at
			wake.Reset(time.Until(at))
		}
		e.signalReady()
		e.watches.follow(ctx)
		e.revision.Store(e.core.seen)
		if b := e.core.behind(); b != behind {
			if behind = b; behind {
				e.watches.requestProgress()
				catchUp.Reset(catchUpEvery)
			}
		}
		e.collector.direct.Store(len(e.core.retentions) > 0)
		e.owner.Unlock()
		select {
		case <-e.poked: // the collector runs what was queued, in order
			e.owner.Lock()
			continue
		case <-e.urgent.wake: // the collector runs it
			e.owner.Lock()
		case m := <-e.watches.messages:
			e.owner.Lock()
			e.watches.deliver(m)
		case <-polls.C:
			e.owner.Lock()
			e.watches.poll(ctx)
		case m, ok := <-e.revoke.Messages():
			e.owner.Lock()
			if ok {
				e.revocations(m)
			}
		case a := <-e.answers:
			e.owner.Lock()
			if a.err == nil { // also what is known to have happened before, if that was unknown
				e.reads.atLeast(a.resp.Header.Revision)
			}
			e.core.answer(a.call, a.resp, a.err, time.Now())
			e.collector.answered(a.call.batch, time.Now())
		case <-wake.C: // waiters are written now, or what is retained is looked after
			e.owner.Lock()
			e.wakes = time.Time{}
		case <-tick.C:
			e.owner.Lock()
			e.core.tick(time.Now())
		case <-catchUp.C:
			e.owner.Lock()
			if behind {
				e.watches.requestProgress()
				catchUp.Reset(catchUpEvery)
			}
		case <-poll.C:
			e.owner.Lock()
			e.core.dirty = true
			e.watches.requestProgress()
			poll.Reset(e.pollPause())
		case <-ctx.Done():
			e.owner.Lock()
			return context.Cause(ctx)
		}
		e.core.slow = true
	}
}

// inline carries out an operation in the goroutine of its caller, and what was queued before, if
// the instance retains slots and the loop has nothing else to do: granting them takes a
// microsecond or two then, and the way through the loop takes several. It reports false if the
// loop is to carry it out.
func (e *Engine) inline(op func(*core, time.Time)) bool {
	for tries := 0; ; tries++ {
		if !e.collector.direct.Load() || tries == maxTries {
			return false
		}
		if e.owner.TryLock() {
			break
		}
		if tries > spinTries {
			runtime.Gosched()
		}
	}
	c := e.core
	e.collector.take(c)
	e.collector.do(c, op)
	if at := c.wakesAt(); c.slow || !at.IsZero() && (e.wakes.IsZero() || at.Before(e.wakes)) {
		e.poke()
	}
	e.owner.Unlock() // not after a panic: nothing may go on from a core that is half changed
	return true
}

// poke has the loop run what is queued, and check what is to be done.
func (e *Engine) poke() {
	select {
	case e.poked <- struct{}{}:
	default: // it will
	}
}

// pollPause is the time to the next poll of the wait queue.
func (e *Engine) pollPause() time.Duration {
	if e.cfg.PollInterval <= 0 {
		return 365 * 24 * time.Hour
	}
	return e.cfg.PollInterval + time.Duration(rand.Int64N(int64(e.cfg.PollJitter)+1))
}

func (e *Engine) signalReady() {
	if e.core.phase == normal {
		e.once.Do(func() { close(e.ready) })
	}
}

// revocations takes the revocations of operators.
func (e *Engine) revocations(m store.FeedMessage) {
	now := time.Now()
	if e.core.present(m.History); m.History == e.core.history {
		e.core.revokedRev = m.Revision
		e.core.reached(m.Revision, now)
	}
	if m.Snapshot != nil {
		if m.Snapshot.Reason != nil {
			e.core.mayBeRestored()
		}
		clear(e.core.wanted)
		for _, kv := range m.Snapshot.KVs {
			e.revocation(kv, now)
		}
	}
	for _, ev := range m.Events {
		e.revocation(ev.Kv, now)
	}
}

// revocation takes one revocation; without a value it was withdrawn, or is done.
func (e *Engine) revocation(kv *mvccpb.KeyValue, now time.Time) {
	key := string(kv.Key)
	var v revocationValue
	if len(kv.Value) > 0 {
		if err := store.Decode(key, kv.Value, &v); err != nil {
			e.cfg.Logger.Error("ignoring a revocation", "error", err)
			return
		}
	}
	e.core.revoke(strings.TrimPrefix(key, e.cfg.Keys.Revocations(e.cfg.Host)), v, kv.ModRevision, now)
}

// send has the loop run op.
func (e *Engine) send(ctx context.Context, op func(*core, time.Time)) error {
	select {
	case e.collector.ops <- op:
		e.poke()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.stopped:
		return errStopped
	}
}

var errStopped = problem.New(problem.Stopping, "berth is shutting down on this host")

// Claim claims slots, waiting for them as long as the request says. If ctx ends
// first, the claim leaves the wait queue, or is released if it was granted just then;
// a request with the same id within 10 s gets its place again. Its errors are
// problems. The engine keeps a copy of the request.
func (e *Engine) Claim(ctx context.Context, req *Request) (*Claim, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if err := ValidateExtra(req.Extra); err != nil {
		return nil, err
	}
	begun := time.Now()
	o := e.ask(ctx, req, req.Wait)
	if o.err != nil && e.outdated(ctx, o, poolNames(req.Slots)...) {
		o = e.ask(ctx, req, max(0, req.Wait-time.Since(begun)))
	}
	return o.claim, o.err
}

// ask is [Engine.Claim] for a request that can be asked, and waits for so long.
func (e *Engine) ask(ctx context.Context, req *Request, wait time.Duration) outcome {
	reply := make(chan outcome, 1)
	own := *req
	own.Slots, own.Holder.Labels, own.Wait = maps.Clone(req.Slots), maps.Clone(req.Holder.Labels), wait
	asked := newEntry(&own, e.cfg.Host, e.cfg.Instance)
	op := func(c *core, now time.Time) { c.request(asked, reply, now) }
	if ctx.Err() == nil && e.inline(op) {
		select {
		case o := <-reply:
			return o
		default:
		}
	} else if err := e.send(ctx, op); err != nil {
		return outcome{err: canceled(ctx, err)}
	}
	return e.granted(ctx, req.ID, wait, reply)
}

// granted waits for the answer to a request: as long as it says, if that is not 0,
// and until ctx ends.
func (e *Engine) granted(ctx context.Context, id string, wait time.Duration, reply chan outcome) outcome {
	var timeout <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case o := <-reply:
		return o
	case <-timeout:
		why := e.waitsFor(ctx, id)
		_ = e.send(context.WithoutCancel(ctx), func(c *core, now time.Time) { c.timeout(id, reply, why, now) })
		return e.await(reply)
	case <-ctx.Done():
		err := canceled(ctx, context.Cause(ctx))
		_ = e.send(context.WithoutCancel(ctx), func(c *core, now time.Time) { c.cancel(id, reply, err, now) })
		return outcome{err: err}
	case <-e.stopped:
		return outcome{err: errStopped}
	}
}

// Withdraw takes a claim out of the wait queue. Its requests are answered that it was
// canceled, or that it was granted, if that was in flight: unlike the end of a context,
// this leaves no outcome unknown. Its place is kept for 10 s.
func (e *Engine) Withdraw(ctx context.Context, id string) {
	_ = e.send(ctx, func(c *core, now time.Time) { c.withdraw(id, now) }) // else the engine has stopped, or the caller tries again
}

func canceled(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return problem.New(problem.ClaimCanceled, "the claim was canceled while it waited: %w", err)
}

func (e *Engine) await(reply <-chan outcome) outcome {
	select {
	case o := <-reply:
		return o
	case <-e.stopped:
		return outcome{err: errStopped}
	}
}

// Release gives a claim back and returns when its slots are free. A claim that
// has ended is no error.
func (e *Engine) Release(ctx context.Context, cl *Claim) error {
	reply := make(chan error, 1)
	op := func(c *core, now time.Time) { c.release(cl, reply, now) }
	if !e.inline(op) {
		if err := e.send(ctx, op); err != nil {
			return err
		}
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx) // it is released all the same
	case <-e.stopped:
	}
	select {
	case err := <-reply: // it came in time
		return err
	default:
		return errStopped
	}
}

// LeasesReady reports that a lease that was requested is there. Like the other lease
// events it never blocks, and has priority over claims and reads.
func (e *Engine) LeasesReady() {
	e.urgent.add(func(c *core, _ time.Time) { c.dirty = true })
}

// Reconsider has the engine try the waiting claims again: a place was returned (see
// [Request.Place]).
func (e *Engine) Reconsider() {
	e.urgent.add(func(c *core, _ time.Time) { c.dirty, c.refollow = true, true })
}

// LeaseLost reports that a lease has lost its validity: its claims are lost, and its waiters
// are written again, on another one.
func (e *Engine) LeaseLost(id store.LeaseID, cause error) {
	e.urgent.add(func(c *core, now time.Time) { c.leaseLost(id, cause, now) })
}

// End ends the validity of all claims, later grants included, and refuses new
// ones: this instance is stopping. The slots stay taken until their holders release
// them.
func (e *Engine) End(cause error) {
	e.urgent.add(func(c *core, _ time.Time) { c.end(cause) })
}

// Abandon leaves all claims to a later process, once Run has returned: here their
// contexts end, with cause. Their slots stay taken for as long as their leases live,
// and none counts as lost.
func (e *Engine) Abandon(cause error) {
	<-e.stopped
	e.core.abandon(cause)
}

// Stop refuses new claims and those that wait, from now on.
func (e *Engine) Stop(ctx context.Context) error {
	return e.send(ctx, func(c *core, _ time.Time) { c.stop() })
}

// Ready waits until the engine has a view and earlier writes of its instance are
// resolved.
func (e *Engine) Ready(ctx context.Context) error {
	select {
	case <-e.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.stopped:
		return errStopped
	}
}
