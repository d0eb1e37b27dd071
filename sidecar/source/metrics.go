package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of one process.
type metrics struct {
	leading   prometheus.Gauge
	polls     *prometheus.CounterVec
	seconds   prometheus.Histogram
	listed    prometheus.Gauge
	refused   prometheus.Gauge
	submitted prometheus.Counter
	wakes     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, source string) *metrics {
	if reg != nil {
		reg = prometheus.WrapRegistererWith(prometheus.Labels{"source": source}, reg)
	}
	f := promauto.With(reg)
	return &metrics{
		leading: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_source_leading", Help: "1 while this process is the leader of the source, which polls.",
		}),
		polls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_source_polls_total", Help: "Polls by result: ok or failed.",
		}, []string{"result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_source_poll_seconds", Help: "Duration of a poll with all submissions.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9),
		}),
		listed: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_source_items_listed", Help: "Items of the last poll that did not fail.",
		}),
		refused: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_source_items_refused", Help: "Items of that poll that cannot become runs.",
		}),
		submitted: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_source_items_submitted_total", Help: "Items that became runs.",
		}),
		wakes: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_source_wakes_total", Help: "Requests to poll at once that this process received as the leader; simultaneous ones count once.",
		}),
	}
}

// polled counts a poll.
func (m *metrics) polled(p Poll, took time.Duration) {
	m.seconds.Observe(took.Seconds())
	m.submitted.Add(float64(p.Submitted))
	if p.Error != "" {
		m.polls.WithLabelValues("failed").Inc()
		return
	}
	m.polls.WithLabelValues("ok").Inc()
	m.listed.Set(float64(p.Listed))
	m.refused.Set(float64(p.Refused))
}
