package pool

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// EventType is the kind of an [Event].
type EventType string

// The types of events.
const (
	// PoolChanged: a pool's spec, holders or waiters changed, on any host. See
	// [Engine.SubscribePools].
	PoolChanged EventType = "PoolChanged"
	// ClaimWaiting, and what follows, are claims of this instance. See [Engine.Subscribe].
	ClaimWaiting EventType = "ClaimWaiting"
	ClaimGranted EventType = "ClaimGranted"
	// ClaimRenewed: the lease of a claim that carries a run was renewed, for the first
	// time, or for the first time after a gap, as its Reason says then.
	ClaimRenewed  EventType = "ClaimRenewed"
	ClaimReleased EventType = "ClaimReleased"
	ClaimEnded    EventType = "ClaimEnded" // lost or revoked: see Reason
)

// Event is something that happened to pools or claims.
type Event struct {
	Type EventType `json:"type"`
	// Pools concerned.
	Pools []string `json:"pools"`
	// Claim is the claim's id, empty for a pool; Run and Step are what it is for.
	Claim string `json:"claim,omitempty"`
	Run   string `json:"run,omitempty"`
	Step  string `json:"step,omitempty"`
	// ClaimedBy is the identity that has made the claim, and Bind how it is bound: see [Holder].
	ClaimedBy string `json:"-"`
	Bind      string `json:"-"`
	// Reason why a claim waits, or ended, or was renewed only now.
	Reason string `json:"reason,omitempty"`
	// Lagged is set if events before this one were dropped, because the reader was
	// too slow: read the state again.
	Lagged bool `json:"lagged,omitempty"`
}

// Observer is notified of the progress of a request, by the goroutine that plans: its methods
// must not block.
type Observer interface {
	// Waits is called when the request has to wait, and may be called again.
	Waits(since time.Time)
	// Written is called on the first of the observers of a transaction that has granted their
	// requests, before the requests are answered. It is not called for a grant by the dispatcher
	// of another instance, for one without a write, and for one whose answer was lost.
	Written(w Write)
}

// Write is a transaction that has granted claims.
type Write struct {
	Sent, Answered time.Time
	Revision       int64
	// Grants and Releases are how many the transaction has, of any claims.
	Grants, Releases int
	// Observers are those of the requests that it has granted.
	Observers []Observer
}

// observe notifies the observers of the grants of a committed batch.
func (b *batch) observe(resp *pb.TxnResponse, now time.Time) {
	var all []Observer
	for _, g := range b.grants {
		if o := g.e.req.Observer; o != nil && outcomeOf(b, g, resp) == granted {
			all = append(all, o)
		}
	}
	if len(all) > 0 {
		all[0].Written(Write{b.at, now, resp.Header.Revision, len(b.grants), len(b.releases), all})
	}
}

// eventBuffer is how many events a reader may be behind.
const eventBuffer = 256

// subscriber gets events in order; a slow one loses some and gets [Event.Lagged].
type subscriber struct {
	events chan Event
	runs   bool // it wants those of claims that carry a run, and no others
	lagged bool
}

// send hands an event to the subscriber, or leaves it out.
func (s *subscriber) send(ev Event) {
	ev.Lagged = s.lagged
	select {
	case s.events <- ev:
		s.lagged = false
	default:
		s.lagged = true
	}
}

// broker hands events of claims to subscribers. Only the loop uses it.
type broker struct {
	subs []*subscriber
	// For a cheap check: some subscriber wants all events, or those of runs.
	any, runs atomic.Bool
}

// wants reports whether any subscriber wants the events of an entry.
func (b *broker) wants(e *entry) bool {
	return b.any.Load() || b.runs.Load() && e.req.Holder.Run != ""
}

func (b *broker) publish(ev Event) {
	for _, s := range b.subs {
		if s.runs && ev.Run == "" {
			continue
		}
		s.send(ev)
	}
}

func (b *broker) add(s *subscriber) {
	b.subs = append(b.subs, s)
	b.note()
}

func (b *broker) remove(s *subscriber) {
	if i := slices.Index(b.subs, s); i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
	}
	b.note()
}

func (b *broker) note() {
	b.any.Store(slices.ContainsFunc(b.subs, func(s *subscriber) bool { return !s.runs }))
	b.runs.Store(slices.ContainsFunc(b.subs, func(s *subscriber) bool { return s.runs }))
}

// publish publishes an event of a claim of this instance.
func (c *core) publish(t EventType, e *entry, reason string) {
	if c.broker.wants(e) {
		c.broker.publish(Event{
			Type: t, Pools: poolNames(e.req.Slots), Claim: e.req.ID,
			Run: e.req.Holder.Run, Step: e.req.Holder.Step, Reason: reason,
			ClaimedBy: e.req.Holder.ClaimedBy, Bind: e.req.Holder.Bind,
		})
	}
}

