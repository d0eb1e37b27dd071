package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// scraped are the metrics of steps that are more than 0, or of a queue, as a scrape has them.
func scraped(t *testing.T, reg *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "berth_step") || f.GetName() == "berth_steps_published_total" {
			continue
		}
		for _, m := range f.Metric {
			if v := m.GetGauge().GetValue(); v > 0 || f.GetName() == "berth_steps_ready" {
				all = append(all, fmt.Sprintf("%s{%s} %g", f.GetName(), m.Label[0].GetValue(), v))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestALeaderTellsHowStepsStand(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		reg := prometheus.NewRegistry()
		c := fl.candidate("one", func(c *Config) { c.Registerer = reg })
		check := func(when string, want ...string) {
			t.Helper()
			fl.proceed()
			if d := cmp.Diff(want, scraped(t, reg)); d != "" {
				t.Errorf("%s: -want +got\n%s", when, d)
			}
		}
		gpu := func(s *step.Spec) { s.Queue = "gpu" }
		fl.submitSteps("r", []step.Spec{fan("many", 5, 3), fan("last", 2, 1, after("many"), gpu)}, caps(4, 0))
		check("three are published",
			"berth_step_windows_in_flight{run} 3", "berth_step_windows_in_flight{step} 3",
			"berth_step_windows_limit{run} 4", "berth_step_windows_limit{step} 3",
			"berth_steps_ready{default} 3", "berth_steps_ready{gpu} 0",
			"berth_steps{requested} 4", "berth_steps{scheduled} 3")
		h := fl.hand("x")
		h.take(2)
		check("two are taken",
			"berth_step_windows_in_flight{run} 3", "berth_step_windows_in_flight{step} 3",
			"berth_step_windows_limit{run} 4", "berth_step_windows_limit{step} 3",
			"berth_steps_ready{default} 1", "berth_steps_ready{gpu} 0",
			"berth_steps{requested} 4", "berth_steps{running} 2", "berth_steps{scheduled} 1")
		for range 4 {
			h.take(9)
			h.finish(step.Succeeded)
			fl.proceed()
		}
		check("one of the first step is left: its window can't be used in full, nor the run's",
			"berth_step_windows_in_flight{run} 1", "berth_step_windows_in_flight{step} 1",
			"berth_step_windows_limit{run} 1", "berth_step_windows_limit{step} 1",
			"berth_steps_ready{default} 0", "berth_steps_ready{gpu} 0",
			"berth_steps{requested} 2", "berth_steps{running} 1", "berth_steps{succeeded} 4")
		h.finish(step.Succeeded)
		check("the queue of a step that has ended is none of the run's",
			"berth_step_windows_in_flight{run} 1", "berth_step_windows_in_flight{step} 1",
			"berth_step_windows_limit{run} 2", "berth_step_windows_limit{step} 1",
			"berth_steps_ready{gpu} 1",
			"berth_steps{requested} 1", "berth_steps{scheduled} 1", "berth_steps{succeeded} 5")
		if _, err := fl.Cancel(t.Context(), "r", "", false); err != nil {
			t.Fatal(err)
		}
		check("it has ended")

		fl.submitSteps("s", []step.Spec{fan("a", 0, 0)})
		check("without windows", "berth_steps_ready{default} 1", "berth_steps{scheduled} 1")
		c.stop()
		fl.proceed()
		if got := scraped(t, reg); len(got) > 0 {
			t.Errorf("a coordinator that does not lead reports %q", got)
		}
	})
}

// The figures are those that one gets by reading each instance.
func TestFiguresAreSumsOverInstances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newState(store.NewKeys("/b/"))
		statuses := make([]int, len(step.Statuses))
		ready, inFlight := 0, 0
		for n := range rapid.IntRange(0, 3).Draw(t, "runs") {
			f := genFanned(n).Draw(t, "run")
			s.steps.fans[f.Run.ID] = f.Fan
			ended := rapid.Bool().Draw(t, "ended")
			if ended {
				s.ended[f.Run.ID], s.steps.ending[f.Run.ID] = f.Run, true
			} else {
				s.progress[f.Run.ID] = f.Run
			}
			for i := range f.Fan.steps {
				for index := range f.Fan.steps[i].cells {
					status := f.statusIn(i, index)
					if status == step.Scheduled {
						ready++
					}
					if ended {
						continue
					}
					statuses[statusOf(status)]++
					if status.InFlight() && f.Fan.steps[i].Concurrency > 0 {
						inFlight++
					}
				}
			}
		}
		got := s.stepFigures()
		if d := cmp.Diff(statuses, got.statuses); d != "" {
			t.Errorf("-want +got\n%s", d)
		}
		if got.ready[step.DefaultQueue] != ready || got.ofSteps.inFlight != inFlight {
			t.Errorf("%+v: %d ready, %d in flight in windows", got, ready, inFlight)
		}
	})
}

func TestFewQueuesAreNamedInMetrics(t *testing.T) {
	of := map[string]int{"a": 1, "b": 5, "c": 2, "d": 2, "e": 0}
	for keep, want := range map[int]map[string]int{
		5: of,
		4: {"b": 5, "c": 2, "d": 2, otherQueues: 1},
		2: {"b": 5, otherQueues: 5},
	} {
		if d := cmp.Diff(want, most(of, keep)); d != "" {
			t.Errorf("%d: -want +got\n%s", keep, d)
		}
	}
}

// The leader reports the pools, and no other candidate does.
func TestTheLeaderReportsThePools(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		limit, paused := 3, true
		pools := registry.Registry{Backend: fl.root, Keys: fl.keys}
		for name, change := range map[string]pool.Change{"db": {Limit: &limit}, "gpu": {Limit: &limit, Paused: &paused}} {
			if _, err := pools.Set(t.Context(), name, change); err != nil {
				t.Fatal(err)
			}
		}
		reported := func(reg *prometheus.Registry) (all []string) {
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if !strings.HasPrefix(f.GetName(), "berth_pool_") {
					continue
				}
				for _, m := range f.GetMetric() {
					all = append(all, fmt.Sprint(f.GetName(), " ", m.GetLabel()[0].GetValue(), " ", m.GetGauge().GetValue()))
				}
			}
			return all
		}
		want := []string{
			"berth_pool_claimed db 0", "berth_pool_claimed gpu 0", "berth_pool_limit db 3", "berth_pool_limit gpu 3",
			"berth_pool_paused db 0", "berth_pool_paused gpu 1", "berth_pool_waiting db 0", "berth_pool_waiting gpu 0",
		}
		one, two := prometheus.NewRegistry(), prometheus.NewRegistry()
		first := fl.candidate("one", func(c *Config) { c.Registerer = one })
		second := fl.candidate("two", func(c *Config) { c.Registerer = two })
		if diff := cmp.Diff(want, reported(one)); diff != "" {
			t.Errorf("the leader, -want +got:\n%s", diff)
		}
		if got := reported(two); got != nil {
			t.Errorf("a candidate that does not lead reports %q", got)
		}
		first.stop()
		for !second.Leading() {
			fl.proceed()
		}
		if diff := cmp.Diff(want, reported(two)); diff != "" {
			t.Errorf("the next leader, -want +got:\n%s", diff)
		}
		if got := reported(one); got != nil {
			t.Errorf("one that has stopped reports %q", got)
		}
		second.by.Down()
		if got := reported(two); got != nil {
			t.Errorf("without etcd it reports %q", got)
		}
		second.by.Up()
	})
}
