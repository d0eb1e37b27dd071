package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type clientMetrics struct {
	// seconds from sending a request to its answer, by kind and outcome.
	seconds *prometheus.HistogramVec
}

func newClientMetrics(reg prometheus.Registerer) *clientMetrics {
	return &clientMetrics{
		seconds: promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_etcd_request_duration_seconds",
			Help:    "Time from sending a request to etcd to its answer, by operation and outcome.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 14), // 0.25 ms … 2 s
		}, []string{"op", "outcome"}),
	}
}

func (m *clientMetrics) observe(op string, begin time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.seconds.WithLabelValues(op, outcome).Observe(time.Since(begin).Seconds())
}
