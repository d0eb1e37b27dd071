package step

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSpecsThatAreRefused(t *testing.T) {
	pools := map[string]int{}
	for i := range 32 {
		pools[fmt.Sprint("p", i)] = 1
	}
	long := strings.Repeat("x", 64)
	for _, c := range []struct {
		field   string
		message string // not checked if it is empty
		change  func(*Spec)
	}{
		{"steps[3].name", `"" is not a step name: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit`, func(s *Spec) { s.Name = "" }},
		{"steps[3].name", "", func(s *Spec) { s.Name = "A" }},
		{"steps[3].name", "", func(s *Spec) { s.Name = "a/b" }},
		{"steps[3].name", "", func(s *Spec) { s.Name = long }},
		{"steps.a.items", "there is none: at least one is needed", func(s *Spec) { s.Items = &Items{} }},
		{"steps.a.items.by", "", func(s *Spec) { s.Items = &Items{Range: &Range{From: 1, To: 2}} }},
		{"steps.a.concurrency", "-1 is out of range: use 1 to 100000, and 0 (no window)", func(s *Spec) { s.Concurrency = -1 }},
		{"steps.a.concurrency", "", func(s *Spec) { s.Concurrency = MaxItems + 1 }},
		{"steps.a.pools.db", "0 slots can't be claimed: use 1 to 1000000", func(s *Spec) { s.Pools = map[string]int{"db": 0} }},
		{"steps.a.pools", "", func(s *Spec) { s.Pools = map[string]int{"D": 1} }},
		{"steps.a.pools", "33 pools are too many for one instance, with that of its task: use at most 32", func(s *Spec) { s.Pools, s.Task.Name = pools, "t" }},
		{"steps.a.pools.task.t", "it is the pool of task \"t\", which takes its slot already: one of the two has to go", func(s *Spec) { s.Pools, s.Task.Name = map[string]int{"task.t": 1}, "t" }},
		{"steps.a.queue", "", func(s *Spec) { s.Queue = "Q" }},
		{"steps.a.task", "", func(s *Spec) { s.Task.Name = ".t" }},
		{"steps.a.task", fmt.Sprintf(`"%s" is no name of a task: use 1 to 58 of a-z, 0-9, '.', '_' and '-', the first a letter or digit`, long[:59]), func(s *Spec) { s.Task.Name = long[:59] }},
		{"steps.a", "it has nothing to do: it needs one of command, shell and external (true)", func(s *Spec) { s.Command = nil }},
		{"steps.a.shell", "it cannot be used together with command: use one of command, shell and external (true)", func(s *Spec) { s.Shell = "true" }},
		{"steps.a.external", "", func(s *Spec) { s.External = true }},
		{"steps.a.external", "it cannot be used together with shell: use one of command, shell and external (true)", func(s *Spec) { s.Command, s.Shell, s.External = nil, "x", true }},
		{"steps.a.command[0]", "it is empty: it must name a program", func(s *Spec) { s.Command = []string{""} }},
		{"steps.a.command[1]", "it contains a NUL byte", func(s *Spec) { s.Command = []string{"a", "\x00"} }},
		{"steps.a.shell", "it has characters that can't be read: use text in UTF-8", func(s *Spec) { s.Command, s.Shell = nil, "\xff" }},
		{"steps.a", "", func(s *Spec) { s.Command = []string{strings.Repeat("x", MaxWork)} }},
		{"steps.a", "", func(s *Spec) { s.Input = json.RawMessage(`"` + strings.Repeat("x", MaxWork) + `"`) }},
		{"steps.a.env", `"1A" is no name of a variable: use A-Z, a-z, 0-9 and '_', the first no digit`, func(s *Spec) { s.Env = map[string]string{"1A": ""} }},
		{"steps.a.env", "", func(s *Spec) { s.Env = map[string]string{"": ""} }},
		{"steps.a.env", "", func(s *Spec) { s.Env = map[string]string{"A=B": ""} }},
		{"steps.a.env.BERTH_FENCE", "variables that begin with BERTH_ are set by berth: give it another name", func(s *Spec) { s.Env = map[string]string{"A": "", "BERTH_FENCE": "1"} }},
		{"steps.a.env.BERTH_", "", func(s *Spec) { s.Env = map[string]string{"BERTH_": ""} }},
		{"steps.a.env.A", "", func(s *Spec) { s.Env = map[string]string{"A": "\x00"} }},
		{"steps.a.input", "it cannot be read: use any JSON value in UTF-8, nested at most 100 deep: it ends within the value", func(s *Spec) { s.Input = json.RawMessage("{") }},
		{"steps.a.input", "", func(s *Spec) { s.Input = json.RawMessage("\"\xff\"") }},
		{"steps.a.input", "", func(s *Spec) { s.Input = json.RawMessage(nested(101)) }},
		{"steps.a.input.x[1].y", "", func(s *Spec) { s.Input = json.RawMessage(`{"x": ["", {"y": "{{"}]}`) }},
		{"steps.a.retries", "-1 is out of range: use 0 to 100", func(s *Spec) { s.Retries = -1 }},
		{"steps.a.retries", "", func(s *Spec) { s.Retries = 101 }},
		{"steps.a.backoff", "6m0s is out of range: use 0s (at once) to 5m0s", func(s *Spec) { s.Backoff = Duration(6 * time.Minute) }},
		{"steps.a.backoff", "", func(s *Spec) { s.Backoff = -1 }},
		{"steps.a.timeout", "-1s is out of range: use any time up to 8760h0m0s, and 0s (none)", func(s *Spec) { s.Timeout = Duration(-time.Second) }},
		{"steps.a.timeout", "", func(s *Spec) { s.Timeout = Duration(MaxTimeout + 1) }},
		{"steps.a.on_failure", `"ignore" is none: use fail and finish`, func(s *Spec) { s.OnFailure = "ignore" }},
	} {
		s := Spec{Name: "a", Command: []string{"true"}}
		c.change(&s)
		wantField(t, s.Validate(3), c.field, c.message)
	}
}

