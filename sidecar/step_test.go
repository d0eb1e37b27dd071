package sidecar_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

const nightly = `{
  "id": "nightly", "max_concurrent_steps": 5, "max_steps_per_tick": 4,
  "steps": [
    {"name": "load", "needs": ["extract"], "shell": "cat", "queue": "big", "timeout": "10m", "task": "load"},
    {"name": "extract", "items": [{"day": "mon"}, {"day": "tue"}, 3], "concurrency": 2, "command": ["./load.sh", "{{json .item}}"],
     "env": {"N": "{{.index}}"}, "input": {"of": "{{.run.id}}"}, "retries": 1, "backoff": "1s", "on_failure": "finish"}
  ]}`

func TestARunIsSubmittedWithItsSteps(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	var r, again api.Run
	a := d.post("/v1/runs", nightly)
	if decode(t, a, &r); a.status != 201 || r.Steps != 4 || r.MaxConcurrentSteps != 5 || r.MaxStepsPerTick != 4 || r.Status != "queued" {
		t.Errorf("%d %s", a.status, a.body)
	}
	a = d.post("/v1/runs", nightly)
	if decode(t, a, &again); a.status != 200 || cmp.Diff(r, again) != "" {
		t.Errorf("again: %d %s", a.status, a.body)
	}
	d.wantRefused(d.post("/v1/runs", strings.Replace(nightly, "tue", "wed", 1)), problem.IDInUse)

	var list api.StepList
	decode(t, d.get("/v1/runs/nightly/steps"), &list)
	want := []api.Step{
		{
			Name: "extract", Needs: []string{}, Count: 3, Concurrency: 2, Queue: "default", Retries: 1,
			Backoff: api.Duration(time.Second), OnFailure: "finish", Counts: api.StepCounts{Requested: 3},
			BlockReason: "its run is queued", BlockKind: "run",
		},
		{
			Name: "load", Needs: []string{"extract"}, Count: 1, Queue: "big", Task: "load",
			Timeout: api.Duration(10 * time.Minute), OnFailure: "fail", Counts: api.StepCounts{Requested: 1},
			BlockReason: "its run is queued", BlockKind: "run",
		},
	}
	if diff := cmp.Diff(want, list.Items); diff != "" {
		t.Error(diff)
	}
	var w api.StepWork
	decode(t, d.get("/v1/runs/nightly/steps/extract/1"), &w)
	wantWork := api.StepWork{
		StepInstance: api.StepInstance{RunID: "nightly", Step: "extract", Index: 1, Status: "requested"},
		Queue:        "default", Command: []string{"./load.sh", `{"day":"tue"}`}, Env: map[string]string{"N": "1"},
		Input: json.RawMessage(`{"of":"nightly"}`), Retries: 1,
	}
	if diff := cmp.Diff(wantWork, w); diff != "" {
		t.Error(diff)
	}
	// By the client the steps are written as they are read.
	byClient, err := d.client.SubmitRun(t.Context(), api.RunRequest{ID: "small", Steps: api.RunSteps{fan("x", 2)}})
	if err != nil || byClient.Steps != 2 {
		t.Errorf("%+v, %v", byClient, err)
	}
	d.wantRefused(d.post("/v1/runs/small/start", ``), problem.RunTaken)
}

