package server

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are those of HTTP. What the endpoints do has its own.
type Metrics struct {
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	bounds   *prometheus.CounterVec
	panics   prometheus.Counter
	// Streams counts the streams that are open.
	Streams prometheus.Gauge
}

// NewMetrics registers the metrics; nil registers none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	return &Metrics{
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_http_requests_total",
			Help: "Requests that were answered, by route, method and status.",
		}, []string{"route", "method", "code"}),
		took: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_http_request_duration_seconds",
			Help: "Time to the end of the answer by route, the wait of claims included, streams left out.",
			// From a local read to the longest default wait.
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600},
		}, []string{"route"}),
		bounds: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_http_bound_refusals_total",
			Help: "Requests and connections that were refused with too_many_requests, by bound.",
		}, []string{"bound"}),
		panics: with.NewCounter(prometheus.CounterOpts{
			Name: "berth_http_panics_total",
			Help: "Requests that ended by a fault of berth; the log has each with where it happened.",
		}),
		Streams: with.NewGauge(prometheus.GaugeOpts{
			Name: "berth_http_event_streams",
			Help: "Streams of events and of pages that are open.",
		}),
	}
}

// RegisterCertificate registers when the certificate of a server expires, if it has one; nil
// registers nothing.
func RegisterCertificate(reg prometheus.Registerer, cfg *Config) {
	if cfg.certificate() == nil {
		return
	}
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_tls_certificate_expiry_seconds",
		Help: "Time until the certificate of the HTTP address expires; negative if it has.",
	}, func() float64 { return time.Until(cfg.certificate().NotAfter).Seconds() })
}

// Labels of requests that matched no route: what their clients made up is not
// repeated.
const noRoute, noMethod = "none", "none"

// Labels of bounds: of the bodies that arrive and the memory for them, and of connections.
const boundBodies, boundConns = "bodies", "connections"

// Refused counts a request or a connection that was refused for a bound.
func (m *Metrics) Refused(bound string) { m.bounds.WithLabelValues(bound).Inc() }

// answered counts a request; the time that a stream was open is no wait.
func (m *Metrics) answered(route, method string, status int, streamed bool, took time.Duration) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	if !streamed {
		m.took.WithLabelValues(route).Observe(took.Seconds())
	}
}
