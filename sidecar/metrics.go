package sidecar

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/executor"
	"github.com/berthhq/berth/sidecar/server"
)

// metrics of a sidecar. Claims, pools and leases have their own.
type metrics struct {
	http      *server.Metrics
	waits     prometheus.Gauge
	claims    *claims.Metrics
	executors *executor.Metrics
	refused   *prometheus.CounterVec // submissions, by setting
}

// tooMany counts a submission that exceeds what a setting allows one identity.
func (m *metrics) tooMany(setting string) { m.refused.WithLabelValues(setting).Inc() }

func newMetrics(reg prometheus.Registerer) *metrics {
	with := promauto.With(reg)
	m := &metrics{
		http: server.NewMetrics(reg), claims: claims.NewMetrics(reg), executors: executor.NewMetrics(reg),
		waits: with.NewGauge(prometheus.GaugeOpts{
			Name: "berth_http_waits_in_flight",
			Help: "Requests for a claim that are not answered yet.",
		}),
		refused: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_runs_too_many_total",
			Help: "Submissions that were refused with too_many, by the setting that bounds one identity.",
		}, []string{"setting"}),
	}
	return m
}

// scope registers for a time: close unregisters what it was given, so that
// a server that is started again can register again.
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

// close unregisters the metrics.
func (s *scope) close() {
	if s == nil {
		return
	}
	for _, c := range s.given {
		s.Unregister(c)
	}
	s.given = nil
}
