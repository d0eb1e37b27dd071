package claims

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics holds the metrics of a server's claims. Pools and leases have their own metrics.
type Metrics struct {
	stopped *prometheus.CounterVec
	// writable reports whether the state directory can be written.
	writable atomic.Pointer[func() bool]
}

// NewMetrics registers the metrics; nil registers none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
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

// stateWritable sets the function that reports whether the state directory can be written.
func (m *Metrics) stateWritable(ask func() bool) { m.writable.Store(&ask) }
