package sidecar

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics of the door. Claims, pools and leases have their own.
type metrics struct {
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	waits    prometheus.Gauge
	streams  prometheus.Gauge
	stopped  *prometheus.CounterVec
	runs     *runMetrics
	steps    *runMetrics
	// writable is asked whether the state directory can be written.
	writable atomic.Pointer[func() bool]
}

// stateWritable sets what is asked.
func (m *metrics) stateWritable(ask func() bool) { m.writable.Store(&ask) }

func newMetrics(reg prometheus.Registerer) *metrics {
	with := promauto.With(reg)
	m := &metrics{
		runs: newRunMetrics(reg), steps: newStepMetrics(reg),
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
		waits: with.NewGauge(prometheus.GaugeOpts{
			Name: "berth_http_waits_in_flight",
			Help: "Requests for a claim that are not answered yet.",
		}),
		streams: with.NewGauge(prometheus.GaugeOpts{
			Name: "berth_http_event_streams",
			Help: "Streams of events and of pages that are open.",
		}),
		stopped: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_holder_signals_total",
			Help: "Signals sent to processes whose claims had ended or were about to, by signal.",
		}, []string{"signal"}),
	}
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_state_writable",
		Help: "1 while the state directory can be written; 0 while changes of what claims are bound to are refused, as on a full disk.",
	}, func() float64 {
		if ask := m.writable.Load(); ask != nil && !(*ask)() {
			return 0
		}
		return 1
	})
	return m
}

// Labels of requests that matched no route: what their clients made up is not
// repeated.
const noRoute, noMethod = "none", "none"

// answered counts a request; how long a stream was open is nobody's wait.
func (m *metrics) answered(route, method string, status int, streamed bool, took time.Duration) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	if !streamed {
		m.took.WithLabelValues(route).Observe(took.Seconds())
	}
}

// scope registers for a time: what it was given is taken back by close, so that
// a server that is started anew can register again.
type scope struct {
	prometheus.Registerer
	given []prometheus.Collector
}

// newScope returns nil for no registerer.
func newScope(reg prometheus.Registerer) *scope {
	if reg == nil {
		return nil
	}
	return &scope{Registerer: reg}
}

// registerer returns the scope as an interface that is nil if the scope is.
func (s *scope) registerer() prometheus.Registerer {
	if s == nil {
		return nil
	}
	return s
}

// Register registers until close.
func (s *scope) Register(c prometheus.Collector) error {
	err := s.Registerer.Register(c)
	if err == nil {
		s.given = append(s.given, c)
	}
	return err
}

// MustRegister registers until close, and panics where that is refused.
func (s *scope) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// close takes back what was registered.
func (s *scope) close() {
	if s == nil {
		return
	}
	for _, c := range s.given {
		s.Unregister(c)
	}
	s.given = nil
}
