package coordinator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/list"
)

// metrics are those of one candidate. Those of runs are valid on the leader only.
type metrics struct {
	leading   prometheus.Gauge
	terms     prometheus.Counter
	ticks     prometheus.Counter
	phases    *prometheus.HistogramVec
	planSize  prometheus.Histogram
	published prometheus.Counter // step instances
	admitted  prometheus.Counter
	lost      *prometheus.CounterVec
	blocked   *prometheus.CounterVec
	runs      *prometheus.GaugeVec
	corrupt   prometheus.Gauge
	resyncs   prometheus.Counter
	freed     prometheus.Counter
	steps     *stepCollector
	pools     *poolCollector
	estimates *estimates

	compactions prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, journal *run.Journal, pools *poolCollector) *metrics {
	f := promauto.With(reg)
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "berth_coordinator_events_total", Help: "Events of runs that the coordinator has written.",
	}, func() float64 { return float64(journal.Written()) })
	steps := &stepCollector{}
	if reg != nil {
		reg.MustRegister(steps, pools)
	}
	return &metrics{
		steps: steps, pools: pools,
		estimates: &estimates{ratio: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_runs_wait_estimate_ratio", Help: "Actual by estimated wait of admitted runs that had an estimate, from when it was made.",
			Buckets: []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2, 4, 10},
		})},
		leading: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_coordinator_leading", Help: "1 while this process is the coordinator.",
		}),
		terms: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_terms_total", Help: "Times that this process became the coordinator.",
		}),
		ticks: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_ticks_total", Help: "Plans that were made.",
		}),
		phases: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_coordinator_tick_seconds", Help: "Duration of a tick, by phase: plan and apply.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"phase"}),
		planSize: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_coordinator_plan_changes", Help: "Changes per plan, of plans with changes.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}),
		published: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_steps_published_total", Help: "Step instances that were published for workers to take.",
		}),
		admitted: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_runs_admitted_total", Help: "Runs that were admitted.",
		}),
		lost: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_runs_lost_total", Help: "Executors of runs that were lost: gone, or never started (launch).",
		}, []string{"reason"}),
		blocked: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_runs_blocked_total", Help: "Block reasons written for queued runs, by kind.",
		}, []string{"kind"}),
		runs: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "berth_runs", Help: "Runs by status, ended runs in one; on the leader.",
		}, []string{"status"}),
		corrupt: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_runs_corrupt", Help: "Keys of runs and limits that cannot be read; on the leader.",
		}),
		freed: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_runs_claims_revoked_total", Help: "Claims that were revoked because their run had ended.",
		}),
		compactions: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_compactions_total", Help: "Compactions of etcd's history.",
		}),
		resyncs: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_resyncs_total", Help: "Times that everything was read again from etcd.",
		}),
	}
}

// plan notes a plan that was made between two times.
func (m *metrics) plan(begun, done time.Time, p Plan) {
	m.ticks.Inc()
	m.phases.WithLabelValues("plan").Observe(done.Sub(begun).Seconds())
	if n := len(p.Lost) + len(p.Expired) + len(p.Admit) + len(p.Blocks); n > 0 {
		m.planSize.Observe(float64(n))
	}
}

func (m *metrics) applied(begun, done time.Time) {
	m.phases.WithLabelValues("apply").Observe(done.Sub(begun).Seconds())
}

// state notes how many runs there are, and how their steps stand.
func (m *metrics) state(s *state) {
	running := 0
	for _, r := range s.progress {
		if r.Status == run.Running {
			running++
		}
	}
	m.runs.WithLabelValues(string(run.Queued)).Set(float64(s.queue.Len()))
	m.runs.WithLabelValues("deferred").Set(float64(s.deferred.Len()))
	m.runs.WithLabelValues(string(run.NotStarted)).Set(float64(len(s.progress) - running))
	m.runs.WithLabelValues(string(run.Running)).Set(float64(running))
	m.runs.WithLabelValues("ended").Set(float64(len(s.ended)))
	m.corrupt.Set(float64(len(s.bad)))
	m.steps.newest.Store(s.stepFigures())
}

// maxQueues bounds the queues with a metric of their own: users name them. Those with the
// fewest instances have a common one.
const (
	maxQueues   = 50
	otherQueues = "(others)"
)

// stepFigures are the figures of steps: sums over the runs in progress.
type stepFigures struct {
	// statuses counts instances, in the order of [step.Statuses].
	statuses []int
	// ofSteps are the windows of steps (concurrency), and ofRuns those of runs
	// (max_concurrent_steps).
	ofSteps, ofRuns windowFigures
	// ready counts the published instances by queue.
	ready map[string]int
}

// windowFigures sum up windows.
type windowFigures struct {
	// limit is how many of the remaining instances they allow to be in flight.
	limit, inFlight int
}

