package manifest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/step"
)

func TestAFileWithSteps(t *testing.T) {
	const yamlFile = `
name: nightly
max_concurrent_steps: 10
max_steps_per_tick: 5
steps:
  - name: load
    needs: [extract]
    items: {from: 1, to: 20, by: 3}
    concurrency: 3
    pools: {db: 1}
    task: resize
    queue: big
    command: [./load.sh, "{{.item}}"]
    env: {DAY: "{{.item}}"}
    input: {day: "{{.item}}", n: [1, 2.50, ~, yes, 2026-01-02, +31, "<"]}
    retries: 2
    backoff: 0
    timeout: 10m
    on_failure: finish
  - name: extract
    shell: |
      echo "$DAY"
  - {name: out, external: true, items: [a, {b: 1}], input: null}
`
	const jsonFile = `{"name": "nightly", "max_concurrent_steps": 10, "max_steps_per_tick": 5, "steps": [
		{"name": "load", "needs": ["extract"], "items": {"from": 1, "to": 20, "by": 3}, "concurrency": 3, "pools": {"db": 1},
		 "task": "resize", "queue": "big", "command": ["./load.sh", "{{.item}}"], "env": {"DAY": "{{.item}}"},
		 "input": {"day": "{{.item}}", "n": [1, 2.50, null, true, "2026-01-02", 31, "<"]},
		 "retries": 2, "backoff": "0", "timeout": "10m", "on_failure": "finish"},
		{"name": "extract", "shell": "echo \"$DAY\"\n"},
		{"name": "out", "external": true, "items": ["a", {"b": 1}], "input": null}]}`
	want := []step.Spec{
		{
			Name: "load", Needs: []string{"extract"}, Items: &step.Items{Range: &step.Range{From: 1, To: 20, By: 3}}, Concurrency: 3,
			Pools: map[string]int{"db": 1}, Task: step.Task{Name: "resize"}, Queue: "big", Command: []string{"./load.sh", "{{.item}}"},
			Env: map[string]string{"DAY": "{{.item}}"}, Input: json.RawMessage(`{"day":"{{.item}}","n":[1,2.50,null,true,"2026-01-02",31,"<"]}`),
			Retries: 2, Timeout: step.Duration(10 * time.Minute), OnFailure: step.Finish,
		},
		{Name: "extract", Shell: "echo \"$DAY\"\n"},
		{Name: "out", External: true, Items: &step.Items{List: []json.RawMessage{[]byte(`"a"`), []byte(`{"b":1}`)}}, Input: json.RawMessage("null")},
	}
	for name, text := range map[string]string{"yaml": strings.Replace(yamlFile, "yes", "true", 1), "json": jsonFile} {
		a, err := ReadRun(name, []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want, a.Steps); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if a.Spec.Steps != 10 || a.Graph.Total() != 10 || a.Spec.MaxConcurrentSteps != 10 || a.Spec.MaxStepsPerTick != 5 {
			t.Errorf("%s: %+v", name, a.Spec)
		}
	}
}

