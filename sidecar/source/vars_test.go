package source

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
)

func pattern(text string) *regexp.Regexp {
	p, err := NewPattern(text)
	if err != nil {
		panic(err)
	}
	return p
}

func testVars() map[string]Var {
	return map[string]Var{
		"env":    {Default: encode("dev"), Values: []string{"dev", "prod"}},
		"tenant": {Required: true, Pattern: pattern("a|[a-z]+[0-9]|")},
		"size":   {Values: []string{"1", "2.50", "true"}},
		"data":   {},
		"more":   {Default: json.RawMessage(`{"a": ["<b>"]}`)},
	}
}

func TestAnItemHasTheVarsThatAreDeclared(t *testing.T) {
	const tenant = `"id":"a","tenant":"a1"`
	for _, c := range []struct{ item, want string }{
		{`{"id": "a", "tenant": "ab1"}`, `{"data":null,"env":"dev","id":"a","more":{"a":["<b>"]},"size":null,"tenant":"ab1"}`},
		{`{"tenant": "", "id": 12, "env": "prod", "size": "2.50", "data": [1.50], "more": false}`, `{"data":[1.50],"env":"prod","id":12,"more":false,"size":"2.50","tenant":""}`},
		{`{` + tenant + `,"env":null,"size":2.50}`, `{"data":null,"env":"dev","id":"a","more":{"a":["<b>"]},"size":2.50,"tenant":"a1"}`},
		{`{` + tenant + `,"env":"no","env":"prod","size":true}`, `{"data":null,"env":"prod","id":"a","more":{"a":["<b>"]},"size":true,"tenant":"a1"}`},
		{`{` + tenant + `,"Env":"prod"}`, `item: it has "Env", which source "inbox" does not declare: use "id", "data", "env", "more", "size", "tenant"`},
		{`{"id":"a","zzz":1,"b":1}`, `item: it has "b", which source "inbox" does not declare: use "id", "data", "env", "more", "size", "tenant"`},
		{`{"id":"a"}`, `item.tenant: it is missing, and source "inbox" requires it: allowed is a string, a number, true or false that matches a|[a-z]+[0-9]|`},
		{`{"id":"a","tenant":null}`, `item.tenant: it is missing, and source "inbox" requires it: allowed is a string, a number, true or false that matches a|[a-z]+[0-9]|`},
		{`{"id":"a","tenant":"a1 "}`, `item.tenant: "a1 " is not allowed by source "inbox": allowed is a string, a number, true or false that matches a|[a-z]+[0-9]|`},
		{`{"id":"a","tenant":["a1"]}`, `item.tenant: ["a1"] is not allowed by source "inbox": allowed is a string, a number, true or false that matches a|[a-z]+[0-9]|`},
		{`{` + tenant + `,"env":"prd"}`, `item.env: "prd" is not allowed by source "inbox": allowed are "dev", "prod"`},
		{`{` + tenant + `,"env":{"dev":1}}`, `item.env: {"dev":1} is not allowed by source "inbox": allowed are "dev", "prod"`},
		{`{` + tenant + `,"size":2.5}`, `item.size: 2.5 is not allowed by source "inbox": allowed are "1", "2.50", "true"`},
		{`"a"`, `item.tenant: it is missing, and source "inbox" requires it: allowed is a string, a number, true or false that matches a|[a-z]+[0-9]|`},
		{`{` + tenant + `,"data":"` + strings.Repeat("x", 65500) + `"}`, `item: with the defaults of source "inbox", it is 65579 bytes long: use at most 65536`},
	} {
		s := testSpec()
		s.Vars = testVars()
		got, err := s.withVars(Item{ID: "a", Value: json.RawMessage(c.item)})
		if err != nil {
			if problem.CodeOf(err) != problem.Invalid {
				t.Errorf("%.100s: %v is no fault of the item", c.item, err)
			}
			got = json.RawMessage(err.Error())
		}
		if string(got) != c.want {
			t.Errorf("%.100s:\ngot  %s\nwant %s", c.item, got, c.want)
		}
	}
}

