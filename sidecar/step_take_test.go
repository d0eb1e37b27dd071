package sidecar_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

func needs(slots map[string]int) func(*step.Spec) {
	return func(s *step.Spec) { s.Pools = slots }
}

// fanned submits a run with one step, and waits until its instances can be taken.
func (d *dock) fanned(id string, s step.Spec) {
	d.t.Helper()
	d.submit(api.RunRequest{ID: id, Steps: api.RunSteps{s}})
	d.published(store.StepID{Run: id, Step: s.Name, Index: s.Items.Count() - 1})
}

// take takes an instance of step x through the dock's sidecar.
func (d *dock) take(id string, index int, r api.StepTake) *api.TakenStep {
	d.t.Helper()
	taken, err := d.client.TakeStep(d.t.Context(), id, "x", index, r)
	if err != nil {
		d.t.Fatal(err)
	}
	return taken
}

func (d *dock) finish(taken *api.TakenStep, r api.StepFinish) *api.StepInstance {
	d.t.Helper()
	r.Fence = taken.Fence
	i, err := d.client.FinishStep(d.t.Context(), taken.RunID, taken.Step, taken.Index, r)
	if err != nil {
		d.t.Fatal(err)
	}
	return i
}

// ended waits until a run has ended, and checks how.
func (d *dock) ended(id, want string) {
	d.t.Helper()
	var r *api.Run
	eventually(d.t, id+" has ended", func() bool {
		var err error
		if r, err = d.client.Run(d.t.Context(), id); err != nil {
			d.t.Fatal(err)
		}
		return run.Status(r.Status).Ended()
	})
	if r.Status != want {
		d.t.Errorf("%+v, want %s", r, want)
	}
}

func TestAnExecutorTakesRenewsAndFinishesStepInstances(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	ready := make(chan answer, 1)
	go func() { ready <- d.get("/v1/queues/far/ready?wait=1m") }()
	d.submit(api.RunRequest{ID: "other", Steps: api.RunSteps{{Name: "x", Shell: "true", Queue: "far"}}})
	d.published(store.StepID{Run: "other", Step: "x"})
	d.submit(api.RunRequest{ID: "a", Priority: 3, Steps: api.RunSteps{fan("x", 2, func(s *step.Spec) { s.Queue = "far" })}})
	var list api.ReadyList
	decode(t, <-ready, &list)
	if len(list.Items) == 0 || list.Items[0].RunID != "a" || list.Items[0].Index != 0 || list.Items[0].Priority != 3 || list.Items[0].ScheduledAt.IsZero() {
		t.Fatalf("%+v", list)
	}
	const path = "/v1/runs/a/steps/x/0"
	var first, again api.TakenStep
	decode(t, d.post(path+"/take", `{"executor":"ci-7","ttl":"30s"}`), &first)
	by := &api.Executor{Host: "one", Instance: "sidecar", Name: "ci-7", By: "anonymous"}
	if first.Status != "running" || cmp.Diff(by, first.Executor) != "" || first.Fence == 0 || first.ValidFor <= 0 || first.ValidFor > api.Duration(31*time.Second) ||
		string(first.Input) != "1" || first.TTL != api.Duration(30*time.Second) || first.Queue != "far" {
		t.Errorf("%+v", first)
	}
	decode(t, d.post(path+"/take", `{"executor":"ci-7","ttl":"30s"}`), &again)
	if again.Fence != first.Fence || again.Attempt != 1 || string(again.Input) != "1" {
		t.Errorf("%+v", again)
	}
	d.wantRefused(d.post(path+"/take", `{"executor":"ci-8"}`), problem.StepTaken)
	d.wantRefused(d.post(path+"/take", ``), problem.StepTaken)
	fence := fmt.Sprintf(`{"fence":%d`, first.Fence)
	if decode(t, d.post(path+"/renew", fence+`}`), &again); again.Fence != first.Fence || again.ValidFor <= 0 {
		t.Errorf("%+v", again)
	}
	d.wantRefused(d.post(path+"/renew", `{"fence":1}`), problem.StepLost)
	d.wantRefused(d.post(path+"/finish", fence+`,"status":"canceled"}`), problem.Invalid, "status")
	var ended api.StepInstance
	finish := fence + `,"status":"succeeded","output":"all well\n"}`
	for range 2 { // an answer may be lost
		if decode(t, d.post(path+"/finish", finish), &ended); ended.Status != "succeeded" || ended.Fence != 0 {
			t.Errorf("%+v", ended)
		}
	}
	d.wantRefused(d.post(path+"/finish", fence+`,"status":"failed"}`), problem.StepEnded)
	d.wantRefused(d.post(path+"/renew", fence+`}`), problem.StepEnded)
	if log := d.get(path + "/log"); string(log.body) != "all well\n" {
		t.Errorf("%d %s", log.status, log.body)
	}
	d.finish(d.take("a", 1, api.StepTake{}), api.StepFinish{Status: "succeeded"})
	d.ended("a", "succeeded")
	left, err := d.client.ReadySteps(t.Context(), "far", time.Millisecond)
	if err != nil || len(left) != 0 {
		t.Errorf("%+v, %v", left, err)
	}
	for _, want := range []string{"list-ready 200 OK", "take-step 200 OK", "take-step 409 Conflict", "renew-step 200 OK", "finish-step 200 OK"} {
		if !d.doc.checked[want] {
			t.Errorf("%s was not checked against the document", want)
		}
	}
}

