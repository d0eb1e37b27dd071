package worker

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

const (
	// stepLease is the duration of the leases of instances without slots: how long they
	// remain a worker's after its host has died.
	stepLease = time.Minute
	// tickEvery is how often validity is extended, and everything is checked again.
	tickEvery = 500 * time.Millisecond
)

// Role is the role of workers among the instances of a host.
const Role = "worker"

// Config configures a [Worker].
type Config struct {
	// Client is used by this worker alone. It has an instance name and a state directory.
	Client *instance.Client
	// Queues are the queues of the worker, at least one.
	Queues []string
	// Concurrency is how many instances it can have at the same time, at least 1.
	Concurrency int
	// CommandsFrom are the submitters whose commands the worker runs; nil is all. An instance
	// of a run that another identity has submitted fails at once.
	CommandsFrom access.Patterns
	// Runner runs the instances.
	Runner Runner
	// Dir contains the folders of its instances.
	Dir string
	// OutputDir is where the output of attempts is kept for a day, up to KeepOutput bytes
	// in all. If it is empty, none is kept.
	OutputDir  string
	KeepOutput int64
	// Retention is how long events and output are kept.
	Retention time.Duration
	// MaxRunEvents bounds the events of a run; [run.DefaultMaxEvents] if 0.
	MaxRunEvents int

	// Tracer makes a span of each attempt; nil makes none.
	Tracer     *trace.Tracer
	Logger     hclog.Logger
	Registerer prometheus.Registerer
}

// Worker takes published step instances and runs them.
type Worker struct {
	cfg Config
	log hclog.Logger
	// refusals bounds the log of steps that are refused.
	refusals lograte.Limit
	clock    lease.Clock
	steps    step.Store
	keys     store.Keys
	by       run.Executor
	folders  folders
	metrics  *metrics

	queues    []*queue
	feeds     []*store.Feed
	canceled  *canceled
	peers     *peers
	followers *followers
	outputs   *outputs
	mode      *mode

	// calls are functions that other goroutines pass to the loop.
	calls chan func()
	// running counts the calls of async; quiesced gets a value when there are none any more.
	running  atomic.Int64
	quiesced chan struct{}

	// Only the loop uses what follows.

	active map[store.StepID]*execution
	freed  int // those of them that occupy no capacity any more
	// places are as many as the concurrency: each instance that is being taken, or was
	// taken, has one. early are executions whose ends are being written, and whose places can
	// be passed on: see [deal].
	places *pool.Places
	early  []*execution
	// taking are the instances that are being taken, with the revisions of their
	// publications; waiting are those of them that wait for slots.
	taking  map[store.StepID]int64
	waiting map[store.StepID]waiter
	// resting are slot requirements that were refused.
	resting map[string]rested
	help    *help
	// passed are publications that were taken by any worker, by their order, until the
	// feeds report their deletion.
	passed map[string]int64
	// waited is how long publications have waited for slots, by their order.
	waited     map[string]waited
	unresolved []*unresolved
	refusing   int // instances that are being refused
	sweeping   bool
	drained    bool // it takes nothing new
	dirty      bool
	pace       time.Duration   // recent duration of a write
	again      *time.Timer     // until the turn of other workers has passed
	ended      chan struct{}   // closed when it is drained and has none
	left       chan struct{}   // closed when Run returns
	quit       context.Context // ends with left
	leave      context.CancelFunc
	// orphans are the unknown instances of the last sweep.
	orphans map[store.StepID]int64
	once    sync.Once
}

// Rights returns a function for the rights that a worker of queues needs of etcd, beyond
// those of any instance.
func Rights(queues []string) func(store.Keys, string) []store.Right {
	return func(k store.Keys, host string) []store.Right {
		var all []store.Right
		for _, prefix := range []string{k.Hosts(), k.Runs(), k.WorksAll(), k.Followers(), k.WorkersOf(host)} {
			all = append(all, store.ReadRights(store.Prefix(prefix))...)
		}
		writes := []string{k.StepsAll(), k.CanceledAll(), k.EventsAll(), k.LogsAll()}
		for _, q := range queues {
			writes = append(writes, k.Ready(q))
		}
		for _, prefix := range writes {
			all = append(all, store.WriteRights(store.Prefix(prefix))...)
		}
		return all
	}
}