// stepFigures counts step instances. Of a run that has ended, only those that are still
// published count.
func (s *state) stepFigures() *stepFigures {
	f := &stepFigures{statuses: make([]int, len(step.Statuses)), ready: map[string]int{}}
	for id, r := range s.progress {
		if fan := s.steps.fans[id]; fan != nil {
			f.add(fan, r.MaxConcurrentSteps)
		}
	}
	for id := range s.steps.ending {
		fan := s.steps.fans[id]
		if fan == nil || s.progress[id] != nil {
			continue
		}
		for i := range fan.steps {
			if st := &fan.steps[i]; st.scheduled > 0 {
				f.ready[st.Queue] += st.scheduled
			}
		}
	}
	f.ready = most(f.ready, maxQueues)
	return f
}

// add counts the instances of a run in progress.
func (f *stepFigures) add(fan *fanout, window int) {
	open := 0 // instances that could be in flight without windows
	for i := range fan.steps {
		st := &fan.steps[i]
		ended := st.succeeded + st.failed + st.canceled
		for n, count := range []int{
			st.Count - ended - st.inFlight, st.scheduled, st.inFlight - st.scheduled, st.succeeded, st.failed, st.canceled,
		} {
			f.statuses[n] += count
		}
		if ended < st.Count {
			f.ready[st.Queue] += st.scheduled
		}
		left := st.inFlight
		if st.missing == 0 {
			left = st.Count - ended
		}
		open += left
		if st.Concurrency > 0 {
			f.ofSteps.add(min(st.Concurrency, left), st.inFlight)
		}
	}
	if window > 0 {
		f.ofRuns.add(min(window, open), fan.inFlight)
	}
}

func (w *windowFigures) add(limit, inFlight int) {
	w.limit, w.inFlight = w.limit+limit, w.inFlight+inFlight
}

// most keeps the names with the largest counts, and sums up the others.
func most(of map[string]int, keep int) map[string]int {
	if len(of) <= keep {
		return of
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b))
	})
	kept := make(map[string]int, keep)
	for i, name := range names {
		if i >= keep-1 {
			kept[otherQueues] += of[name]
			continue
		}
		kept[name] = of[name]
	}
	return kept
}

var (
	stepsByStatus   = prometheus.NewDesc("berth_steps", "Step instances of the runs in progress, by status.", []string{"status"}, nil)
	stepsReady      = prometheus.NewDesc("berth_steps_ready", "Step instances that were published to a queue and not taken yet.", []string{"queue"}, nil)
	windowsLimit    = prometheus.NewDesc("berth_step_windows_limit", "Remaining step instances that the windows of steps (concurrency) and of runs (max_concurrent_steps) allow to be in flight.", []string{"of"}, nil)
	windowsInFlight = prometheus.NewDesc("berth_step_windows_in_flight", "Step instances in flight in these windows.", []string{"of"}, nil)
)

// stepCollector collects the newest figures; none while this candidate does not lead.
type stepCollector struct{ newest atomic.Pointer[stepFigures] }

// Describe implements [prometheus.Collector].
func (c *stepCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{stepsByStatus, stepsReady, windowsLimit, windowsInFlight} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *stepCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.newest.Load()
	if f == nil {
		return
	}
	emit := func(d *prometheus.Desc, n int, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	for i, s := range step.Statuses {
		emit(stepsByStatus, f.statuses[i], string(s))
	}
	for queue, n := range f.ready {
		emit(stepsReady, n, queue)
	}
	for of, w := range map[string]windowFigures{"step": f.ofSteps, "run": f.ofRuns} {
		emit(windowsLimit, w.limit, of)
		emit(windowsInFlight, w.inFlight, of)
	}
}

var (
	poolLimit   = prometheus.NewDesc("berth_pool_limit", "Slots of a pool; -1 is unlimited. On the leader.", []string{"pool"}, nil)
	poolClaimed = prometheus.NewDesc("berth_pool_claimed", "Slots of a pool that are claimed, by all hosts. On the leader.", []string{"pool"}, nil)
	poolWaiting = prometheus.NewDesc("berth_pool_waiting", "Claims that wait for a pool, on all hosts. On the leader.", []string{"pool"}, nil)
	poolPaused  = prometheus.NewDesc("berth_pool_paused", "1 while a pool is paused. On the leader.", []string{"pool"}, nil)
)

// poolCollector reads the pools from etcd at each scrape, while this candidate leads.
type poolCollector struct {
	backend store.Backend
	keys    store.Keys
	leading atomic.Bool
}

// scrapeTimeout bounds the reading of a scrape.
const scrapeTimeout = 5 * time.Second

// Describe implements [prometheus.Collector].
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolLimit, poolClaimed, poolWaiting, poolPaused} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. While etcd does not answer there is nothing.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leading.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	read, err := list.Read(ctx, c.backend, c.keys)
	if err != nil {
		return
	}
	for _, p := range read.Pools() {
		emit := func(d *prometheus.Desc, n int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), p.Name)
		}
		emit(poolLimit, p.Limit)
		emit(poolClaimed, p.Claimed)
		emit(poolWaiting, p.Waiting)
		paused := 0
		if p.Paused {
			paused = 1
		}
		emit(poolPaused, paused)
	}
}
