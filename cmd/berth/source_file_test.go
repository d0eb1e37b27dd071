package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/sidecar/source"
)

func TestASourceIsReadWhole(t *testing.T) {
	got, err := decodeSource("x.yaml", []byte(`
name: inbox
shell: ls
interval: 5s
timeout: 2m
id: number
forget: 1h
run:
  name: load
  owner: me
  priority: 3
  tags: {env: prod}
  labels: {x: y}
  max_concurrent_steps: 4
  max_steps_per_tick: 5
  steps:
  - name: load
    shell: echo {{.item.day}}
`))
	want := source.Spec{
		Name: "inbox", Shell: "ls", Interval: 5 * time.Second, Timeout: 2 * time.Minute, ID: "number", Forget: time.Hour,
		Run: run.Spec{
			Name: "load", Owner: "me", Priority: 3, Tags: map[string]string{"env": "prod"}, Labels: map[string]string{"x": "y"},
			MaxConcurrentSteps: 4, MaxStepsPerTick: 5,
		},
		Steps: []step.Spec{{Name: "load", Shell: "echo {{.item.day}}"}},
	}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(d, err)
	}
	got, err = decodeSource("x.yaml", []byte(`{"name": "inbox", "list": ["ls"], "run": {}}`))
	want = source.Spec{Name: "inbox", List: []string{"ls"}, Interval: 30 * time.Second, Timeout: time.Minute, ID: "id", Forget: 24 * time.Hour}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(d, err)
	}
}

// What a run can have, that of a source can have: each field that a submission knows is
// taken to the same place.
func TestTheRunOfASourceHasAllFieldsOfASubmission(t *testing.T) {
	values := map[string]string{
		"name": `"x"`, "owner": `"x"`, "priority": "1", "retries": "1", "tags": `{"a": "b"}`, "labels": `{"a": "b"}`, "pools": `{"db": 1}`,
		"not_before": `"2026-11-22T15:00:00Z"`, "delay": `"10m"`,
		"max_concurrent_steps": "1", "max_steps_per_tick": "1", "steps": `[{"name": "a", "external": true}]`,
	}
	for _, field := range submissionFields {
		if field == "id" {
			continue // it comes from the item
		}
		text := fmt.Sprintf("{%q: %s}", field, values[field])
		if strings.HasPrefix(field, "max_") { // of the steps that it has
			text = fmt.Sprintf("{%q: %s, \"steps\": %s}", field, values[field], values["steps"])
		}
		want, err := decodeSubmission("x.json", []byte(text))
		if err != nil {
			t.Fatal(field, err)
		}
		got, err := decodeSource("x.json", []byte(`{"name": "x", "list": ["ls"], "run": `+text+`}`))
		if err != nil {
			t.Error(field, err)
			continue
		}
		want.spec.Steps = 0 // they are counted with the item
		if d := cmp.Diff(want.spec, got.Run); d != "" || !reflect.DeepEqual(want.steps, got.Steps) {
			t.Errorf("%s: %s %+v", field, d, got.Steps)
		}
		if reflect.DeepEqual(want.spec, run.Spec{}) && want.steps == nil {
			t.Errorf("%s came to nothing", field)
		}
	}
}
