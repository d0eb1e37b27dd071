package worker

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of one worker.
type metrics struct {
	count     atomic.Int64
	taken     *prometheus.HistogramVec
	finish    prometheus.Histogram
	durations prometheus.Histogram
	ends      *prometheus.CounterVec
	conflicts prometheus.Counter
	resyncs   prometheus.Counter
	wakes     prometheus.Counter
	picks     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, concurrency int) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		taken: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_worker_take_seconds", Help: "Time from the decision to take a step instance until it was taken, including the wait for slots; by whether it needs slots.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"slots"}),
		finish: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_worker_finish_seconds", Help: "Time to write the end of a step instance.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}),
		durations: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_worker_step_seconds", Help: "Time from taking a step instance to its end.",
			Buckets: prometheus.ExponentialBuckets(0.01, 5, 9),
		}),
		ends: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_worker_steps_total", Help: "Step instances that ended here, by result: succeeded, failed, canceled, lost, handed_back, timed_out, refused, forged.",
		}, []string{"end"}),
		conflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_worker_take_conflicts_total", Help: "Step instances that another worker took first.",
		}),
		resyncs: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_worker_resyncs_total", Help: "Times that the queues were read again from etcd.",
		}),
		wakes: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_worker_wakes_total", Help: "Messages of etcd about new step instances in the queues of the worker.",
		}),
		picks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_worker_picks_total", Help: "Decisions what to take, by result: some, none, or full without free capacity.",
		}, []string{"found"}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_worker_active", Help: "Step instances that the worker has.",
	}, func() float64 { return float64(m.count.Load()) })
	f.NewGauge(prometheus.GaugeOpts{
		Name: "berth_worker_concurrency", Help: "Step instances that the worker can have at the same time.",
	}).Set(float64(concurrency))
	return m
}

func (m *metrics) took(d time.Duration, slots bool) {
	label := "no"
	if slots {
		label = "yes"
	}
	m.taken.WithLabelValues(label).Observe(d.Seconds())
}

// picked counts a pick: with capacity for how many, and how many it found.
func (m *metrics) picked(capacity, found int) {
	what := "some"
	switch {
	case capacity == 0:
		what = "full"
	case found == 0:
		what = "none"
	}
	m.picks.WithLabelValues(what).Inc()
}

func (m *metrics) finished(d time.Duration) { m.finish.Observe(d.Seconds()) }
func (m *metrics) duration(d time.Duration) { m.durations.Observe(d.Seconds()) }
func (m *metrics) ended(how string)         { m.ends.WithLabelValues(how).Inc() }
