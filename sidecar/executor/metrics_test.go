package executor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// nonzero returns the metrics in a registry that are not 0, as text.
func nonzero(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%s}", l.GetName(), l.GetValue())
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue(); v != 0 {
				all[name] = v
			}
		}
	}
	return all
}

func TestExecutorsAreCounted(t *testing.T) {
	onStage(t, func(s *stage) {
		reg := prometheus.NewRegistry()
		s.metrics = NewMetrics(reg)
		wants := func(when string, want map[string]float64) {
			t.Helper()
			if d := cmp.Diff(want, nonzero(t, reg)); d != "" {
				t.Errorf("%s:\n%s", when, d)
			}
		}
		begin := func(id string) *Executor {
			s.admitted(id)
			return s.begin(id, "ci", time.Hour)
		}
		begin("finished")
		s.begin("finished", "ci", time.Hour) // again: the same attempt
		begin("failed")
		begin("canceled")
		begin("elsewhere")
		begin("notified")
		begin("taken")
		begin("lease")
		begin("revoked")
		s.admitted("silent")
		s.begin("silent", "", MinTTL)
		wants("at first", map[string]float64{"berth_executor_runs": 9, "berth_executor_starts_total": 9})

		s.Ended("finished", 0, string(run.Succeeded))
		s.Ended("finished", 0, string(run.Succeeded)) // again: it is known no more
		s.Ended("failed", 0, string(run.Failed))
		s.Ended("canceled", 0, string(run.Canceled))
		for id, why := range map[string]error{
			"lease":   problem.New(problem.ClaimLost, "the lease is gone"),
			"revoked": problem.New(problem.ClaimRevoked, "an operator"),
		} {
			s.byID[id].on.(*stageReservation).end(why)
			synctest.Wait() // it is notified asynchronously
		}
		for _, id := range []string{"notified", "taken"} {
			fence := s.byID[id].fence
			r, err := s.runs.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			rec, code := r.Record, problem.RunEnded
			if rec.Status = run.Canceled; id == "taken" {
				rec.Status, code = run.Queued, problem.RunLost
			}
			s.put(id, rec)
			s.wantBeat(id, fence, code)
		}
		if _, err := store.Commit(t.Context(), s.backend, nil, store.Delete(s.runs.Keys.ActiveRun("one", "elsewhere"))); err != nil {
			t.Fatal(err)
		}
		pass(sweepEvery + time.Second)
		wants("at the end", map[string]float64{
			"berth_executor_starts_total":                     9,
			"berth_executor_finishes_total{status=succeeded}": 1,
			"berth_executor_finishes_total{status=failed}":    1,
			"berth_executor_finishes_total{status=canceled}":  1,
			"berth_executor_finishes_total{status=elsewhere}": 2,
			"berth_executor_losses_total{reason=taken}":       1,
			"berth_executor_losses_total{reason=lease}":       1,
			"berth_executor_losses_total{reason=revoked}":     1,
			"berth_executor_losses_total{reason=ttl}":         1,
		})

		e := begin("last")
		e.on.(*stageReservation).end(errStopping)
		pass(time.Second)
		if got := nonzero(t, reg); got["berth_executor_losses_total{reason=stopping}"] != 1 || got["berth_executor_runs"] != 1 {
			t.Errorf("while it stops: %v", got)
		}
	})
}