func TestAnInstanceIsTakenWithItsSlots(t *testing.T) {
	d := led(t, 1)
	d.fanned("a", fan("x", 2, needs(map[string]int{"db": 1})))
	first := d.take("a", 0, api.StepTake{Executor: "me"})
	if h := d.slots()["a"]; h.Slots != 1 || int64(h.Fence) != first.Fence || h.Step != "x[0]" || h.Host != "one" {
		t.Errorf("%+v, taken as %+v", h, first)
	}
	now := time.Duration(0)
	_, err := d.client.TakeStep(t.Context(), "a", "x", 1, api.StepTake{Wait: (*api.Duration)(&now)})
	wantCode(t, err, problem.NoCapacity)
	wantCode(t, d.client.Release(t.Context(), d.slots()["a"].Claim), problem.NotHolder)
	next := make(chan *api.TakenStep)
	go func() {
		taken, err := d.client.TakeStep(context.WithoutCancel(t.Context()), "a", "x", 1, api.StepTake{})
		if err != nil {
			t.Error(err)
		}
		next <- taken
	}()
	eventually(t, "it is in the wait queue", func() bool {
		p, err := d.client.Pool(t.Context(), "db")
		return err == nil && p.Waiting == 1
	})
	d.finish(first, api.StepFinish{Status: "succeeded"})
	second := <-next
	if h := d.slots()["a"]; second == nil || int64(h.Fence) != second.Fence || h.Step != "x[1]" || second.Fence <= first.Fence {
		t.Fatalf("%+v, taken as %+v", h, second)
	}
	d.finish(second, api.StepFinish{Status: "succeeded"})
	d.freed("a")
	d.ended("a", "succeeded")
}

// The limit of a task is that of a pool; without one there is none, and no slot.
func TestATaskThatHasALimitTakesASlot(t *testing.T) {
	d := led(t, 1)
	task := func(s *step.Spec) { s.Task.Name = "resize" }
	d.fanned("free", fan("x", 1, task))
	d.finish(d.take("free", 0, api.StepTake{}), api.StepFinish{Status: "succeeded"})
	if held := d.slots(); len(held) != 0 {
		t.Errorf("%+v", held)
	}
	d.pool("task.resize", 1)
	d.fanned("bound", fan("x", 1, task))
	taken := d.take("bound", 0, api.StepTake{})
	if h := d.slots()["bound"]; h.Pools["task.resize"] != 1 || int64(h.Fence) != taken.Fence {
		t.Errorf("%+v", h)
	}
}

