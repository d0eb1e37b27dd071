package executor

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/berthhq/berth/internal/problem"
)

// endedElsewhere is the status of an attempt that was not finished or canceled through this
// server.
const endedElsewhere = "elsewhere"

// Reasons of losses.
const (
	lossTTL      = "ttl"      // no heartbeat came in time
	lossLease    = "lease"    // its lease is no longer valid
	lossRevoked  = "revoked"  // its slots were revoked
	lossStopping = "stopping" // the server stops
	lossTaken    = "taken"    // another executor has it, or it was returned to the queue
	lossTimeout  = "timeout"  // the attempt of a step instance took too long
)

// Metrics are those of the executors of a server.
type Metrics struct{ runs, steps *counts }

// NewMetrics registers the metrics; nil registers none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	return &Metrics{runs: newRunCounts(reg), steps: newStepCounts(reg)}
}

// counts returns the metrics of what has an id.
func (x *Executors) counts(id string) *counts {
	if ofStep(id) {
		return x.metrics.steps
	}
	return x.metrics.runs
}

// counts are the metrics of executors of runs, or of those of step instances.
type counts struct {
	executing prometheus.Gauge
	starts    prometheus.Counter
	finishes  *prometheus.CounterVec
	losses    *prometheus.CounterVec
}

func newRunCounts(reg prometheus.Registerer) *counts {
	with := promauto.With(reg)
	return &counts{
		executing: with.NewGauge(prometheus.GaugeOpts{
			Name: "berth_executor_runs",
			Help: "Runs that were started through this process, or taken over by it, and have not ended.",
		}),
		starts: with.NewCounter(prometheus.CounterOpts{
			Name: "berth_executor_starts_total",
			Help: "Attempts of runs that were started through this process.",
		}),
		finishes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_executor_finishes_total",
			Help: "Attempts of this process that have ended without a loss, by status: as they were finished or canceled here, or elsewhere.",
		}, []string{"status"}),
		losses: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_executor_losses_total",
			Help: "Attempts of this process that were lost to their executors, by reason.",
		}, []string{"reason"}),
	}
}

func newStepCounts(reg prometheus.Registerer) *counts {
	with := promauto.With(reg)
	return &counts{
		executing: with.NewGauge(prometheus.GaugeOpts{
			Name: "berth_executor_steps",
			Help: "Step instances that were taken through this process over HTTP, or taken over by it, and have not ended.",
		}),
		starts: with.NewCounter(prometheus.CounterOpts{
			Name: "berth_executor_step_starts_total",
			Help: "Attempts of step instances that were taken through this process over HTTP.",
		}),
		finishes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_executor_step_finishes_total",
			Help: "Attempts of step instances of this process that have ended without a loss, by status: as they were finished here, or elsewhere.",
		}, []string{"status"}),
		losses: with.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_executor_step_losses_total",
			Help: "Attempts of step instances of this process that were lost to their executors, by reason.",
		}, []string{"reason"}),
	}
}

// finished counts the end of an attempt, if it was not lost before: a status, or the
// loss that the end has turned out to be.
func (m *counts) finished(e *Executor, status string) {
	switch {
	case e.why != nil:
	case status == lossTaken:
		m.lost(lossTaken)
	default:
		m.finishes.WithLabelValues(status).Inc()
	}
}

func (m *counts) lost(reason string) { m.losses.WithLabelValues(reason).Inc() }

// lossOf returns the reason of a loss with the reservation.
func lossOf(cause error) string {
	switch {
	case shutsDown(cause):
		return lossStopping
	case problem.CodeOf(cause) == problem.ClaimRevoked:
		return lossRevoked
	}
	return lossLease
}