// An id with zeros in front would be another number, and one in hexadecimal digits would
// be lost: neither is taken for what it was not meant to be.
func TestNumbersThatCanBeReadInSeveralWaysAreRefused(t *testing.T) {
	const how = `%s can be read in several ways: write %q, with the quotes, if it is a text, or the number in plain digits`
	for _, odd := range []string{"010", "007", "-010", "0x10", "0o17", "0b11", "1_000", "01.5"} {
		for _, field := range []string{"items", "input"} {
			text := "steps:\n- {name: a, external: true, " + field + ": [" + odd + "]}\n"
			_, err := ReadRun("f", []byte(text))
			if err == nil || !strings.HasSuffix(err.Error(), "steps.a."+field+"[0]: "+fmt.Sprintf(how, odd, odd)) {
				t.Errorf("%s of %s: %v", odd, field, err)
			}
		}
	}
	for path, text := range map[string]string{
		"priority":           "priority: 010",
		"max_steps_per_tick": "max_steps_per_tick: 010\nsteps: [{name: a, external: true}]",
		"pools.db":           "pools: {db: 010}",
		"tags":               "tags: {010: a}",
		"steps.a.retries":    "steps: [{name: a, external: true, retries: 010}]",
		"steps.a.timeout":    "steps: [{name: a, external: true, timeout: 010}]",
		"steps.a.items.from": "steps: [{name: a, external: true, items: {from: 010, to: 20}}]",
		"steps.a.input":      "steps: [{name: a, external: true, input: {010: a}}]",
	} {
		_, err := ReadRun("f", []byte(text))
		if err == nil || !strings.HasSuffix(err.Error(), " "+path+": "+fmt.Sprintf(how, "010", "010")) {
			t.Errorf("%s\n%v", text, err)
		}
	}
	a, err := ReadRun("f", []byte("steps:\n- {name: a, external: true, items: [0, -0, +5, 10, 1.50, 1e3, .5, '010', \"0x10\", 0.1]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, want := fmt.Sprintf("%s", a.Steps[0].Items.List), `[0 -0 5 10 1.50 1e3 0.5 "010" "0x10" 0.1]`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestMergesAndAliasesAreRefused(t *testing.T) {
	const file = "steps:\n- &one {name: a, shell: x}\n- {<<: *one, name: b, env: {<<: {A: c}, '<<': d}, input: {<<: {b: c}}}\n- *one\n"
	_, err := ReadRun("f", []byte(file))
	const want = "f: 4 problems\n" +
		"  f:3:4: steps.b: merge keys (<<) are not allowed: write out the fields\n" +
		"  f:3:29: steps.b.env: merge keys (<<) are not allowed: write out the fields\n" +
		"  f:3:59: steps.b.input: merge keys (<<) are not allowed: write out the fields\n" +
		"  f:4:3: steps[2]: aliases are not allowed"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestItemsOfAFile(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"lines":    "a\r\n\n <b> \n  \nlast",
		"array":    "\n[1, {\"x\": [2.0]}, null]\n",
		"sub/far":  "x\n",
		"blank":    "\n \n",
		"none":     "[]",
		"broken":   "[1, 2",
		"behind":   "[1] 2",
		"latin":    "a\nb\xe4\n",
		"in-array": "[1, \"\xe4\"]",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) (Run, error) {
		text := "steps:\n- name: a\n  external: true\n  items: {file: '" + path + "'}\n"
		return ReadRun(filepath.Join(folder, "run.yaml"), []byte(text))
	}
	for path, want := range map[string]string{
		"lines": `["a"," <b> ","last"]`, "array": `[1,{"x": [2.0]},null]`, "sub/far": `["x"]`, "./sub/../lines": `["a"," <b> ","last"]`,
		filepath.Join(folder, "sub/far"): `["x"]`,
	} {
		a, err := read(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		var got []string
		for _, item := range a.Steps[0].Items.List {
			got = append(got, string(item))
		}
		if all := "[" + strings.Join(got, ",") + "]"; all != want {
			t.Errorf("%s: %s, want %s", path, all, want)
		}
	}
	at := filepath.Join(folder, "run.yaml") + ":4:17: steps.a.items.file: "
	for path, want := range map[string]string{
		"missing":   at + "the file can't be read: open " + filepath.Join(folder, "missing") + ": no such file or directory",
		"sub":       at + filepath.Join(folder, "sub") + " is no file that can be read to its end",
		"/dev/zero": at + "/dev/zero is no file that can be read to its end",
		"blank":     at + filepath.Join(folder, "blank") + ": it has no items: at least one is needed",
		"none":      at + filepath.Join(folder, "none") + ": it has no items: at least one is needed",
		"broken":    at + filepath.Join(folder, "broken") + ":1:6: it begins with '[' and is not a JSON array: it ends within the value",
		"behind":    "",
		"latin":     at + filepath.Join(folder, "latin") + ":2: it is not text in UTF-8",
		"in-array":  at + filepath.Join(folder, "in-array") + ":1:6: [1]: invalid UTF-8",
	} {
		if _, err := read(path); err == nil || want != "" && err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", path, err, want)
		}
	}
}

// Whatever the file: it is refused with all that is wrong, or its steps make a graph.
func FuzzDecodeSteps(f *testing.F) {
	f.Add([]byte("steps:\n- name: a\n  items: [1, {b: c}, 2026-01-01, .5, 0x1f, ~]\n  command: [x, '{{json .item}}']\n  input: {a: [1e3]}\n"))
	f.Add([]byte("steps:\n- {name: a, items: {from: 1, to: 3}, shell: x, backoff: 1s, needs: [b]}\n- {name: b, external: true, env: {A: b}}\n"))
	f.Add([]byte(`{"steps": [{"name": "a", "items": ["\ud83d\ude00", 1e400], "external": true, "input": null}]}`))
	f.Add([]byte("steps: [{name: a, items: &x [1], input: *x, shell: y}]"))
	f.Add([]byte("steps: [{name: a, input: {<<: {b: c}, ? [x] : y}, shell: y}]"))
	f.Add([]byte("steps: [{name: a, items: [!!binary aGk=, !x y, .inf, 1_000], shell: y}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "file") {
			t.Skip() // it would read what there happens to be
		}
		a, err := ReadRun("f", data)
		if err != nil {
			if p, ok := err.(*Problems); !ok || len(p.Lines) == 0 {
				t.Fatalf("error %v", err)
			}
			return
		}
		if a.Steps == nil {
			return
		}
		g, err := step.NewGraph(a.Steps)
		if err != nil || g.Total() != a.Spec.Steps {
			t.Fatalf("%+v was taken: %v", a.Steps, err)
		}
	})
}
