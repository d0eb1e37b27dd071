package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

const (
	// stepLease is the duration of the leases by which instances without slots are
	// seen to be run: how long one stays a worker's whose host dies.
	stepLease = time.Minute
	// tickEvery is how often trust is put off, and what has ended is looked for.
	tickEvery = 500 * time.Millisecond
)

// Role is what workers are among the instances of a host.
const Role = "worker"

// Config is what a [Worker] needs.
type Config struct {
	// Client is the worker's own: an instance with a name and a state directory.
	Client *instance.Client
	// Queues are those that it takes from, at least one.
	Queues []string
	// Concurrency is how many instances it has at a time, from 1 on.
	Concurrency int
	// Runner runs them.
	Runner Runner
	// Dir is where the folders of its instances are.
	Dir string
	// OutputDir is where files are kept of what attempts have written, up to KeepOutput
	// bytes of them, for a day; empty: none are.
	OutputDir  string
	KeepOutput int64
	// Retention is how long events and output are kept.
	Retention time.Duration

	Logger     hclog.Logger
	Registerer prometheus.Registerer
}

// Worker takes published step instances and runs them.
type Worker struct {
	cfg     Config
	log     hclog.Logger
	clock   lease.Clock
	steps   step.Store
	keys    store.Keys
	by      run.Executor
	folders folders
	metrics *metrics

	queues   []*queue
	feeds    []*store.Feed
	canceled *canceled
	peers    *peers
	looks    *looks
	outputs  *outputs
	mode     *mode

	// told are what goroutines beside the loop want it to do.
	told  chan func()
	tasks sync.WaitGroup

	// What follows is the loop's own.

	active map[store.StepID]*execution
	freed  int // of them, that take no room any more
	// places are what it has to run instances in: each that is about to be taken, or was,
	// has one. Early are executions whose places are free for what is taken through the
	// group, since their ends go before it.
	places *pool.Places
	early  []*execution
	// taking are those on their way to be taken, with the revision at which they were
	// published; inLine are the ones of them that stand in line for slots.
	taking map[store.StepID]int64
	inLine map[store.StepID]inLine
	// resting are classes that were refused, by name.
	resting map[string]rested
	help    *help
	// passed are publications that were taken, here or by somebody else, by their order:
	// until the queues tell that they are gone.
	passed map[string]int64
	// waited is how long publications have waited for slots, by their order.
	waited   map[string]waited
	doubts   []*doubt
	sweeping bool
	drained  bool // it takes no more
	dirty    bool
	pace     time.Duration   // what a write takes, lately
	again    *time.Timer     // when instances are to be had whose turn has passed
	ended    chan struct{}   // closed when it drains and has none
	left     chan struct{}   // closed when Run is on its way out
	quit     context.Context // ends with that
	leave    context.CancelFunc
	// strangers are what the last sweep has seen and nobody knew.
	strangers map[store.StepID]int64
	once      sync.Once
}

// New returns a worker that does nothing until [Worker.Run].
func New(cfg Config) *Worker {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	backend, keys := cfg.Client.Store()
	name := cfg.Client.Host() + "/" + cfg.Client.Instance()
	journal := run.NewJournal(backend, keys, name, cfg.Retention)
	w := &Worker{
		cfg: cfg, log: cfg.Logger.Named("worker"), clock: lease.BootClock(), keys: keys,
		steps:   step.Store{Backend: backend, Keys: keys, Journal: journal, Group: &store.Group{}},
		by:      run.Executor{Host: cfg.Client.Host(), Instance: cfg.Client.Instance()},
		folders: folders{root: cfg.Dir},
		told:    make(chan func(), 64),
		places:  pool.NewPlaces(cfg.Concurrency),
		active:  map[store.StepID]*execution{}, taking: map[store.StepID]int64{},
		inLine: map[store.StepID]inLine{}, resting: map[string]rested{}, help: newHelp(), passed: map[string]int64{}, waited: map[string]waited{},
		ended: make(chan struct{}), left: make(chan struct{}), strangers: map[store.StepID]int64{},
		canceled: newCanceled(keys), looks: newLooks(keys),
		peers: newPeers(keys, cfg.Client.Host(), cfg.Client.Instance(), cfg.Logger),
	}
	w.quit, w.leave = context.WithCancel(context.Background())
	w.metrics = newMetrics(cfg.Registerer, cfg.Concurrency)
	feed := func(prefix string) *store.Feed { return store.NewFeed(backend, prefix, w.log, w.metrics.resyncs.Inc) }
	for _, name := range cfg.Queues {
		w.queues = append(w.queues, newQueue(keys, name))
		w.feeds = append(w.feeds, feed(keys.Ready(name)))
	}
	w.canceled.feed = feed(keys.CanceledAll())
	w.peers.feed = feed(keys.Hosts())
	w.looks.feed = feed(keys.Followers())
	key := keys.Worker(w.by.Host, w.by.Instance)
	w.mode = &mode{key: key, feed: feed(key)}
	w.outputs = newOutputs(cfg.OutputDir, cfg.KeepOutput, w.log)
	w.outputs.dropNames = func(ctx context.Context, files map[string]store.StepID) error {
		return w.steps.DropFiles(ctx, w.by.Host, files)
	}
	return w
}

