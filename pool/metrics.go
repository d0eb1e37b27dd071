package pool

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/berthhq/berth/internal/problem"
)

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
)

// Describe makes an engine a [prometheus.Collector] of what it holds and waits for.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) { ch <- claimsHeld; ch <- claimsWaiting }

// scrapeTimeout bounds a scrape while the engine has not started yet.
const scrapeTimeout = time.Second

// Collect counts the claims of the engine by pool. Before it is ready it yields nothing.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	counts, err := query(ctx, e, func(c *core) [2]map[string]int { return c.counts() })
	if err != nil {
		return
	}
	for i, desc := range []*prometheus.Desc{claimsHeld, claimsWaiting} {
		for pool, n := range counts[i] {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), pool)
		}
	}
}

// counts returns how many claims of this instance hold slots of each pool, and how many wait.
func (c *core) counts() [2]map[string]int {
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
	return [2]map[string]int{has, waits}
}