func TestBadStepsAreRefusedByField(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	for body, field := range map[string]string{
		`{"steps":[]}`:    "steps",
		`{"steps":{}}`:    "steps",
		`{"steps":["x"]}`: "steps[0]",
		`{"steps":[{}]}`:  "steps[0].name",
		`{"steps":[{"name":"a","shell":"x","when":"now"}]}`:                            "steps.a.when",
		`{"steps":[{"name":"a","shell":"x","env":{"BERTH_RUN_ID":"x"}}]}`:              "steps.a.env.BERTH_RUN_ID",
		`{"steps":[{"name":"a"}]}`:                                                     "steps.a",
		`{"steps":[{"name":"a","shell":"x","needs":["b"]}]}`:                           "steps.a.needs",
		`{"steps":[{"name":"a","shell":"x","items":[]}]}`:                              "steps.a.items",
		`{"steps":[{"name":"a","shell":"x","items":{"file":"x"}}]}`:                    "steps.a.items",
		`{"steps":[{"name":"a","shell":"x","items":7}]}`:                               "steps.a.items",
		`{"steps":[{"name":"a","shell":"x","retries":"7"}]}`:                           "steps.a.retries",
		`{"steps":[{"name":"a","shell":"x","not_before":"noon"}]}`:                     "steps.a.not_before",
		`{"steps":[{"name":"a","shell":"x","not_before":7}]}`:                          "steps.a.not_before",
		`{"steps":[{"name":"a","shell":"x","task":{"name":"t"}}]}`:                     "steps.a.task",
		`{"steps":[{"name":"a","shell":"x","task":{"name":"t","limit":"4"}}]}`:         "steps.a.task.limit",
		`{"steps":[{"name":"a","shell":"x","task":{"name":"t","limit":1000001}}]}`:     "steps.a.task.limit",
		`{"steps":[{"name":"a","shell":"x","task":7}]}`:                                "steps.a.task",
		`{"steps":[{"name":"a","shell":"x","backoff":7}]}`:                             "steps.a.backoff",
		`{"steps":[{"name":"a","shell":"x","timeout":"soon"}]}`:                        "steps.a.timeout",
		`{"steps":[{"name":"a","command":"x"}]}`:                                       "steps.a.command",
		`{"steps":[{"name":"a","shell":"{{.it}}"}]}`:                                   "steps.a.shell",
		`{"steps":[{"name":"a","shell":"x"}],"max_concurrent_steps":-1}`:               "max_concurrent_steps",
		`{"max_concurrent_steps":1}`:                                                   "max_concurrent_steps",
		`{"max_steps_per_tick":1}`:                                                     "max_steps_per_tick",
		`{"steps":[{"name":"a","shell":"x"}],"retries":2}`:                             "retries",
		`{"steps":[{"name":"a","shell":"x"}],"pools":{"db":1}}`:                        "pools",
		`{"steps":[{"name":"a","shell":"x","input":{"a":1,"a":2}}]}`:                   "steps[0].input.a",
		`{"steps":[{"name":"a","name":"b","shell":"x"}]}`:                              "steps[0].name",
		`{"steps":[{"name":"A","shell":"x","queue":3}]}`:                               "steps[0].queue",
		`{"steps":[{"name":"a","shell":"x"},{"name":"b","shell":"x","on_failure":1}]}`: "steps.b.on_failure",
	} {
		p := d.post("/v1/runs", body).problem(t)
		if p.Code != string(problem.Invalid) || len(p.Errors) == 0 || p.Errors[0].Field != field || p.Errors[0].Message == "" {
			t.Errorf("%s: %+v, want a refusal of %s", body, p, field)
		}
	}
	d.wantRefused(d.post("/v1/runs", `{"steps":[{"name":"a","shell":"x","pools":{"none":1}}]}`), problem.PoolNotFound, "steps.a.pools.none")
	d.pool("db", 1)
	d.wantRefused(d.post("/v1/runs", `{"steps":[{"name":"a","shell":"x","pools":{"db":2}}]}`), problem.ExceedsLimit, "steps.a.pools.db")
}

func TestOnlyStepsMakeABodyLong(t *testing.T) {
	d := newDock(t)
	long := strings.Repeat("x", 70<<10)
	d.wantRefused(d.post("/v1/runs", `{"owner":"`+long+`"}`), problem.TooLarge)
	items := strings.Repeat(`"`+strings.Repeat("x", 1000)+`",`, 100) + "1"
	var r api.Run
	if decode(t, d.post("/v1/runs", `{"steps":[{"name":"a","external":true,"items":[`+items+`]}]}`), &r); r.Steps != 101 {
		t.Errorf("%+v", r)
	}
	a := d.raw(request{method: "POST", path: "/v1/runs", body: `{"steps":"` + strings.Repeat("x", 16<<20) + `"}`})
	d.wantRefused(a, problem.TooLarge)
}

