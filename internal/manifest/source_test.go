package manifest

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/sidecar/source"
)

func TestASourceIsReadWhole(t *testing.T) {
	got, err := ReadSource("x.yaml", []byte(`
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
	got, err = ReadSource("x.yaml", []byte(`{"name": "inbox", "list": ["ls"], "run": {}}`))
	want = source.Spec{Name: "inbox", List: []string{"ls"}, Interval: 30 * time.Second, Timeout: time.Minute, ID: "id", Forget: 24 * time.Hour}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(d, err)
	}
}

func TestVarsAreReadInEachForm(t *testing.T) {
	pattern, err := source.NewPattern("[a-z]+")
	if err != nil {
		t.Fatal(err)
	}
	sameText := cmp.Comparer(func(a, b *regexp.Regexp) bool { return a == b || a != nil && b != nil && a.String() == b.String() })
	for text, want := range map[string]map[string]source.Var{
		"{}":           {},
		"[]":           {},
		"[title, a]":   {"title": {Required: true}, "a": {Required: true}},
		"{a: , b: {}}": {"a": {}, "b": {}},
		"{a: x, b: 1.50, c: true, d: '010', e: 2026-01-01, f: ''}": {
			"a": {Default: []byte(`"x"`)}, "b": {Default: []byte("1.50")}, "c": {Default: []byte("true")}, "d": {Default: []byte(`"010"`)},
			"e": {Default: []byte(`"2026-01-01"`)}, "f": {Default: []byte(`""`)},
		},
		"{a: {required: true, pattern: '[a-z]+'}, b: {default: {x: [<1>]}, required: false}, c: {values: [1, 2.50, x, true, 2026-01-01], default: 1}}": {
			"a": {Required: true, Pattern: pattern}, "b": {Default: []byte(`{"x":["<1>"]}`)},
			"c": {Values: []string{"1", "2.50", "x", "true", "2026-01-01"}, Default: []byte("1")},
		},
	} {
		got, err := ReadSource("x.yaml", []byte("name: inbox\nlist: [ls]\nrun: {}\nvars: "+text+"\n"))
		if d := cmp.Diff(want, got.Vars, sameText); err != nil || d != "" {
			t.Errorf("%s: %s %v", text, d, err)
		}
	}
}

func TestVarsThatAreRefusedNameTheirField(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "4:6: vars must be a mapping, or a list of names",
		"x":                                 "4:7: vars must be a mapping, or a list of names",
		"[a, 1]":                            `4:11: vars[1] must be a text: write "1", with the quotes`,
		"[a, b, a]":                         `4:14: vars: "a" is given twice, first on line 4`,
		"{a: [x]}":                          "4:11: vars.a must be its default (a text, a number, true or false), or a mapping",
		"{a: 010}":                          "4:11: vars.a: 010 can be read in several ways: ",
		"{a: {defualt: x}}":                 `4:12: vars.a: there is no "defualt", only default, required, pattern, values`,
		"{a: {required: yes}}":              "4:22: vars.a.required must be true or false",
		"{a: {pattern: '('}}":               "4:21: vars.a.pattern: it is not an RE2 regular expression: error parsing regexp: missing closing ): `(`",
		"{a: {pattern: 5}}":                 `4:21: vars.a.pattern must be a text: write "5", with the quotes`,
		"{a: {values: x}}":                  "4:20: vars.a.values must be a list",
		"{a: {values: []}}":                 "4:20: vars.a.values: at least one value is required",
		"{a: {values: [x, ~]}}":             "4:24: vars.a.values[1] must be a text, a number, true or false",
		"{a: {values: [x, [y]]}}":           "4:24: vars.a.values[1] must be a text, a number, true or false",
		"{a: {values: [x], default: y}}":    `4:34: vars.a.default: "y" is not allowed by the var itself: allowed are "x"`,
		"{a: {values: [x], pattern: x}}":    "4:20: vars.a.values: pattern and values cannot be used together",
		"{a: {default: x, required: true}}": "4:21: vars.a.default: required and default cannot be used together",
		"{a-b: x}":                          `4:8: vars.a-b: "a-b" cannot be used in templates: `,
		"[id]":                              "4:8: vars.id: it is the id of the item: use another name, or another field",
	} {
		_, err := ReadSource("x.yaml", []byte("name: inbox\nlist: [ls]\nrun: {}\nvars: "+text+"\n"))
		if err == nil || !strings.HasPrefix(err.Error(), "x.yaml:"+want) {
			t.Errorf("%s:\ngot  %v\nwant x.yaml:%s", text, err, want)
		}
	}
}

// Whatever the file: it is refused with all that is wrong, or is a source.
func FuzzDecodeSource(f *testing.F) {
	f.Add([]byte("name: inbox\nlist: [ls]\nrun: {name: '{{.item.a}}'}\nvars: {a: x, b: {values: [1, x], default: 1}, c: {pattern: '[a-z]+', required: true}}\n"))
	f.Add([]byte("name: inbox\nshell: ls\nrun: {}\nvars: [a, b]\n"))
	f.Add([]byte("vars: {a: &x {default: {b: [~]}}, c: *x, ? [d] : e, f: !!binary aGk=}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "file") {
			t.Skip() // it would read what there happens to be
		}
		s, err := ReadSource("f", data)
		if err != nil {
			if p, ok := err.(*Problems); !ok || len(p.Lines) == 0 {
				t.Fatalf("error %v", err)
			}
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatalf("%+v was taken: %v", s, err)
		}
	})
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
		want, err := ReadRun("x.json", []byte(text))
		if err != nil {
			t.Fatal(field, err)
		}
		got, err := ReadSource("x.json", []byte(`{"name": "x", "list": ["ls"], "run": `+text+`}`))
		if err != nil {
			t.Error(field, err)
			continue
		}
		want.Spec.Steps = 0 // they are counted with the item
		if d := cmp.Diff(want.Spec, got.Run); d != "" || !reflect.DeepEqual(want.Steps, got.Steps) {
			t.Errorf("%s: %s %+v", field, d, got.Steps)
		}
		if reflect.DeepEqual(want.Spec, run.Spec{}) && want.Steps == nil {
			t.Errorf("%s came to nothing", field)
		}
	}
}