func TestATextHasOnlyAnID(t *testing.T) {
	s := testSpec()
	s.ID, s.Vars = "file", map[string]Var{"env": {Default: encode("dev")}}
	if got, err := s.withVars(Item{ID: "a", Value: encode("a")}); err != nil || string(got) != `{"env":"dev","file":"a"}` {
		t.Errorf("%s, %v", got, err)
	}
	s.Vars = map[string]Var{} // none is declared
	if got, err := s.withVars(Item{ID: "a", Value: encode("a")}); err != nil || string(got) != `{"file":"a"}` {
		t.Errorf("%s, %v", got, err)
	}
	s.Vars = nil
	if got, err := s.withVars(Item{ID: "a", Value: encode("a")}); err != nil || string(got) != `"a"` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestVarsThatCantBeDeclared(t *testing.T) {
	const noName = "cannot be used in templates: use 1 to 63 of A-Z, a-z, 0-9 and '_', the first not a digit"
	long := strings.Repeat("x", 64)
	many := map[string]Var{}
	for i := range maxVars + 1 {
		many[fmt.Sprint("x", i)] = Var{}
	}
	for _, c := range []struct {
		vars           map[string]Var
		field, message string
	}{
		{map[string]Var{"": {}}, "vars.", `"" ` + noName},
		{map[string]Var{"a-b": {}}, "vars.a-b", `"a-b" ` + noName},
		{map[string]Var{"1": {}}, "vars.1", `"1" ` + noName},
		{map[string]Var{"ä": {}}, "vars.ä", `"ä" ` + noName},
		{map[string]Var{long: {}}, "vars." + long, `"` + long + `" ` + noName},
		{map[string]Var{"id": {}}, "vars.id", "it is the id of the item: use another name, or another field as the id"},
		{map[string]Var{"a": {Required: true, Default: encode(1)}}, "vars.a.default", "required and default cannot be used together"},
		{map[string]Var{"a": {Pattern: pattern("x"), Values: []string{"x"}}}, "vars.a.values", "pattern and values cannot be used together"},
		{map[string]Var{"a": {Values: []string{}}}, "vars.a.values", "at least one value is required"},
		{map[string]Var{"a": {Values: []string{"x"}, Default: encode("y")}}, "vars.a.default", `"y" is not allowed by the var itself: allowed are "x"`},
		{map[string]Var{"a": {Pattern: pattern("x"), Default: encode("xx")}}, "vars.a.default", `"xx" is not allowed by the var itself: allowed is a string, a number, true or false that matches x`},
		{map[string]Var{"a": {Default: encode(strings.Repeat("x", 65535))}}, "vars", "an item with all defaults cannot be used: it is 65543 bytes long: use at most 65536"},
		{many, "vars", "101 are too many: use at most 100"},
	} {
		s := testSpec()
		s.Vars = c.vars
		wantField(t, s.Validate(), c.field, c.message)
	}
	for text, want := range map[string]string{
		"a(":                      "it is not an RE2 regular expression: error parsing regexp: missing closing ): `a(`",
		"a)|(b":                   "it is not an RE2 regular expression: error parsing regexp: unexpected ): `a)|(b`",
		strings.Repeat("a", 1025): "it is 1025 bytes long: use at most 1024",
	} {
		if _, err := NewPattern(text); err == nil || err.Error() != want {
			t.Errorf("%.10s: %v", text, err)
		}
	}
	s := testSpec()
	s.Vars = testVars()
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}

// What is refused keeps its place and its dedup record: only items that would become
// runs now are held to what is declared.
func TestVarsHoldUpNeitherOtherItemsNorWhatWasSubmitted(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.specs.Steps[0].Command[1] = "{{json .item}}"
		r.lists(`{"id": "old", "any": 1}`, nil)
		first := r.source("x")
		r.wantRuns("inbox.old")
		first.stop()

		r.specs.Vars = map[string]Var{"env": {Default: encode("dev"), Values: []string{"dev", "prod"}}}
		r.specs.Run.Name = "load for {{.item.env}}"
		r.specs.Steps = []step.Spec{{Name: "load", Command: []string{"load", "{{.item.env}}"}}}
		r.lists(`{"id": "old", "any": 1}`+"\n"+`{"id": "a", "env": "prd"}`+"\n"+`{"id": "b", "evn": "prod"}`+"\nc", nil)
		second := r.source("y")
		r.wantRuns("inbox.old", "inbox.c")
		const why = `"a": item.env: "prd" is not allowed by source "inbox": allowed are "dev", "prod"`
		if l := r.last(); l.Listed != 4 || l.Refused != 2 || l.Error != "" || l.Refusal != "line 2: "+why {
			t.Errorf("%+v", l)
		}
		if n := second.metric("berth_source_items_refused"); n != 2 {
			t.Errorf("%v were counted", n)
		}
		if got := fmt.Sprint(r.marked()); got != "[c old]" {
			t.Errorf("dedup records of %s", got)
		}
		if got, err := r.runs.Get(t.Context(), "inbox.c"); err != nil || got.Spec.Name != "load for dev" {
			t.Errorf("%+v, %v", got, err)
		}
		r.root.Do(func(e *storetest.Etcd) {
			for kv := range e.All(r.keys.Works("inbox.c")) {
				if !strings.Contains(string(kv.Value), `"load","dev"`) {
					t.Errorf("%s", kv.Value)
				}
			}
		})
		// They are not reported again, and an item is corrected at its origin.
		r.forgetRun("inbox.old")
		r.lists(`{"id": "old", "any": 1}`+"\n"+`{"id": "a", "env": "prod"}`, nil)
		r.wait(48 * time.Hour)
		r.wantRuns("inbox.c", "inbox.a")
		if n := len(r.log.Lines(`item.env: `)); n != 1 {
			t.Errorf("it was reported %d times in %q", n, r.log.Lines())
		}
	})
}

// Whatever an item has: it is refused as its own fault, or has what is declared.
func FuzzVars(f *testing.F) {
	for _, seed := range []string{
		`"a"`, `{"id": "a", "tenant": "a1"}`, `{"id": 1, "tenant": "", "size": 2.50, "env": null}`,
		`{"id": "a", "tenant": "a", "tenant": {}}`, `{"id": "a", "tenant": "\u0061", "data": "\ud800"}`, `{"tenant": 1e400, "id": "a"}`, `{"": 0, "id": "a"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		s := testSpec()
		items, _, err := s.Decode(output)
		if err != nil {
			return
		}
		s.Vars = testVars()
		for _, it := range items {
			sub, err := s.submission(it)
			if err != nil {
				if problem.CodeOf(err) != problem.Invalid {
					t.Fatal(err)
				}
				continue
			}
			value, err := s.withVars(it)
			var fields map[string]json.RawMessage
			if err != nil || json.Unmarshal(value, &fields) != nil || sub.id != s.RunID(it.ID) || len(fields) != len(s.Vars)+1 {
				t.Fatalf("%s, %v", value, err)
			}
			for name, v := range s.Vars {
				if value := fields[name]; !given(value) && (v.Required || v.Default != nil) || given(value) && !v.allows(value) {
					t.Fatalf("%s is %s", name, value)
				}
			}
		}
	})
}