// Subscribe returns the events of this instance's claims from now on, until ctx ends. The
// channel is never closed. The sender does not wait for the reader: see [Event.Lagged].
func (e *Engine) Subscribe(ctx context.Context) (<-chan Event, error) {
	return e.subscribe(ctx, &subscriber{events: make(chan Event, eventBuffer)})
}

// SubscribeRuns is [Engine.Subscribe] for those of claims that carry a run.
func (e *Engine) SubscribeRuns(ctx context.Context) (<-chan Event, error) {
	return e.subscribe(ctx, &subscriber{events: make(chan Event, eventBuffer), runs: true})
}

func (e *Engine) subscribe(ctx context.Context, s *subscriber) (<-chan Event, error) {
	if err := e.send(ctx, func(c *core, _ time.Time) { c.broker.add(s) }); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		_ = e.send(context.Background(), func(c *core, _ time.Time) { c.broker.remove(s) })
	})
	return s.events, nil
}

// feedGrace is for how long pools are watched after their last subscriber, which may come
// again.
const feedGrace = 5 * time.Second

// SubscribePools is [Engine.Subscribe] for the changes of some pools; none are all. The
// engine watches them for as long as there are subscribers. What is read after an event
// shows it.
func (e *Engine) SubscribePools(ctx context.Context, pools ...string) (<-chan Event, error) {
	if len(pools) == 0 {
		pools = []string{allPools}
	}
	s := &subscriber{events: make(chan Event, eventBuffer)}
	if err := e.feeds.add(s, pools); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { e.feeds.remove(s) })
	return s.events, nil
}

// poolFeeds watch the pools that have subscribers.
type poolFeeds struct {
	e *Engine

	mu     sync.Mutex // guards what follows, and the subscribers
	byPool map[string]*poolFeed
	closed bool
	tasks  sync.WaitGroup
}

// poolFeed watches one pool, or all.
type poolFeed struct {
	cancel context.CancelFunc
	subs   []*subscriber
	idle   *time.Timer // ends it; nil while there are subscribers
	// pools are those that it has delivered anything of.
	pools map[string]bool
}

func newPoolFeeds(e *Engine) *poolFeeds { return &poolFeeds{e: e, byPool: map[string]*poolFeed{}} }

// add adds a subscriber of some pools.
func (f *poolFeeds) add(s *subscriber, pools []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errStopped
	}
	for _, pool := range pools {
		p := f.byPool[pool]
		if p == nil {
			p = f.watch(pool)
		}
		if p.idle != nil {
			p.idle.Stop()
			p.idle = nil
		}
		p.subs = append(p.subs, s)
	}
	return nil
}

// remove removes a subscriber.
func (f *poolFeeds) remove(s *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pool, p := range f.byPool {
		p.subs = slices.DeleteFunc(p.subs, func(o *subscriber) bool { return o == s })
		if len(p.subs) == 0 && p.idle == nil {
			p.idle = time.AfterFunc(feedGrace, func() { f.end(pool, p) })
		}
	}
}

// end ends a feed without subscribers.
func (f *poolFeeds) end(pool string, p *poolFeed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p.subs) == 0 && f.byPool[pool] == p {
		delete(f.byPool, pool)
		p.cancel()
	}
}

// watch begins to watch a pool, or all. The feed begins at a revision that every later read
// shows, so that no change is missed. The lock is held.
func (f *poolFeeds) watch(pool string) *poolFeed {
	e, prefix := f.e, f.e.cfg.Keys.Pools()
	if pool != allPools {
		prefix = e.cfg.Keys.Pool(pool)
	}
	from := e.revision.Load()
	e.reads.atLeast(from)
	feed := store.NewFeedAfter(e.cfg.Backend, prefix, from, e.cfg.Logger, e.core.metrics.resyncs.Inc)
	ctx, cancel := context.WithCancel(context.Background())
	p := &poolFeed{cancel: cancel, pools: map[string]bool{}}
	if pool != allPools {
		p.pools[pool] = true
	}
	f.byPool[pool] = p
	f.tasks.Go(func() { _ = feed.Run(ctx) })
	f.tasks.Go(func() {
		for m := range feed.Messages() {
			f.publish(p, m)
		}
	})
	return p
}

