package coordinator

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthhq/berth/coordinator/run"
)

// The wait of a run is compared with its first estimate, if it had one in this term.
func TestTheWaitOfARunIsComparedWithItsEstimate(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	as := func(id string, status run.Status, change func(*run.Run)) *run.Run {
		r := &run.Run{ID: id, Created: 1}
		r.Name, r.Status = "load", status
		change(r)
		return r
	}
	blocked := func(r *run.Run) { r.Block = &run.Block{Kind: run.BlockRunLimit} }
	all := run.All{Runs: []*run.Run{
		as("ended", run.Succeeded, func(r *run.Run) { r.StartedAt, r.EndedAt = now.Add(-time.Hour), now.Add(-50*time.Minute) }),
		as("first", run.Queued, blocked),
		as("runs", run.Running, func(r *run.Run) { r.StartedAt = now.Add(-4 * time.Minute) }),
		as("second", run.Queued, func(r *run.Run) { blocked(r); r.Created = 2 }), // behind the only one whose end is known
	}}
	e := &estimates{ratio: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x", Buckets: []float64{1, 2}})}
	e.reset()
	check := func(count uint64, sum float64) {
		t.Helper()
		var m dto.Metric
		if err := e.ratio.Write(&m); err != nil {
			t.Fatal(err)
		}
		if h := m.GetHistogram(); h.GetSampleCount() != count || h.GetSampleSum() != sum {
			t.Errorf("%d runs with a sum of %v, want %d and %v", h.GetSampleCount(), h.GetSampleSum(), count, sum)
		}
	}
	e.note(all, now) // first: in 6 minutes
	e.note(all, now.Add(time.Minute))
	e.admitted("second", now.Add(time.Minute))
	check(0, 0)
	e.admitted("first", now.Add(9*time.Minute))
	check(1, 1.5)
	e.admitted("first", now.Add(time.Hour))
	check(1, 1.5)

	e.note(all, now)
	e.reset() // another term does not know it
	e.admitted("first", now.Add(6*time.Minute))
	check(1, 1.5)

	e.note(all, now)
	all.Runs[1].Status = run.Canceled
	e.note(all, now)
	if _, known := e.first["first"]; known {
		t.Errorf("it remembers runs that are not queued: %v", e.first)
	}
}