// New returns a worker that does nothing until [Worker.Run].
func New(cfg Config) *Worker {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.CommandsFrom == nil {
		cfg.CommandsFrom = access.Patterns{access.Everything}
	}
	backend, keys := cfg.Client.Store()
	name := cfg.Client.Host() + "/" + cfg.Client.Instance()
	journal := run.NewJournal(backend, keys, name, cfg.Retention).Bound(cfg.MaxRunEvents)
	w := &Worker{
		cfg: cfg, log: cfg.Logger.Named("worker"), clock: lease.BootClock(), keys: keys,
		steps:    step.Store{Backend: backend, Keys: keys, Journal: journal, Group: &store.Group{}},
		by:       executorOf(cfg.Client),
		folders:  folders{root: cfg.Dir},
		calls:    make(chan func(), 64),
		quiesced: make(chan struct{}, 1),
		places:   pool.NewPlaces(cfg.Concurrency),
		active:   map[store.StepID]*execution{}, taking: map[store.StepID]int64{},
		waiting: map[store.StepID]waiter{}, resting: map[string]rested{}, help: newHelp(), passed: map[string]int64{}, waited: map[string]waited{},
		ended: make(chan struct{}), left: make(chan struct{}), orphans: map[store.StepID]int64{},
		canceled: newCanceled(keys), followers: newFollowers(keys),
		peers: newPeers(keys, cfg.Client.Host(), cfg.Client.Instance(), cfg.Logger),
	}
	w.quit, w.leave = context.WithCancel(context.Background())
	w.metrics = newMetrics(cfg.Registerer, cfg.Concurrency)
	feed := func(prefix string) *store.Feed { return store.NewFeed(backend, prefix, w.log, w.metrics.resyncs.Inc) }
	for _, name := range cfg.Queues {
		w.queues = append(w.queues, newQueue(keys, name, cfg.CommandsFrom))
		w.feeds = append(w.feeds, feed(keys.Ready(name)))
	}
	w.canceled.feed = feed(keys.CanceledAll())
	w.peers.feed = feed(keys.Hosts())
	w.followers.feed = feed(keys.Followers())
	key := keys.Worker(w.by.Host, w.by.Instance)
	w.mode = &mode{key: key, feed: feed(key)}
	w.outputs = newOutputs(cfg.OutputDir, cfg.KeepOutput, w.log)
	w.outputs.dropNames = func(ctx context.Context, files map[string]store.StepID) error {
		return w.steps.DropFiles(ctx, w.by.Host, files)
	}
	return w
}

