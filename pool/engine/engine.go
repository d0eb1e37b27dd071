package engine

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/owner"
	"github.com/berthhq/berth/pool/wire"
)

// txnTimeout bounds the wait for the answer to a transaction; then its outcome is unknown.
const txnTimeout = 2 * time.Second

// Leases provides the leases of an instance.
type Leases interface {
	// When a lease has been granted that could not be acquired, [Engine.LeasesReady] is called.
	owner.Leases
	// Suspect reports that etcd did not know one of these leases.
	Suspect(ids ...store.LeaseID)
	// Trouble returns why the last grant of a lease failed, nil if it succeeded.
	Trouble() error
}

// Config is what an [Engine] needs.
type Config struct {
	Backend store.Backend
	Keys    store.Keys
	// Host and Instance name this engine. No two run under one name.
	Host, Instance string
	// Kind is that of the process.
	Kind wire.Kind
	// Leases are those of claims. WaiterLeases are those of claims that wait and of the dispatcher's role, of
	// [pool.WaiterTTL].
	Leases, WaiterLeases Leases
	// PollInterval is how often the offers to this instance, and whether anything dispatches, are read while claims wait, in
	// case that a watch is silent: each 5 s at least, also if it is 0. PollJitter is the longest time that is added at
	// random, so that instances do not poll at the same time.
	PollInterval, PollJitter time.Duration
	Logger                   hclog.Logger
}

// Engine makes the claims of one instance.
type Engine struct {
	cfg     Config
	keys    wire.Keys
	start   time.Time
	inbox   *inbox
	tasks   sync.WaitGroup // goroutines of the loop
	stopped chan struct{}  // closed when Run has returned
	ready   chan struct{}  // closed when claims can be made

	specs   *specs
	contact *contact
	feeds   *poolFeeds
	metrics *metrics
	*list.Lists
	*loop
}

// New returns an engine that does nothing until [Engine.Run].
func New(cfg Config) *Engine {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	cfg.Logger = cfg.Logger.Named("pool")
	e := &Engine{cfg: cfg, keys: wire.Keys{Keys: cfg.Keys}, start: time.Now(), inbox: newInbox(), stopped: make(chan struct{}), ready: make(chan struct{})}
	e.metrics = newMetrics(cfg.Kind)
	e.specs, e.contact, e.Lists = newSpecs(cfg.Backend, cfg.Keys), newContact(e), list.NewLists(cfg.Backend, cfg.Keys, e.own)
	e.loop, e.feeds = newLoop(e), newPoolFeeds(e)
	return e
}

// now is the time since the engine was made.
func (e *Engine) now() time.Duration { return time.Since(e.start) }

// Run works until ctx ends, and returns its error when all goroutines have ended. Claims are not released.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	e.tasks.Go(func() { e.sweepGuards(ctx) })
	e.loop.run(ctx)
	cancel()
	e.tasks.Wait()
	e.feeds.close()
	e.inbox.close()
	close(e.stopped)
	return context.Cause(ctx)
}

// Ready waits until claims can be made: earlier writes of this instance can no longer happen.
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

var errStopped = problem.New(problem.Stopping, "berth is shutting down on this host")

// txn sends a transaction, and has the loop take its answer.
func (e *Engine) txn(ctx context.Context, t *pb.TxnRequest, answer func(*pb.TxnResponse, error)) {
	var resp *pb.TxnResponse
	e.fetch(ctx, func(ctx context.Context) (err error) {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(ctx, txnTimeout)
		defer cancel()
		if resp, err = e.cfg.Backend.Txn(ctx, t); err == nil {
			e.contact.answered(asked, resp.Header)
		} else {
			e.contact.failed(err)
		}
		return err
	}, func(err error) {
		if err != nil {
			resp = nil
		}
		answer(resp, err)
	})
}

// fetch has f ask etcd, in a goroutine of its own, and then the loop run done, with the error. An answer that may be of before a
// restore of etcd is an error, too.
func (e *Engine) fetch(ctx context.Context, f func(context.Context) error, done func(error)) {
	ctx, history := store.WithCluster(ctx, e.restore.cluster), e.restore.history
	e.tasks.Go(func() {
		err := f(ctx)
		e.inbox.put(func() {
			if err == nil && history != e.cfg.Backend.History() {
				err = store.ErrUnavailable
			}
			done(err)
		})
	})
}
