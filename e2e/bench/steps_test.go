//go:build linux

package main

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/instance"
)

func TestEachCaseOfStepsIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("the tests of workers show the race detector as much")
	}
	r, _ := newRunner(t)
	r.Rounds = 1
	rows, err := stepRows(&r.Config, 100, 200, []int{2}, 2)
	if err != nil {
		t.Fatal(err)
	}
	report, err := measure(t.Context(), r, rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report.Rows {
		if row.Error != "" {
			t.Errorf("%s: %s", row.Name, row.Error)
			continue
		}
		l := row.StepLoads
		loads := map[string]*stepLoad{"own": l.Own}
		if row.Kind == baseline {
			if l.Unlimited != nil || row.Reference.Put == nil || l.TakeAdded != nil {
				t.Errorf("the baseline is compared with %+v", row.Reference)
			}
		} else {
			loads["unlimited"] = l.Unlimited
			if l.Unlimited.SlotClaims != 0 || l.TakeAdded == nil || l.CompleteAdded == nil {
				t.Errorf("%s without limits: %+v", row.Name, l.Unlimited)
			}
		}
		for name, load := range loads {
			done := row.Steps * report.Rounds
			if load.PerSecond <= 0 || load.Take.Count != done || load.Complete.Count != done || len(load.ByWorker) != row.Workers {
				t.Errorf("%s, %s: %+v of %d steps", row.Name, name, load, done)
			}
			if c := load.Cost; c.Transactions <= 0 || c.Entries <= 0 || c.Operations == nil || c.Operations.Puts < 4 || c.Operations.Deletes < 2 {
				t.Errorf("%s, %s: a step costs %+v", row.Name, name, c)
			}
		}
		want := map[string]int{limited: row.Steps, binding: row.Steps, few: row.Steps, highest: row.Steps, busy: row.Steps, paced: row.Steps, mixed: row.Steps / 100}[row.Kind]
		if l.Own.SlotClaims < want || want == 0 && l.Own.SlotClaims > 0 || l.Own.SlotReleases != l.Own.SlotClaims {
			t.Errorf("%s claims %d slots and gives %d back, for %d steps", row.Name, l.Own.SlotClaims, l.Own.SlotReleases, want)
		}
		if l.Database <= 0 || l.InUse <= 0 || l.Peak <= 0 {
			t.Errorf("%s has no sizes: %+v", row.Name, l)
		}
	}
	verdicts := 0
	for _, target := range targets {
		if slices.ContainsFunc(rows, func(r *row) bool { return r.Name == target.of }) {
			verdicts++
		}
	}
	if len(report.Rows) != 10 || len(report.Targets) != verdicts {
		t.Errorf("%d cases, %d verdicts", len(report.Rows), len(report.Targets))
	}
	// The other target of that case counts all writes, also those of processes that wait: with so
	// few steps it depends on the speed of the machine.
	free := slices.IndexFunc(report.Targets, func(v verdict) bool { return v.Case == "unlimited/4w/10r" && v.Bound == 0 })
	if free < 0 || !report.Targets[free].Reached {
		t.Errorf("tasks without a limit are not free: %+v", report.Targets)
	}
	if _, err := json.Marshal(report); err != nil {
		t.Errorf("the report is no JSON: %v", err)
	}
}

func TestStepsOfACase(t *testing.T) {
	tests := map[string]struct {
		kind          string
		n             int
		limited, free int
		steps         int
	}{
		"baseline":               {baseline, 200, 0, 0, 1},
		"without a limit":        {unlimited, 200, 0, 200, 1},
		"all limited":            {limited, 200, 200, 0, 1},
		"1 of 100":               {mixed, 10_000, 100, 9_900, 200},
		"1 of 100, some left":    {mixed, 250, 2, 248, 4},
		"1 of 100, of very many": {mixed, 100_000, 1_000, 99_000, 1_000},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			specs := stepSpecs(test.kind, test.n)
			g, err := step.NewGraph(specs)
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]int{}
			for _, sh := range g.Shapes() {
				of[sh.Task] += sh.Count
			}
			if g.Total() != test.n || of[limitedTask] != test.limited || of[freeTask] != test.free || len(specs) != test.steps {
				t.Errorf("%d instances of %d steps: %v", g.Total(), len(specs), of)
			}
			for _, s := range plainSpecs(test.kind, test.n) {
				if !s.Task.IsZero() {
					t.Errorf("step %s has a task in the reference", s.Name)
				}
			}
		})
	}
}

// The limits that must not bind are not below what can be in flight, with the instances
// that still release their slots.
func TestWhichLimitsBind(t *testing.T) {
	rows, err := stepRows(&bench.Config{}, defaultSteps, defaultHighSteps, workerNumbers, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		binds := r.Limit > 0 && r.Limit < 2*r.Workers*r.Concurrency
		if want := r.Kind == binding || r.Kind == mixed; binds != want { // of mixed 1 of 100 is in question
			t.Errorf("%s has limit %d", r.Name, r.Limit)
		}
	}
}

func TestStepsAreSpreadOverQueues(t *testing.T) {
	r := stepRow(paced, 4, 10, 100, 80).over(3)
	steps, windows := map[string]int{}, 0
	g, err := step.NewGraph(r.specs(stepSpecs)(paced, 100))
	if err != nil {
		t.Fatal(err)
	}
	for _, sh := range g.Shapes() {
		steps[sh.Queue] += sh.Count
		windows += sh.Concurrency
	}
	if want := map[string]int{r.queue(0): 34, r.queue(1): 33, r.queue(2): 33}; !cmp.Equal(steps, want) || windows != pacedWindow {
		t.Errorf("%v with windows of %d in all, want %v", steps, windows, want)
	}
	if r.Name != "paced/4w/10r/3q" || r.queue(3) != r.queue(0) {
		t.Errorf("%s: the fourth worker takes from %s", r.Name, r.queue(3))
	}
}

