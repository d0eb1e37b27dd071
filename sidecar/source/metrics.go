package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of one process of a source.
type metrics struct {
	looking   prometheus.Gauge
	looks     *prometheus.CounterVec
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
		looking: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_source_looking", Help: "1 while it is the turn of this process to look.",
		}),
		looks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_source_looks_total", Help: "Looks, by what came of them: ok or failed.",
		}, []string{"result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_source_look_seconds", Help: "Time of a look, with all that was submitted.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9),
		}),
		listed: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_source_items_listed", Help: "Items of the last look that did not fail.",
		}),
		refused: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_source_items_refused", Help: "Those of them that can't become runs.",
		}),
		submitted: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_source_items_submitted_total", Help: "Items that became runs.",
		}),
		wakes: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_source_wakes_total", Help: "Wishes to look at once that this process has heard of in its turn; those that come together count as one.",
		}),
	}
}

// looked notes what a look came to.
func (m *metrics) looked(l Look, took time.Duration) {
	m.seconds.Observe(took.Seconds())
	m.submitted.Add(float64(l.Submitted))
	if l.Error != "" {
		m.looks.WithLabelValues("failed").Inc()
		return
	}
	m.looks.WithLabelValues("ok").Inc()
	m.listed.Set(float64(l.Listed))
	m.refused.Set(float64(l.Refused))
}
