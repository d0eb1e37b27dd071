package sidecar

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/berthhq/berth/internal/problem"
)

// How an attempt has left a server without being finished or canceled through it.
const endedElsewhere = "elsewhere"

// Reasons of losses.
const (
	lossTTL      = "ttl"      // no heartbeat came in time
	lossLease    = "lease"    // trust in the lease has ended
	lossRevoked  = "revoked"  // its slots were asked back
	lossStopping = "stopping" // the server stops
	lossTaken    = "taken"    // it is somebody else's, or was given back to the queue
	lossTimeout  = "timeout"  // the attempt of a step instance took too long
)

// runMetrics are those of the executors of a server: of runs, or of step instances.
type runMetrics struct {
	executing prometheus.Gauge
	starts    prometheus.Counter
	finishes  *prometheus.CounterVec
	losses    *prometheus.CounterVec
}

func newRunMetrics(reg prometheus.Registerer) *runMetrics {
	with := promauto.With(reg)
	return &runMetrics{
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

func newStepMetrics(reg prometheus.Registerer) *runMetrics {
	with := promauto.With(reg)
	return &runMetrics{
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
func (m *runMetrics) finished(e *executor, status string) {
	switch {
	case e.why != nil:
	case status == lossTaken:
		m.lost(lossTaken)
	default:
		m.finishes.WithLabelValues(status).Inc()
	}
}

func (m *runMetrics) lost(reason string) { m.losses.WithLabelValues(reason).Inc() }

// lossOf is the reason of a loss with the room.
func lossOf(cause error) string {
	switch {
	case shutsDown(cause):
		return lossStopping
	case problem.CodeOf(cause) == problem.ClaimRevoked:
		return lossRevoked
	}
	return lossLease
}
