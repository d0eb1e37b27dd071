package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/berthhq/berth/coordinator/run"
)

// metrics are those of one candidate. Those of runs are right on the leader only.
type metrics struct {
	leading   prometheus.Gauge
	terms     prometheus.Counter
	ticks     prometheus.Counter
	phases    *prometheus.HistogramVec
	planSize  prometheus.Histogram
	published prometheus.Counter // step instances
	admitted  prometheus.Counter
	lost      *prometheus.CounterVec
	blocked   *prometheus.CounterVec
	runs      *prometheus.GaugeVec
	corrupt   prometheus.Gauge
	resyncs   prometheus.Counter
	freed     prometheus.Counter
	steps     *stepCollector

	compactions prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, journal *run.Journal) *metrics {
	f := promauto.With(reg)
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "berth_coordinator_events_total", Help: "Events of runs that the coordinator has written.",
	}, func() float64 { return float64(journal.Written()) })
	steps := &stepCollector{}
	if reg != nil {
		reg.MustRegister(steps)
	}
	return &metrics{
		steps: steps,
		leading: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_coordinator_leading", Help: "1 while this process is the coordinator.",
		}),
		terms: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_terms_total", Help: "Times that this process became the coordinator.",
		}),
		ticks: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_ticks_total", Help: "Plans that were made.",
		}),
		phases: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_coordinator_tick_seconds", Help: "Time of a tick, by phase: plan and apply.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"phase"}),
		planSize: f.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_coordinator_plan_changes", Help: "Changes of a plan that had any.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}),
		published: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_steps_published_total", Help: "Step instances that were published for workers to take.",
		}),
		admitted: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_runs_admitted_total", Help: "Runs that were admitted.",
		}),
		lost: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_runs_lost_total", Help: "Executors of runs that were found lost: gone, or never come (launch).",
		}, []string{"reason"}),
		blocked: f.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_runs_blocked_total", Help: "Reasons written for runs that have to wait, by kind.",
		}, []string{"kind"}),
		runs: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "berth_runs", Help: "Runs by status, those that have ended as one; on the leader.",
		}, []string{"status"}),
		corrupt: f.NewGauge(prometheus.GaugeOpts{
			Name: "berth_runs_corrupt", Help: "Keys of runs and limits that can't be read; on the leader.",
		}),
		freed: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_runs_claims_taken_back_total", Help: "Claims that were asked back because their run had ended.",
		}),
		compactions: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_compactions_total", Help: "Times that etcd's history was cut.",
		}),
		resyncs: f.NewCounter(prometheus.CounterOpts{
			Name: "berth_coordinator_resyncs_total", Help: "Times that everything was read again from etcd.",
		}),
	}
}

// plan notes a plan that was made between two times.
func (m *metrics) plan(begun, done time.Time, p Plan) {
	m.ticks.Inc()
	m.phases.WithLabelValues("plan").Observe(done.Sub(begun).Seconds())
	if n := len(p.Lost) + len(p.Expired) + len(p.Admit) + len(p.Blocks); n > 0 {
		m.planSize.Observe(float64(n))
	}
}

func (m *metrics) applied(begun, done time.Time) {
	m.phases.WithLabelValues("apply").Observe(done.Sub(begun).Seconds())
}

// state notes how many runs there are, and how their steps stand.
func (m *metrics) state(s *state) {
	running := 0
	for _, r := range s.progress {
		if r.Status == run.Running {
			running++
		}
	}
	m.runs.WithLabelValues(string(run.Queued)).Set(float64(s.queue.Len()))
	m.runs.WithLabelValues("deferred").Set(float64(s.deferred.Len()))
	m.runs.WithLabelValues(string(run.NotStarted)).Set(float64(len(s.progress) - running))
	m.runs.WithLabelValues(string(run.Running)).Set(float64(running))
	m.runs.WithLabelValues("ended").Set(float64(len(s.ended)))
	m.corrupt.Set(float64(len(s.bad)))
	m.steps.newest.Store(s.stepFigures())
}