func TestWhoHangsUpInLineTakesNothing(t *testing.T) {
	t.Parallel()
	d := led(t, 1)
	d.fanned("a", fan("x", 2, needs(map[string]int{"db": 1})))
	first := d.take("a", 0, api.StepTake{})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := d.client.TakeStep(ctx, "a", "x", 1, api.StepTake{})
		gone <- err
	}()
	waiting := func(n int) func() bool {
		return func() bool {
			p, err := d.client.Pool(t.Context(), "db")
			return err == nil && p.Waiting == n
		}
	}
	eventually(t, "it is in the wait queue", waiting(1))
	cancel()
	if err := <-gone; err == nil {
		t.Error("it was taken")
	}
	eventually(t, "it has left the wait queue", waiting(0))
	d.finish(first, api.StepFinish{Status: "succeeded"})
	d.finish(d.take("a", 1, api.StepTake{}), api.StepFinish{Status: "succeeded"})
	d.ended("a", "succeeded")
}

func TestAnAttemptOutlivesItsSidecar(t *testing.T) {
	t.Parallel()
	for name, slots := range map[string]map[string]int{"plain": nil, "with slots": {"db": 1}} {
		t.Run(name, func(t *testing.T) {
			d := led(t, 1)
			d.fanned("a", fan("x", 1, needs(slots)))
			taken := d.take("a", 0, api.StepTake{Executor: "me", TTL: api.DurationOf(time.Hour)})
			d.running = d.restarted()
			again, err := d.client.RenewStep(t.Context(), "a", "x", 0, taken.Fence)
			if err != nil || again.Fence != taken.Fence || again.TTL != taken.TTL || string(again.Input) != "1" {
				t.Fatalf("%+v, %v", again, err)
			}
			if left, _ := again.Remaining(); left <= 0 {
				t.Errorf("valid for %s", left)
			}
			if len(slots) > 0 && int64(d.slots()["a"].Fence) != taken.Fence {
				t.Errorf("%+v", d.slots())
			}
			d.finish(taken, api.StepFinish{Status: "succeeded"})
			d.freed("a")
			d.ended("a", "succeeded")
		})
	}
}

func TestAnAttemptIsItsOwnSidecars(t *testing.T) {
	d := led(t, 1)
	d.fanned("a", fan("x", 1, func(s *step.Spec) { s.Retries = 1 }))
	taken := d.take("a", 0, api.StepTake{})
	other := d.another("two")
	_, err := other.client.RenewStep(t.Context(), "a", "x", 0, taken.Fence)
	wantCode(t, err, problem.NotHolder)
	_, err = other.client.TakeStep(t.Context(), "a", "x", 0, api.StepTake{})
	wantCode(t, err, problem.StepTaken)
	// To finish it is everybody's.
	fail := api.StepFinish{Fence: taken.Fence, Status: "failed", Error: "no\x00such day", ExitCode: 4}
	var i *api.StepInstance
	for range 2 {
		if i, err = other.client.FinishStep(t.Context(), "a", "x", 0, fail); err != nil || i.Error != "no such day" || i.ExitCode != 4 {
			t.Fatalf("%+v, %v", i, err)
		}
	}
	eventually(t, "it can be taken again", func() bool {
		again, err := other.client.TakeStep(t.Context(), "a", "x", 0, api.StepTake{})
		return err == nil && again.Attempt == 2
	})
	_, err = d.client.RenewStep(t.Context(), "a", "x", 0, taken.Fence)
	wantCode(t, err, problem.StepLost)
}

