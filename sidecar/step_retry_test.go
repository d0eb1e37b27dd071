package sidecar_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// becomes waits until a run has a status.
func (d *dock) becomes(id, status string) {
	d.t.Helper()
	eventually(d.t, id+" is "+status, func() bool {
		r, err := d.client.Run(d.t.Context(), id)
		return err == nil && r.Status == status
	})
}

// readyNow are the indexes of the instances that can be taken of a step.
func (d *dock) readyNow(run, name string) string {
	d.t.Helper()
	all, _, err := d.client.StepInstances(d.t.Context(), run, name, "scheduled")
	if err != nil {
		d.t.Fatal(err)
	}
	var text []string
	for _, i := range all {
		text = append(text, fmt.Sprint(i.Index))
	}
	return strings.Join(text, " ")
}

func TestStepInstancesAreTriedAgain(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{
		fan("x", 5, func(s *step.Spec) { s.Concurrency, s.OnFailure = 2, step.Finish }),
		fan("y", 1, func(s *step.Spec) { s.Needs = []string{"x"} }),
	}})
	x := func(i int) store.StepID { return store.StepID{Run: "a", Step: "x", Index: i} }
	first := d.takes(x(0))
	d.ends(first, step.Outcome{Status: step.Failed, Error: "no such day"})
	d.ends(d.takes(x(1)), step.Outcome{Status: step.Failed})
	two, three := d.takes(x(2)), d.takes(x(3))

	// The window is full. It is requested again, and so it stays if that is asked again.
	for range 2 {
		var i api.StepInstance
		a := d.post("/v1/runs/a/steps/x/1/retry", `{"reason":"the day has come"}`)
		if decode(t, a, &i); a.status != 200 || i.Status != "requested" || i.Attempt != 0 || i.Index != 1 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if r, err := d.client.RetryRun(t.Context(), "a", api.RunRetry{Steps: []string{"x"}}); err != nil || r.Status != "running" {
		t.Errorf("%+v, %v", r, err)
	}
	// Of those that wait the lowest index goes first, whether it has been begun or not.
	d.ends(two, step.Outcome{Status: step.Succeeded})
	again := d.takes(x(0))
	if again.Attempt != 1 || again.Revision <= first.Revision {
		t.Errorf("attempt %d, fence %d after %d", again.Attempt, again.Revision, first.Revision)
	}
	if got := d.readyNow("a", "x"); got != "" {
		t.Errorf("ready beyond the window: %s", got)
	}
	d.ends(again, step.Outcome{Status: step.Succeeded})
	d.ends(d.takes(x(1)), step.Outcome{Status: step.Succeeded})
	d.ends(d.takes(x(4)), step.Outcome{Status: step.Succeeded})
	d.ends(three, step.Outcome{Status: step.Succeeded})
	d.ends(d.takes(store.StepID{Run: "a", Step: "y"}), step.Outcome{Status: step.Succeeded})
	d.becomes("a", "succeeded")
	d.wantRefused(d.post("/v1/runs/a/steps/x/0/retry", ``), problem.RunEnded)
	d.wantRefused(d.post("/v1/runs/a/retry", ``), problem.RunEnded)

	events, err := d.client.RunEvents(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var reported []string
	for _, e := range events {
		if e.Type == "StepRetried" {
			reported = append(reported, fmt.Sprint(e.By, " ", e.Reason, e.Metadata))
		}
	}
	want := "one/sidecar the day has comemap[instances:1 step:x[1]]; one/sidecar map[instances:1 step:x]"
	if got := strings.Join(reported, "; "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAnEndedRunIsTriedAgain(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 4, func(s *step.Spec) { s.Concurrency = 3 }), fan("y", 1)}})
	x := func(i int) store.StepID { return store.StepID{Run: "a", Step: "x", Index: i} }
	running := d.takes(x(1))
	d.ends(d.takes(x(0)), step.Outcome{Status: step.Failed})
	d.becomes("a", "failed")
	d.wantRefused(d.post("/v1/runs/a/retry", `{"steps":["x[0]"]}`), problem.RunNotEnded)
	d.ends(running, step.Outcome{Status: step.Failed, Error: "by itself"})
	eventually(t, "x[2] is withdrawn", func() bool {
		i, err := d.steps().Get(t.Context(), x(2))
		return err == nil && i.Status == step.Canceled
	})
	d.wantRefused(d.post("/v1/runs/a/steps/x/0/retry", ``), problem.StepEnded)
	if got := d.readyNow("a", "x"); got != "" {
		t.Errorf("ready after a refusal: %s", got)
	}
	r, err := d.client.RetryRun(t.Context(), "a", api.RunRetry{Steps: []string{"x[0]", "x[1]"}, Reason: "both"})
	if err != nil || r.Status != "queued" || r.Attempt != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, i := range []int{0, 1, 2, 3} {
		d.ends(d.takes(x(i)), step.Outcome{Status: step.Succeeded})
	}

	// One is canceled, which fails the run, and tried again, which queues it.
	d.published(store.StepID{Run: "a", Step: "y"})
	for range 2 {
		var i api.StepInstance
		if decode(t, d.post("/v1/runs/a/steps/y/0/cancel", ``), &i); i.Status != "canceled" {
			t.Errorf("%+v", i)
		}
		d.becomes("a", "failed")
	}
	if i, err := d.client.RetryStep(t.Context(), "a", "y", 0, api.StepRetry{}); err != nil || i.Step != "y" {
		t.Errorf("%+v, %v", i, err)
	}
	y := d.takes(store.StepID{Run: "a", Step: "y"})
	if i, err := d.client.CancelStep(t.Context(), "a", "y", 0); err != nil || i.Status != "running" {
		t.Errorf("it runs, and is not stopped yet: %+v, %v", i, err)
	}
	d.ends(y, step.Outcome{Status: step.Canceled})
	d.becomes("a", "failed")

	// The whole run, and once more, as if the answer had been lost.
	for range 2 {
		var r api.Run
		if decode(t, d.post("/v1/runs/a/retry", ``), &r); r.Status == "failed" {
			t.Errorf("%+v", r)
		}
	}
	d.ends(d.takes(store.StepID{Run: "a", Step: "y"}), step.Outcome{Status: step.Succeeded})
	d.becomes("a", "succeeded")
	d.wantRefused(d.post("/v1/runs/a/steps/y/0/cancel", ``), problem.RunEnded)
	for _, op := range []string{"retry-run", "cancel-step"} {
		if !d.doc.checked[op+" 200 OK"] {
			t.Errorf("%s was not checked against the document", op)
		}
	}
}