// nested is JSON that is nested so deep.
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestSpecsAtTheirBounds(t *testing.T) {
	for _, s := range []Spec{
		{Name: strings.Repeat("x", 63), Shell: "true"},
		{Name: "0.a_b-c", External: true, Input: json.RawMessage("null")},
		{Name: "a", Command: []string{"x", ""}, Task: Task{Name: strings.Repeat("x", 58)}, Retries: 100, Concurrency: MaxItems},
		{Name: "a", Command: []string{"x"}, Backoff: Duration(MaxBackoff), Timeout: Duration(MaxTimeout), OnFailure: Finish},
		{Name: "a", Command: []string{"x"}, Input: json.RawMessage(nested(100)), Env: map[string]string{"_a1": "größe"}},
		{Name: "a", Command: []string{"x"}, Input: json.RawMessage(`"\u0000 [\"{["`)},
	} {
		if err := s.Validate(0); err != nil {
			t.Error(err)
		}
	}
}

func TestASpecIsWrittenAsItIsRead(t *testing.T) {
	const text = `{"name":"extract","needs":["list"],"items":{"from":1,"to":20,"by":1},"concurrency":3,` +
		`"pools":{"db":1},"task":"resize","queue":"q","command":["./load.sh","{{.item}}"],"env":{"DAY":"x"},` +
		`"input":{"day":"{{.item}}"},"retries":2,"backoff":"1s","timeout":"10m0s","on_failure":"finish"}`
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(0); err != nil {
		t.Error(err)
	}
	again, err := json.Marshal(s)
	if d := cmp.Diff(text, string(again)); d != "" || err != nil {
		t.Error(d, err)
	}
	err = json.Unmarshal([]byte(`{"timeout":"soon"}`), &s)
	if err == nil || !strings.Contains(err.Error(), `cannot unmarshal "soon" into Go struct field Spec.timeout`) {
		t.Error(err)
	}
}