func TestStepsAreReadAsTheyGo(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{
		fan("x", 4, func(s *step.Spec) { s.Concurrency, s.OnFailure = 3, step.Finish }), fan("y", 1, func(s *step.Spec) { s.Needs = []string{"x"} }),
	}})
	instance := func(i int) store.StepID { return store.StepID{Run: "a", Step: "x", Index: i} }
	zero, one := d.takes(instance(0)), d.takes(instance(1))
	d.published(instance(2))
	d.ends(zero, step.Outcome{Status: step.Failed, ExitCode: 3, Error: "no such day", Output: []byte("reading\n\xff\n")})
	d.published(instance(3))
	if standing := d.why("a"); standing != "running its steps; waiting: x: no executor has taken it from queue 'default' over HTTP yet" {
		t.Error(standing)
	}
	steps, bad, err := d.client.Steps(t.Context(), "a")
	if err != nil || len(bad) != 0 || len(steps) != 2 {
		t.Fatalf("%+v, %v, %v", steps, bad, err)
	}
	if got := counts(steps[0]); got != "2 scheduled, 1 running, 1 failed" || !steps[0].StartedAt.Equal(zero.StartedAt) || !steps[0].EndedAt.IsZero() {
		t.Errorf("%s: %+v", got, steps[0])
	}
	if got := counts(steps[1]); got != "1 requested" {
		t.Errorf("%s: %+v", got, steps[1])
	}

	var failed api.StepWork
	decode(t, d.get("/v1/runs/a/steps/x/0"), &failed)
	if failed.Status != "failed" || failed.ExitCode != 3 || failed.Error != "no such day" || failed.Fence != 0 || failed.Attempt != 1 || !failed.External || string(failed.Input) != "1" {
		t.Errorf("%+v", failed)
	}
	running, err := d.client.StepInstance(t.Context(), "a", "x", 1)
	wantBy := &api.Executor{Host: "two", Instance: "worker"}
	if err != nil || running.Fence != int64(one.Fence()) || cmp.Diff(wantBy, running.Executor) != "" {
		t.Errorf("%+v, %v", running, err)
	}
	log := d.get("/v1/runs/a/steps/x/0/log")
	if log.status != 200 || string(log.body) != "reading\n\xff\n" || log.header.Get("Content-Type") != "text/plain; charset=utf-8" || log.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %q %v", log.status, log.body, log.header)
	}
	if text, err := d.client.StepLog(t.Context(), "a", "x", 0); err != nil || string(text) != "reading\n\xff\n" {
		t.Errorf("%q, %v", text, err)
	}
	d.wantRefused(d.get("/v1/runs/a/steps/x/1/log"), problem.NotFound)

	if _, err := d.client.CancelRun(t.Context(), "a", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	all, _, err := d.client.StepInstances(t.Context(), "a", "x", "canceled")
	if err != nil || len(all) != 3 || all[0].Index != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// why is what a run waits for, or its status.
func (d *dock) why(id string) string {
	d.t.Helper()
	why, err := d.client.WhyRun(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return why.Reason
}

func TestInstancesAreListedInPages(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 5)}})
	d.put(d.store.Keys.Step(store.StepID{Run: "a", Step: "x", Index: 1}), "?")
	var got []string
	query := "?limit=2&status=requested,failed"
	for next := ""; ; {
		var page api.StepInstanceList
		decode(t, d.get("/v1/runs/a/steps/x"+query+next), &page)
		for _, i := range page.Items {
			got = append(got, fmt.Sprint(i.Index))
		}
		for _, u := range page.Unreadable {
			got = append(got, u.Key)
		}
		if page.Next == "" {
			break
		}
		next = "&cursor=" + page.Next
		got = append(got, "|")
	}
	if text := strings.Join(got, " "); text != "0 2 /berth/steps/a/x/000001 | 3 4" {
		t.Error(text)
	}
	all, bad, err := d.client.StepInstances(t.Context(), "a", "x")
	if err != nil || len(all) != 4 || len(bad) != 1 {
		t.Errorf("%+v, %+v, %v", all, bad, err)
	}
	if _, bad, err := d.client.Steps(t.Context(), "a"); err != nil || len(bad) != 1 || bad[0].Reason == "" {
		t.Errorf("%+v, %v", bad, err)
	}
}

func TestReadingStepsThatThereAreNotIsRefused(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 2)}})
	d.submit(api.RunRequest{ID: "plain"})
	if got := d.get("/v1/runs/plain/steps"); string(got.body) != "{\"items\":[]}\n" {
		t.Errorf("%s", got.body)
	}
	for path, want := range map[string]struct {
		code   problem.Code
		fields []string
	}{
		"b/steps":               {problem.RunNotFound, nil},
		"%20/steps":             {problem.Invalid, []string{"id"}},
		"a/steps/y":             {problem.StepNotFound, nil},
		"a/steps/x%2F000001":    {problem.StepNotFound, nil},
		"plain/steps/x":         {problem.StepNotFound, nil},
		"a/steps/x?cursor=-1":   {problem.Invalid, []string{"cursor"}},
		"a/steps/x?cursor=01":   {problem.Invalid, []string{"cursor"}},
		"a/steps/x?status=done": {problem.Invalid, []string{"status"}},
		"a/steps/x?limit=0":     {problem.Invalid, []string{"limit"}},
		"a/steps/x/2":           {problem.StepNotFound, nil},
		"a/steps/x/-1":          {problem.Invalid, []string{"index"}},
		"a/steps/x/one":         {problem.Invalid, []string{"index"}},
		"a/steps/y/0":           {problem.StepNotFound, nil},
		"b/steps/x/0":           {problem.RunNotFound, nil},
		"a/steps/x/0/log":       {problem.NotFound, nil},
		"a/steps/x/2/log":       {problem.StepNotFound, nil},
	} {
		t.Log(path)
		d.wantRefused(d.get("/v1/runs/"+path), want.code, want.fields...)
	}
}

func TestHostsTellWhatTheyExecuteAndWhoLeads(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 2)}})
	d.takes(store.StepID{Run: "a", Step: "x", Index: 0})
	d.submit(api.RunRequest{ID: "plain"})
	eventually(t, "the run is admitted", func() bool {
		_, err := d.client.StartRun(t.Context(), "plain", api.RunStart{})
		return err == nil
	})
	var list api.List[api.Host]
	decode(t, d.get("/v1/hosts"), &list)
	got := map[string]string{}
	for _, h := range list.Items {
		got[h.Host+"/"+h.Instance] = fmt.Sprint(h.Role, " ", h.ActiveSteps, " ", h.ActiveRuns, " ", h.Leader)
	}
	want := map[string]string{"lead/coordinator": "coordinator 0 0 true", "one/sidecar": "sidecar 0 1 false", "two/worker": " 1 0 false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// The worker is not seen, and what it has is its own as long as the lease lives.
	for _, h := range list.Items {
		if gone := h.Host == "two"; h.Gone != gone || (h.WorkLeft > api.Duration(59*time.Minute)) != gone || h.Since.IsZero() != gone {
			t.Errorf("%+v", h)
		}
	}
}