// publish publishes which pools a message has changed.
func (f *poolFeeds) publish(p *poolFeed, m store.FeedMessage) {
	changed := map[string]bool{}
	note := func(key []byte) {
		if k, err := f.e.cfg.Keys.ParsePoolKey(string(key)); err == nil {
			changed[k.Pool], p.pools[k.Pool] = true, true
		}
	}
	for _, ev := range m.Events {
		note(ev.Kv.Key)
	}
	if m.Snapshot != nil {
		for _, kv := range m.Snapshot.KVs {
			note(kv.Key)
		}
		changed = p.pools // those that are gone have changed too
	}
	if len(changed) == 0 {
		return
	}
	f.e.reads.atLeast(m.Revision)
	ev := Event{Type: PoolChanged, Pools: sortedKeys(changed)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range p.subs {
		s.send(ev)
	}
}

// close ends all feeds.
func (f *poolFeeds) close() {
	f.mu.Lock()
	f.closed = true
	for _, p := range f.byPool {
		p.cancel()
		if p.idle != nil {
			p.idle.Stop()
		}
	}
	f.mu.Unlock()
	f.tasks.Wait()
}

// metrics of one engine. What it holds and waits for is not among them: it is counted at
// each scrape, see [Engine.Collect].
type metrics struct {
	grants         prometheus.Counter
	wait           prometheus.Histogram
	refusals       *prometheus.CounterVec
	losses         *prometheus.CounterVec
	conflicts      prometheus.Counter
	outcomeUnknown prometheus.Counter
	resyncs        prometheus.Counter
	regrants       prometheus.Counter
	journaled      prometheus.Counter
	recalls        prometheus.Counter
	batches        *prometheus.CounterVec
	batchSize      prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		grants: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_claims_granted_total", Help: "Claims granted to this instance.",
		}),
		wait: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_claim_wait_seconds",
			Help:    "Time from asking for a claim to its grant.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12), // 1 ms … 70 min
		}),
		refusals: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_claims_refused_total", Help: "Claims not granted, by reason.",
		}, []string{"reason"}),
		losses: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_claims_lost_total", Help: "Claims that ended before their release, by reason.",
		}, []string{"reason"}),
		conflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_claim_conflicts_total", Help: "Grants that another instance was faster with; each is tried again.",
		}),
		outcomeUnknown: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_claim_batches_outcome_unknown_total", Help: "Transactions without an answer, whose outcome had to be resolved.",
		}),
		resyncs: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_watch_resyncs_total", Help: "Times that a pool had to be read again in full, since a watch could not go on where it ended.",
		}),
		regrants: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_claims_regranted_total", Help: "Claims that were granted retained slots, whose keys were not written to etcd.",
		}),
		journaled: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_journal_writes_total", Help: "Entries that were appended to the journal of retained slots.",
		}),
		recalls: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_recalls_total", Help: "Recalls of retained slots of pools whose dispatcher this instance is.",
		}),
		batches: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_claim_batches_total", Help: "Transactions of claims and releases, by shape.",
		}, []string{"shape"}),
		batchSize: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_claim_batch_size",
			Help:    "Claims, releases and waiters in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 8), // 1 … 128
		}),
	}
}

var shapeNames = map[shape]string{flat: "flat", nested: "nested", wide: "wide", freeing: "freeing"}

func (m *metrics) batch(b *batch) {
	m.batches.WithLabelValues(shapeNames[b.shape]).Inc()
	m.batchSize.Observe(float64(b.size()))
}

func (m *metrics) granted(waited time.Duration) {
	m.grants.Inc()
	m.wait.Observe(waited.Seconds())
}

func (m *metrics) refused(code problem.Code) { m.refusals.WithLabelValues(string(code)).Inc() }
func (m *metrics) lost(code problem.Code)    { m.losses.WithLabelValues(string(code)).Inc() }

var (
	claimsHeld    = prometheus.NewDesc("berth_claims_held", "Claims of this instance that hold slots of a pool.", []string{"pool"}, nil)
	claimsWaiting = prometheus.NewDesc("berth_claims_waiting", "Claims of this instance that wait for a pool.", []string{"pool"}, nil)
	slotsRetained = prometheus.NewDesc("berth_slots_retained", "Slots of a pool that this instance retains, and that no claim holds.", []string{"pool"}, nil)
)

// Describe makes an engine a [prometheus.Collector] of what it holds and waits for.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	ch <- claimsHeld
	ch <- claimsWaiting
	ch <- slotsRetained
}

// scrapeTimeout bounds a scrape while the engine has not started yet.
const scrapeTimeout = time.Second

// Collect counts the claims of the engine by pool. Before it is ready it yields nothing.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	counts, err := query(ctx, e, func(c *core) [3]map[string]int { return c.counts() })
	if err != nil {
		return
	}
	for i, desc := range []*prometheus.Desc{claimsHeld, claimsWaiting, slotsRetained} {
		for pool, n := range counts[i] {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), pool)
		}
	}
}

// counts returns how many claims of this instance hold slots of each pool, how many wait, and how
// many slots it retains that none holds.
func (c *core) counts() [3]map[string]int {
	has, waits := map[string]int{}, map[string]int{}
	for _, e := range c.entries {
		for pool := range e.req.Slots {
			switch e.state {
			case held, releasing:
				has[pool]++
			case queued:
				waits[pool]++
			}
		}
	}
	return [3]map[string]int{has, waits, c.own().retained}
}