// Run works until ctx ends, and returns its cause. It leaves its instances to the next
// process, unless [Worker.Stop] was called before.
func (w *Worker) Run(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	var feeds sync.WaitGroup
	messages := make(chan func())
	for i, f := range w.feeds {
		feeds.Go(func() { _ = f.Run(inner) })
		feeds.Go(func() { pass(inner, f, messages, func(m store.FeedMessage) { w.message(w.queues[i], m) }) })
	}
	feeds.Go(func() { _ = w.mode.feed.Run(inner) })
	feeds.Go(func() { pass(inner, w.mode.feed, messages, w.asked) })
	feeds.Go(func() { _ = w.canceled.feed.Run(inner) })
	feeds.Go(func() { pass(inner, w.canceled.feed, messages, w.cancels) })
	feeds.Go(func() { _ = w.peers.feed.Run(inner) })
	feeds.Go(func() { pass(inner, w.peers.feed, messages, w.peers.message) })
	feeds.Go(func() { _ = w.followers.feed.Run(inner) })
	feeds.Go(func() { pass(inner, w.followers.feed, messages, w.followersChanged) })
	defer func() {
		cancel()
		close(w.left)
		w.leave()
		for _, e := range w.active {
			e.leave()
		}
		feeds.Wait()
		w.await()
	}()
	if err := w.resume(ctx); err != nil {
		return err
	}
	if err := w.follow(inner, &feeds); err != nil {
		return err
	}
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	w.again = time.NewTimer(shortTurn)
	defer w.again.Stop()
	for {
		w.refuse()
		w.take(inner)
		w.checkEnded()
		select {
		case do := <-messages:
			do()
		case do := <-w.calls:
			do()
		case <-tick.C:
			w.check()
		case <-sweep.C:
			w.sweep(inner)
			w.sweepOutputs()
		case <-w.again.C:
			w.dirty = true
		case <-w.places.Given():
			w.dirty = true
			if len(w.waiting) > 0 {
				w.cfg.Client.Reconsider()
			}
		case <-w.cfg.Client.Done():
			return w.cfg.Client.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		w.more(messages)
	}
}

// executorOf returns the worker as executor of step instances.
func executorOf(c *instance.Client) run.Executor {
	by := run.Executor{Host: c.Host(), Instance: c.Instance(), User: access.UserOf(uint32(os.Getuid())).String()}
	if id := c.Identity(); id.Authenticated() {
		by.EtcdUser = id.String()
	}
	return by
}

// follow writes the events of the slots of instances to the events of their runs.
func (w *Worker) follow(ctx context.Context, tasks *sync.WaitGroup) error {
	claims, err := w.cfg.Client.SubscribeRuns(ctx)
	if err != nil {
		return err
	}
	tasks.Go(func() {
		_ = w.steps.Journal.Follow(ctx, claims, run.Followed{ // it ends with ctx
			Host: w.by.Host, Of: hasSlotEvent,
			Dropped: func(n int) {
				w.log.Debug("events of slots were not written to the events of their runs", "events", n)
			},
		})
	})
	return nil
}

// more handles what is pending, so that it is considered together.
func (w *Worker) more(messages <-chan func()) {
	for range 256 {
		select {
		case do := <-messages:
			do()
		case do := <-w.calls:
			do()
		default:
			return
		}
	}
}

// pass passes a feed's messages to the loop.
func pass(ctx context.Context, f *store.Feed, to chan<- func(), do func(store.FeedMessage)) {
	for {
		select {
		case m, ok := <-f.Messages():
			if !ok {
				return
			}
			select {
			case to <- func() { do(m) }:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// post has the loop call do.
func (w *Worker) post(do func()) { w.calls <- do }

// async calls do outside of the loop.
func (w *Worker) async(do func()) {
	w.running.Add(1)
	go func() {
		defer func() {
			if w.running.Add(-1) == 0 {
				select {
				case w.quiesced <- struct{}{}:
				default: // await has not received the last one yet
				}
			}
		}()
		do()
	}()
}

// await waits for the calls of async, and still handles what they post, which may start
// others: an instance that was just taken must be known.
func (w *Worker) await() {
	for w.running.Load() > 0 || len(w.calls) > 0 {
		select {
		case do := <-w.calls:
			do()
		case <-w.quiesced:
		}
	}
}

// message applies a message of the feed of a queue.
func (w *Worker) message(q *queue, m store.FeedMessage) {
	for _, err := range q.message(m, time.Now()) {
		w.log.Error("ignoring a value that cannot be read", "error", err)
	}
	w.dirty = w.dirty || m.Snapshot != nil || len(m.Events) > 0
	if slices.ContainsFunc(m.Events, func(e *mvccpb.Event) bool { return e.Type == mvccpb.Event_PUT }) {
		w.metrics.wakes.Inc()
	}
	w.withdrawGone(q)
}

// capacity returns how many more instances the worker can have.
func (w *Worker) capacity() int {
	return max(0, w.cfg.Concurrency-w.has()-(len(w.taking)-len(w.waiting)))
}

// has returns how many instances occupy capacity.
func (w *Worker) has() int { return len(w.active) - w.freed }

// Drain makes the worker take nothing new. The channel is closed when it has no instance.
func (w *Worker) Drain(ctx context.Context) <-chan struct{} {
	w.ask(ctx, func() {
		w.drained = true
		w.withdrawAll()
	})
	return w.ended
}

// Stop stops all instances of the worker: each command gets SIGTERM, and SIGKILL after its
// grace. It implies [Worker.Drain].
func (w *Worker) Stop(ctx context.Context) {
	w.ask(ctx, func() {
		w.drained = true
		w.withdrawAll()
		for _, e := range w.active {
			e.stop(byWorker, "its worker was stopped")
		}
	})
}

// ask is post, unless ctx ends first.
func (w *Worker) ask(ctx context.Context, do func()) {
	select {
	case w.calls <- do:
	case <-ctx.Done():
	}
}

// checkEnded closes ended when a drained worker has no instance.
func (w *Worker) checkEnded() {
	if w.drained && len(w.active)+len(w.taking)+len(w.unresolved) == 0 {
		w.once.Do(func() { close(w.ended) })
	}
}

// Active returns how many instances the worker has.
func (w *Worker) Active() int { return int(w.metrics.count.Load()) }

// notTaken reports whether err means that another worker has the instance.
func notTaken(err error) bool { return problem.CodeOf(err) == problem.StepTaken }
