package sidecar_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/api"
)

// works has a worker seen that takes from some queues, until the test ends.
func (d *dock) works(capacity int, queues ...string) {
	d.t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	p := lease.NewPresence(lease.PresenceConfig{
		Backend: embedtest.Client(d.t, d.etcd), Keys: d.store.Keys, Host: "two", Instance: "worker",
		Role: "worker", Capacity: capacity, Queues: queues,
	})
	go func() { done <- p.Run(ctx) }()
	d.t.Cleanup(func() { stop(errors.New("stopped")); <-done })
	<-p.Ready()
}

// What instances wait for is stated with their steps, with each of them, and with the run.
func TestWhatStepsWaitForIsShown(t *testing.T) {
	d := led(t, 1)
	d.readDocument()
	d.pool("task.z", 0)
	d.works(1, "default")
	d.submit(api.RunRequest{ID: "a", Steps: api.RunSteps{
		{Name: "limited", Shell: "x", Task: step.Task{Name: "z"}, Items: &step.Items{Range: &step.Range{From: 1, To: 2, By: 1}}},
		{Name: "gpu", Shell: "x", Queue: "gpu"},
		{Name: "busy", Shell: "x", Items: &step.Items{Range: &step.Range{From: 1, To: 3, By: 1}}, Concurrency: 2},
		{Name: "outside", External: true},
		{Name: "then", Shell: "x", Needs: []string{"gpu"}},
	}})
	busy := d.takes(store.StepID{Run: "a", Step: "busy"})
	d.published(store.StepID{Run: "a", Step: "limited", Index: 1})
	d.published(store.StepID{Run: "a", Step: "outside"})

	var list api.StepList
	decode(t, d.get("/v1/runs/a/steps"), &list)
	got := map[string]string{}
	for _, s := range list.Items {
		got[s.Name] = s.BlockKind + ": " + s.BlockReason
	}
	want := map[string]string{
		"limited": "pool: pool 'task.z' is closed",
		"gpu":     "no_worker: no worker takes from queue 'gpu': start 'berth worker --queue gpu'",
		"busy":    "worker: the worker of queue 'default' can take no more (1/1 in progress)",
		"outside": "executor: no executor has taken it from queue 'default' over HTTP yet",
		"then":    "needs: it needs gpu",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps: %s", diff)
	}

	why, err := d.client.WhyRun(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var holds []string
	for _, h := range why.Steps {
		holds = append(holds, fmt.Sprintf("%v %d %s: %s", h.Steps, h.Instances, h.BlockKind, h.BlockReason))
	}
	if diff := cmp.Diff([]string{"[gpu] 1 " + want["gpu"], "[limited] 2 " + want["limited"], "[busy] 1 " + want["busy"], "[outside] 1 " + want["outside"]}, holds); diff != "" {
		t.Errorf("why: %s", diff)
	}
	if want := "running its steps; waiting: gpu: no worker takes from queue 'gpu': start 'berth worker --queue gpu'; limited: pool 'task.z' is closed; " +
		"busy: the worker of queue 'default' can take no more (1/1 in progress); and 1 more"; why.Reason != want {
		t.Errorf("%s, want %s", why.Reason, want)
	}

	var one api.StepWork
	if decode(t, d.get("/v1/runs/a/steps/limited/1"), &one); one.BlockKind != "pool" || one.BlockReason != "pool 'task.z' is closed" {
		t.Errorf("%+v", one)
	}
	if a := d.get("/v1/runs/a/steps/busy/0"); bytes.Contains(a.body, []byte("block_")) {
		t.Errorf("one that runs waits for nothing: %s", a.body)
	}

	// Changes are visible at once.
	d.pool("task.z", 5)
	d.ends(busy, step.Outcome{Status: step.Succeeded})
	d.published(store.StepID{Run: "a", Step: "busy", Index: 2})
	steps, _, err := d.client.Steps(t.Context(), "a")
	if err != nil || steps[0].BlockReason != "the worker of queue 'default' can take it (0/1 in progress)" {
		t.Errorf("%+v, %v", steps[0], err)
	}
	if why := d.why("a"); why != "running its steps; waiting: gpu: no worker takes from queue 'gpu': start 'berth worker --queue gpu'; outside: no executor has taken it from queue 'default' over HTTP yet" {
		t.Error(why)
	}
	for _, op := range []string{"list-steps 200 OK", "get-step-instance 200 OK"} {
		if !d.doc.checked[op] {
			t.Errorf("%s was not checked against the document", op)
		}
	}
}