func TestARunThatFailsIsNoFigure(t *testing.T) {
	r, _ := newRunner(t)
	f, err := r.openFleet(t.Context(), stepRow(baseline, 1, 2, 100, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	specs := stepSpecs(baseline, 10)
	specs[0].Queue = "unserved"
	go func() {
		all, _ := f.runs.All(t.Context())
		for len(all.With("running")) == 0 && t.Context().Err() == nil {
			all, _ = f.runs.All(t.Context())
		}
		_, _ = f.runs.Cancel(t.Context(), all.With("running")[0].ID, "no need", false)
	}()
	if _, err := f.once(t.Context(), specs); err == nil || !strings.Contains(err.Error(), "the run is canceled") {
		t.Errorf("a canceled run: %v", err)
	}
	if err := f.sum(&stepOutcome{}, time.Now(), 10); err == nil || !strings.Contains(err.Error(), "0 steps were begun") {
		t.Errorf("steps that no worker ran: %v", err)
	}
	f.workers[0].stop()
	f.pool = "none.such"
	if err := f.idle(t.Context()); err == nil || !strings.Contains(err.Error(), "a worker has ended") {
		t.Errorf("a worker that is gone: %v", err)
	}
}

func TestEtcdNeedNotServeItsMetrics(t *testing.T) {
	answers := map[string]struct {
		status int
		body   string
		want   *keyOperations
	}{
		"all":          {200, "# HELP\netcd_mvcc_put_total 7\netcd_mvcc_delete_total 3\netcd_mvcc_range_total 1e+02\netcd_debugging_mvcc_events_total 9\n", &keyOperations{7, 3, 100, 9}},
		"others":       {200, "go_goroutines 3\n", nil},
		"not found":    {404, "etcd_mvcc_put_total 7\n", nil},
		"not its port": {200, "<html>", nil},
	}
	for name, test := range answers {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			}))
			defer srv.Close()
			r := &runner{&bench.Runner{Config: bench.Config{Etcd: instance.Options{Endpoints: []string{srv.URL}}}}}
			if got := r.operations(t.Context()); !cmp.Equal(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
	r := &runner{&bench.Runner{Config: bench.Config{Etcd: instance.Options{Endpoints: []string{"unix:///nowhere"}}}}}
	if got := r.operations(t.Context()); got != nil {
		t.Errorf("from a socket: %+v", got)
	}
}

func TestFiguresOfSteps(t *testing.T) {
	ms := time.Millisecond
	outcome := func(perSecond float64, take, complete time.Duration, claims int) stepOutcome {
		return stepOutcome{
			perSecond: perSecond, perWorker: []float64{perSecond / 4, 3 * perSecond / 4},
			take: []time.Duration{take}, complete: []time.Duration{complete}, released: claims,
			published: []time.Duration{take},
			counts: stepCounts{
				transactions: 40, reads: 20, entries: 50, claims: float64(claims), claimBatches: 5,
				etcd: &keyOperations{500, 200, 100, 800}, conflicts: 3, wakes: 60, picks: 90,
				clock: 2 * time.Second, cpu: bench.Usage{Etcd: 70 * ms, Instances: 140 * ms},
			},
		}
	}
	row := stepRow(limited, 2, 1, 100, 10)
	row.fillSteps([]stepRound{
		{ref: outcome(1000, 2*ms, 3*ms, 0), own: outcome(800, 4*ms, 3*ms, 100)},
		{ref: outcome(1000, 2*ms, 3*ms, 0), own: outcome(900, 3*ms, 4*ms, 100)},
	}, bench.Rate{Etcd: 10, Instances: 20})
	l := row.StepLoads
	if math.Abs(row.Ratio.Median-0.85) > 1e-9 || l.TakeAdded.Median != 1.5 || l.CompleteAdded.High != 1 {
		t.Errorf("%+v, %+v, %+v", row.Ratio, l.TakeAdded, l.CompleteAdded)
	}
	etcd := 0.5 // (70 - 2 × 10) / 100
	want := stepCost{
		Transactions: 0.4, Reads: 0.2, Entries: 0.5, Operations: &keyOperations{5, 2, 1, 8},
		EtcdCPU: &etcd, OwnCPU: 1, Conflicts: 0.03, Wakes: 0.6, Picks: 0.9,
	}
	if diff := cmp.Diff(want, l.Own.Cost); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if l.Own.SlotClaims != 200 || l.Own.SlotReleases != 200 || l.Own.SlotTransactions != 10 || l.Own.ByWorker[1] != 637.5 {
		t.Errorf("%+v", l.Own)
	}

	if l.Own.Published.Max != 4 {
		t.Errorf("the longest time from a publication is %v", l.Own.Published.Max)
	}

	// Where etcd did not report them once, they are not known.
	silent := outcome(1000, ms, ms, 0)
	silent.counts.etcd = nil
	row = stepRow(unlimited, 2, 1, 100, 10)
	row.fillSteps([]stepRound{{ref: silent, own: outcome(1, ms, ms, 0)}, {ref: outcome(1, ms, ms, 0), own: outcome(1, ms, ms, 0)}}, bench.Rate{})
	if row.StepLoads.Unlimited.Cost.Operations != nil {
		t.Error("operations that etcd did not report")
	}
	if _, numbers := stepWrites(row); numbers != "" {
		t.Error("a verdict on them")
	}
}
