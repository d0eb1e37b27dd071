//go:build linux

package main

import (
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/bench"
)

// planned returns the rows of all suites that a configuration selects.
func planned(t *testing.T, cfg bench.Config) []*row {
	t.Helper()
	claims, err := claimRows(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	queue := cfg
	queue.Clients = []int{1, 16, 64}
	queued, err := queueRows(&queue, defaultQueued)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := stepRows(&cfg, defaultSteps, defaultHighSteps, workerNumbers, 1)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(claims, queued, steps)
}

func TestEachTargetHasItsCase(t *testing.T) {
	names := map[string]bool{}
	for _, r := range planned(t, bench.Config{Sidecars: &bench.Program{}, History: 100}) {
		if names[r.Name] {
			t.Errorf("two cases are named %s", r.Name)
		}
		names[r.Name] = true
	}
	for _, target := range targets {
		if !names[target.of] {
			t.Errorf("%s: there is no case %s", target.name, target.of)
		}
	}
}

func TestQuickMeasuresWhatHasATarget(t *testing.T) {
	rows := planned(t, bench.Config{Sidecars: &bench.Program{}, History: 100, Quick: true})
	for _, r := range rows {
		if !hasTarget(r.Name) {
			t.Errorf("%s has no target", r.Name)
		}
	}
	for _, target := range targets {
		if !slices.ContainsFunc(rows, func(r *row) bool { return r.Name == target.of }) {
			t.Errorf("%s is not measured", target.of)
		}
	}
}

func TestATargetIsJudgedByItsBound(t *testing.T) {
	claims := func(name string, ratio float64) *row {
		return &row{Row: bench.Row{
			Case: bench.Case{Name: name}, PerSecond: 100 * ratio,
			Reference: &bench.Reference{PerSecond: 100}, Ratio: &bench.Spread{Median: ratio, Low: ratio, High: ratio},
		}}
	}
	const uncontended, limit = "uncontended/go/64c/1h/1p", "limit/go/64c/1h/1p"
	submissions := claims("submit/64c", 0.8)
	submissions.Submissions = &submissionFigures{PerSecond: 80}
	admission := &row{
		Row: bench.Row{
			Case:      bench.Case{Name: "admit/1c"},
			Reference: &bench.Reference{Put: &bench.Latency{P50: 1}, Delete: &bench.Latency{P50: 2}},
		},
		Admissions: &admissionFigures{Seen: &bench.Latency{P50: 4}, SeenToPut: &bench.Spread{Median: 4}},
	}
	plan := &row{Row: bench.Row{Case: bench.Case{Name: "plan/idle/100000q"}}, Plan: &bench.Latency{Count: 9, P50: 20, P99: 50}}
	tests := map[string]struct {
		row     *row
		got     float64
		reached bool
		wanted  string
	}{
		"at least, reached": {claims(uncontended, 2.5), 2.5, true, "≥ 2.5 × the floor"},
		"at least, missed":  {claims(uncontended, 2.4), 2.4, false, "≥ 2.5 × the floor"},
		"at most, missed":   {claims(limit, 0.5), 2, false, "≤ 1.5 × the time per claim"},
		"submissions":       {submissions, 0.8, true, "≥ 0.8 × the floor"},
		"admission":         {admission, 4, false, "≤ 3 × a plain put"},
		"plan":              {plan, 20, true, "≤ 20 ms"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := judge([]*row{test.row})
			if len(got) != 1 {
				t.Fatalf("verdicts: %+v", got)
			}
			if got[0].Got != test.got || got[0].Reached != test.reached || got[0].Wanted != test.wanted {
				t.Errorf("verdict: %+v", got[0])
			}
		})
	}
}

func TestABindingLimitIsComparedWithNone(t *testing.T) {
	own := &row{Row: bench.Row{Case: bench.Case{Name: "binding/4w/10r"}}, StepLoads: &stepLoads{Own: &stepLoad{PerSecond: 90}}}
	free := &row{Row: bench.Row{Case: bench.Case{Name: freeCase}, Reference: &bench.Reference{PerSecond: 100}}}
	if got := judge([]*row{own, free}); len(got) != 1 || got[0].Got != 0.9 || !got[0].Reached {
		t.Errorf("verdicts: %+v", got)
	}
	if got := judge([]*row{own}); len(got) != 0 {
		t.Errorf("without the other: %+v", got)
	}
}

func TestACaseThatFailedHasNoVerdict(t *testing.T) {
	failed := &row{Row: bench.Row{Case: bench.Case{Name: "plan/idle/100000q"}, Error: "etcd went away"}, Plan: &bench.Latency{P50: 1}}
	if got := judge([]*row{failed}); len(got) != 0 {
		t.Errorf("verdicts: %+v", got)
	}
}

func TestCasesAreSelected(t *testing.T) {
	queue := func(cfg bench.Config, queued int) func() ([]*row, error) {
		cfg.Clients = []int{1, 16, 64}
		return func() ([]*row, error) { return queueRows(&cfg, queued) }
	}
	steps := func(cfg bench.Config, n, high int) func() ([]*row, error) {
		return func() ([]*row, error) { return stepRows(&cfg, n, high, workerNumbers, 1) }
	}
	tests := map[string]struct {
		rows func() ([]*row, error)
		want []string
	}{
		"of the queue": {
			queue(bench.Config{}, 7),
			[]string{"submit/1c", "submit/16c", "submit/64c", "admit/1c", "plan/idle/7q", "plan/last/7q", "plan/many/7q", "leader/7q"},
		},
		"of the queue, those with a target": {
			queue(bench.Config{Quick: true}, defaultQueued),
			[]string{"submit/64c", "admit/1c", "plan/idle/100000q", "plan/last/100000q", "plan/many/100000q"},
		},
		"of steps, those with a name and a target": {
			steps(bench.Config{Quick: true, Cases: regexp.MustCompile("^(enabled|binding)")}, defaultSteps, defaultHighSteps),
			[]string{"enabled/4w/10r", "binding/4w/10r", "enabled/1w/1r"},
		},
		"none":           {queue(bench.Config{Cases: regexp.MustCompile("^uncontended")}, 7), nil},
		"too many runs":  {queue(bench.Config{}, maxQueued+1), nil},
		"too few steps":  {steps(bench.Config{}, minSteps-1, defaultHighSteps), nil},
		"too many steps": {steps(bench.Config{}, maxSteps+1, defaultHighSteps), nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rows, err := test.rows()
			if (err != nil) != (test.want == nil) {
				t.Fatal(err)
			}
			var got []string
			for _, row := range rows {
				got = append(got, row.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