// Run works until ctx ends, and returns its cause. What it has then is left as it is:
// to a next process, or to whoever has called [Worker.Stop] before.
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
	feeds.Go(func() { _ = w.looks.feed.Run(inner) })
	feeds.Go(func() { pass(inner, w.looks.feed, messages, w.looked) })
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
		w.take(inner)
		w.tellEnd()
		select {
		case do := <-messages:
			do()
		case do := <-w.told:
			do()
		case <-tick.C:
			w.look()
		case <-sweep.C:
			w.sweep(inner)
			w.sweepOutputs()
		case <-w.again.C:
			w.dirty = true
		case <-w.places.Given():
			w.dirty = true
			if len(w.inLine) > 0 {
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

// follow writes what happens to the slots of instances among the events of their runs,
// until ctx ends.
func (w *Worker) follow(ctx context.Context, tasks *sync.WaitGroup) error {
	claims, err := w.cfg.Client.SubscribeRuns(ctx)
	if err != nil {
		return err
	}
	tasks.Go(func() {
		_ = w.steps.Journal.Follow(ctx, claims, func(n int) { // it ends with ctx
			w.log.Debug("what happened to slots is not among the events of their runs", "events", n)
		})
	})
	return nil
}

// more does what is there already, so that what comes together is looked at together.
func (w *Worker) more(messages <-chan func()) {
	for range 256 {
		select {
		case do := <-messages:
			do()
		case do := <-w.told:
			do()
		default:
			return
		}
	}
}

// pass hands a feed's messages to the loop.
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

// tell has the loop do something.
func (w *Worker) tell(do func()) { w.told <- do }

// beside does something that takes time, beside the loop.
func (w *Worker) beside(do func()) { w.tasks.Go(do) }

// await waits until nothing is done beside the loop any more. What it is told is done
// still: an instance that was taken just then must be known.
func (w *Worker) await() {
	done := make(chan struct{})
	go func() {
		w.tasks.Wait()
		close(done)
	}()
	for {
		select {
		case do := <-w.told:
			do()
		case <-done:
			for {
				select {
				case do := <-w.told:
					do()
				default:
					return
				}
			}
		}
	}
}

// message takes what the feed of a queue delivered.
func (w *Worker) message(q *queue, m store.FeedMessage) {
	for _, err := range q.message(m, time.Now()) {
		w.log.Error("leaving out what can't be read", "error", err)
	}
	w.dirty = w.dirty || m.Snapshot != nil || len(m.Events) > 0
	if slices.ContainsFunc(m.Events, func(e *mvccpb.Event) bool { return e.Type == mvccpb.Event_PUT }) {
		w.metrics.wakes.Inc()
	}
	w.leaveGone(q)
}

// room is how many instances more it can have.
func (w *Worker) room() int {
	return max(0, w.cfg.Concurrency-w.has()-(len(w.taking)-len(w.inLine)))
}

// has is how many take room.
func (w *Worker) has() int { return len(w.active) - w.freed }

// Drain has the worker take no more. The channel is closed when it has none.
func (w *Worker) Drain(ctx context.Context) <-chan struct{} {
	w.ask(ctx, func() {
		w.drained = true
		w.leaveLines()
	})
	return w.ended
}

// Stop stops all that the worker has: each command is told, and killed after its
// grace. It implies [Worker.Drain].
func (w *Worker) Stop(ctx context.Context) {
	w.ask(ctx, func() {
		w.drained = true
		w.leaveLines()
		for _, e := range w.active {
			e.stop(byWorker, "its worker was stopped")
		}
	})
}

// ask tells the loop, unless ctx ends first.
func (w *Worker) ask(ctx context.Context, do func()) {
	select {
	case w.told <- do:
	case <-ctx.Done():
	}
}

// tellEnd tells that a worker that drains has none.
func (w *Worker) tellEnd() {
	if w.drained && len(w.active)+len(w.taking)+len(w.doubts) == 0 {
		w.once.Do(func() { close(w.ended) })
	}
}

// Active is how many instances the worker has; for its own status.
func (w *Worker) Active() int { return int(w.metrics.count.Load()) }

// notTaken are errors that tell that an instance is somebody else's.
func notTaken(err error) bool { return problem.CodeOf(err) == problem.StepTaken }
