package ui

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

func TestTheHeadOfAQueuedRunSaysWhyItWaits(t *testing.T) {
	block := run.RunLimitBlock(10, 10)
	r := &run.Run{ID: "r", Record: run.Record{
		Status: run.Queued, QueuedAt: afterNoon(1), Block: &block, Attempt: 1, Lost: 1,
		Spec: run.Spec{
			Name: "night\u202eload", Owner: "ops", Priority: 7, Retries: 2, Pools: map[string]int{"gpu": 1, "db": 2},
			Tags: map[string]string{"env": "prod", "a": "<b>"}, Labels: map[string]string{"k": "v"},
		},
	}}
	other := &run.Run{ID: "o", Record: run.Record{
		Status: run.Running, AdmittedAt: afterNoon(-5), Spec: run.Spec{Name: "other", Tags: map[string]string{"env": "prod"}},
		Executor: &run.Executor{Host: "two", Instance: "sidecar"},
	}}
	got := headOf(&seenRun{run: r, why: &run.Why{Run: r, Position: 3, Line: 17, InTheWay: []*run.Run{other}, Estimate: run.Estimate{In: 90*time.Second + 7, Basis: "judged by the last 3 runs"}}, leaderless: true})
	want := runHead{
		ID: "r", Name: `night\u202eload`, Status: run.Queued, Reason: "global run limit (10/10)", Open: true,
		Queued: &queuedHead{
			Position: 3, Line: 17, Estimate: "in about 1m30s, judged by the last 3 runs",
			InTheWay: []wayRow{{ID: "o", Name: "other", Host: "two", Status: run.Running, Tags: []pair{{"env", "prod"}}, Since: afterNoon(-5)}},
		},
		Owner: "ops", Retries: "2, 1 executor lost", Priority: 7, Attempt: 1,
		Tags: []pair{{"a", "<b>"}, {"env", "prod"}}, Labels: []pair{{"k", "v"}},
		Pools: []poolNeed{{"db", "/pools?open=db&q=db", 2}, {"gpu", "/pools?open=gpu&q=gpu", 1}},
		Times: []runTime{{What: "queued", At: afterNoon(1)}},
		Notes: []string{"No coordinator is running, so queued runs wait: start 'berth coordinator', 'berth sidecar --coordinator' or 'berth dev'."},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if got.Title() != `Run night\u202eload (r)` {
		t.Error(got.Title())
	}
}

func TestTheHeadSaysHowARunStands(t *testing.T) {
	by := &run.Executor{Host: "two", Instance: "sidecar", Name: "x\ny"}
	for _, tc := range []struct {
		name   string
		record run.Record
		want   runHead
	}{
		{
			"not checked", run.Record{Status: run.Queued},
			runHead{Reason: "the coordinator has not checked it yet", Queued: &queuedHead{}, Open: true, Retries: "0"},
		},
		{
			"storing", run.Record{Status: run.Storing, Spec: run.Spec{Steps: 1}},
			runHead{Reason: "its steps are being stored", Open: true, Instances: "1 instance"},
		},
		{
			"admitted", run.Record{Status: run.NotStarted, Claim: "c", Spec: run.Spec{Pools: map[string]int{"db": 1}}},
			runHead{Reason: "admitted, waiting for an executor to start it", Open: true, Retries: "0", Claim: "c", Pools: []poolNeed{{"db", "/pools?open=db&q=db", 1}}},
		},
		{
			"admitted with steps", run.Record{Status: run.NotStarted, Spec: run.Spec{Steps: 3, MaxConcurrentSteps: 2, MaxStepsPerTick: 1}},
			runHead{Reason: "admitted, its steps are about to start", Open: true, Instances: "3 instances, at most 2 in flight, at most 1 published in one tick"},
		},
		{
			"running", run.Record{Status: run.Running, Executor: by, Attempt: 2, QueuedAt: afterNoon(1), AdmittedAt: afterNoon(2), StartedAt: afterNoon(4)},
			runHead{
				Reason: "on host 'two', attempt 2", Open: true, Retries: "0", Attempt: 2, Executor: "two/sidecar, x\ny", Fence: 77,
				Times: []runTime{{"queued", afterNoon(1), ""}, {"admitted", afterNoon(2), "1m"}, {"started", afterNoon(4), "2m"}},
			},
		},
		{"with steps", run.Record{Status: run.Running, Spec: run.Spec{Steps: 3}}, runHead{Reason: "its steps", Open: true, Instances: "3 instances"}},
		{
			"failed", run.Record{Status: run.Failed, Error: "<script>\nno", Executor: by, Claim: "c", QueuedAt: afterNoon(1), EndedAt: afterNoon(5)},
			runHead{
				Error: "<script>\nno", Retries: "0", Executor: "two/sidecar, x\ny",
				Times: []runTime{{"queued", afterNoon(1), ""}, {"ended", afterNoon(5), "4m"}},
			},
		},
	} {
		r := &run.Run{ID: "r", Revision: 77, Record: tc.record}
		tc.want.ID, tc.want.Status = "r", tc.record.Status
		got := headOf(&seenRun{run: r, why: &run.Why{Run: r}})
		if d := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: -want +got\n%s", tc.name, d)
		}
	}
}

func TestTheHeadAddsUpAllSteps(t *testing.T) {
	seen := seenOf(t, "a:", "b:", "c:", "d:")
	seen.ended(0, step.Succeeded, afterNoon(1), afterNoon(2))
	seen.ended(1, step.Failed, afterNoon(1), afterNoon(2))
	seen.ended(2, step.Scheduled, time.Time{}, time.Time{})
	h := headOf(seen)
	if p := h.Progress; p == nil || p.Text != "2 of 4 ended: 1 failed, 1 scheduled, 1 requested, 1 succeeded" || p.Percent() != 50 {
		t.Errorf("%+v", p)
	}
}