func TestARunWithoutStepsIsTriedAgain(t *testing.T) {
	d := newDock(t)
	d.started("a", api.RunStart{})
	if _, err := d.client.CancelRun(t.Context(), "a", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r, err := d.client.RetryRun(t.Context(), "a", api.RunRetry{}); err != nil || r.Status != "queued" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	d.wantRefused(d.post("/v1/runs/a/retry", `{"steps":["x"]}`), problem.StepNotFound)
}

func TestBadRetriesAreRefused(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 2)}})
	many := strings.Repeat(`"x",`, step.MaxWhich) + `"x"`
	for what, test := range map[string]struct {
		path, body string
		code       problem.Code
		fields     []string
	}{
		"an unknown run":            {"b/retry", ``, problem.RunNotFound, nil},
		"a bad id":                  {"%20/retry", ``, problem.Invalid, []string{"id"}},
		"an unknown field":          {"a/retry", `{"step":"x"}`, problem.Invalid, []string{"step"}},
		"no steps":                  {"a/retry", `{"steps":[]}`, problem.Invalid, []string{"steps"}},
		"steps that are none":       {"a/retry", `{"steps":"x"}`, problem.Invalid, []string{"steps"}},
		"a step that is a number":   {"a/retry", `{"steps":[1]}`, problem.Invalid, []string{"steps[0]"}},
		"half an index":             {"a/retry", `{"steps":["x","x[1"]}`, problem.Invalid, []string{"steps[1]"}},
		"no name":                   {"a/retry", `{"steps":[""]}`, problem.Invalid, []string{"steps[0]"}},
		"101 steps":                 {"a/retry", `{"steps":[` + many + `]}`, problem.Invalid, []string{"steps"}},
		"an unknown step":           {"a/retry", `{"steps":["y"]}`, problem.StepNotFound, nil},
		"an unknown instance":       {"a/retry", `{"steps":["x[2]"]}`, problem.StepNotFound, nil},
		"of a step: an unknown one": {"a/steps/y/0/retry", ``, problem.StepNotFound, nil},
		"of a step: none":           {"a/steps/x/2/retry", ``, problem.StepNotFound, nil},
		"of a step: below 0":        {"a/steps/x/-1/retry", ``, problem.Invalid, []string{"index"}},
		"of a step: in words":       {"a/steps/x/one/retry", ``, problem.Invalid, []string{"index"}},
		"of a step: by steps":       {"a/steps/x/0/retry", `{"steps":["x"]}`, problem.Invalid, []string{"steps"}},
		"cancel: an unknown run":    {"b/steps/x/0/cancel", ``, problem.RunNotFound, nil},
		"cancel: an unknown step":   {"a/steps/y/0/cancel", ``, problem.StepNotFound, nil},
		"cancel: none":              {"a/steps/x/2/cancel", ``, problem.StepNotFound, nil},
		"cancel: below 0":           {"a/steps/x/-1/cancel", ``, problem.Invalid, []string{"index"}},
	} {
		t.Log(what)
		d.wantRefused(d.post("/v1/runs/"+test.path, test.body), test.code, test.fields...)
	}
}