func TestACanceledRunStopsItsExecutors(t *testing.T) {
	d := led(t, 1)
	d.fanned("a", fan("x", 2, needs(map[string]int{"db": 1})))
	taken := d.take("a", 0, api.StepTake{})
	if _, err := d.client.CancelRun(t.Context(), "a", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	_, err := d.client.RenewStep(t.Context(), "a", "x", 0, taken.Fence)
	if code := problem.CodeOf(err); code != problem.RunEnded && code != problem.StepLost { // its slots may have been revoked already
		t.Error(err)
	}
	_, err = d.client.TakeStep(t.Context(), "a", "x", 1, api.StepTake{})
	wantCode(t, err, problem.StepTaken)
	if i := d.finish(taken, api.StepFinish{Status: "canceled"}); i.Status != "canceled" {
		t.Errorf("%+v", i)
	}
	d.freed("a")
}

func TestBadInputOfExecutorsIsRefusedByField(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.fanned("a", fan("x", 2))
	d.submit(api.RunRequest{ID: "worker", Steps: api.RunSteps{{Name: "x", Shell: "true"}}})
	d.submit(api.RunRequest{ID: "plain"})
	d.published(store.StepID{Run: "worker", Step: "x"})
	fence := fmt.Sprint(d.take("a", 0, api.StepTake{Executor: "me"}).Fence)
	for _, c := range []struct {
		path, body string
		code       problem.Code
		fields     string
	}{
		{"worker/steps/x/0/take", ``, problem.StepTaken, ""},
		{"worker/steps/x/0/finish", `{"fence":7,"status":"failed"}`, problem.StepTaken, ""},
		{"nobody/steps/x/0/take", ``, problem.RunNotFound, ""},
		{"plain/steps/x/0/take", ``, problem.StepNotFound, ""},
		{"a/steps/y/0/take", ``, problem.StepNotFound, ""},
		{"a/steps/x/2/take", ``, problem.StepNotFound, ""},
		{"a/steps/x/-1/take", ``, problem.Invalid, "index"},
		{"%20/steps/x/0/take", ``, problem.Invalid, "id"},
		{"a/steps/x/1/take", `{"ttl":"1s"}`, problem.Invalid, "ttl"},
		{"a/steps/x/1/take", `{"wait":"-1s"}`, problem.Invalid, "wait"},
		{"a/steps/x/1/take", `{"wait":7}`, problem.Invalid, "wait"},
		{"a/steps/x/1/take", `{"executor":"a\nb"}`, problem.Invalid, "executor"},
		{"a/steps/x/1/take", `{"pid":1}`, problem.Invalid, "pid"},
		{"a/steps/x/0/renew", ``, problem.Malformed, ""},
		{"a/steps/x/0/renew", `{}`, problem.Invalid, "fence"},
		{"a/steps/x/0/renew", `{"fence":1}`, problem.StepLost, ""},
		{"a/steps/x/1/renew", `{"fence":1}`, problem.StepLost, ""},
		{"a/steps/y/0/renew", `{"fence":1}`, problem.StepNotFound, ""},
		{"nobody/steps/x/0/renew", `{"fence":1}`, problem.RunNotFound, ""},
		{"a/steps/x/0/finish", `{"status":"failed"}`, problem.Invalid, "fence"},
		{"a/steps/x/0/finish", `{"fence":` + fence + `}`, problem.Invalid, "status"},
		{"a/steps/x/0/finish", `{"fence":` + fence + `,"status":"running"}`, problem.Invalid, "status"},
		{"a/steps/x/0/finish", `{"fence":` + fence + `,"status":"failed","exit_code":"1"}`, problem.Invalid, "exit_code"},
		{"a/steps/x/0/finish", `{"fence":1,"status":"failed"}`, problem.StepLost, ""},
		{"a/steps/x/1/finish", `{"fence":1,"status":"failed"}`, problem.StepLost, ""},
		{"a/steps/y/0/finish", `{"fence":1,"status":"failed"}`, problem.StepNotFound, ""},
	} {
		t.Log(c.path, c.body)
		var fields []string
		if c.fields != "" {
			fields = []string{c.fields}
		}
		d.wantRefused(d.post("/v1/runs/"+c.path, c.body), c.code, fields...)
	}
	for path, field := range map[string]string{
		"A/ready": "queue", "a/ready?wait=6m": "wait", "a/ready?wait=-1s": "wait", "a/ready?wait=soon": "wait", "a/ready?limit=0": "limit", "a/ready?x=1": "x",
	} {
		t.Log(path)
		d.wantRefused(d.get("/v1/queues/"+path), problem.Invalid, field)
	}
}
