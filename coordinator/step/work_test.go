package step

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/problem"
)

func TestTheWorkOfAnInstance(t *testing.T) {
	g := mustGraph(t,
		Spec{
			Name: "load", Needs: []string{"list"}, Items: itemsOf(`{"day":"mon","n":1}`, `{"day":"<tue>","n":2}`),
			Command: []string{"./load.sh", "{{.item.day}}", "-{{.index}}"}, Env: map[string]string{"DAY": "{{.item.day}}", "RUN": "{{.run.id}}"},
			Input: json.RawMessage(`{"{{day}}": "{{.item.day}}", "all": [1.50, null, true, {"n": "{{.item.n}}"}]}`), Timeout: Duration(time.Minute),
		},
		Spec{Name: "list", Shell: `ls "$DIR"`, Env: map[string]string{"DIR": "/data"}},
		Spec{Name: "numbers", Items: &Items{Range: &Range{5, 7, 1}}, External: true},
		Spec{Name: "nothing", External: true},
		Spec{Name: "null", Items: itemsOf("1"), External: true, Input: json.RawMessage("null")},
	)
	for _, c := range []struct {
		step  string
		index int
		want  Work
	}{
		{"list", 0, Work{Command: []string{"/bin/sh", "-c", `ls "$DIR"`}, Env: map[string]string{"DIR": "/data"}}},
		{"load", 1, Work{
			Command: []string{"./load.sh", "<tue>", "-1"}, Env: map[string]string{"DAY": "<tue>", "RUN": "r1"},
			Input: json.RawMessage(`{"all":[1.50,null,true,{"n":"2"}],"{{day}}":"<tue>"}`), Timeout: Duration(time.Minute),
		}},
		{"numbers", 2, Work{External: true, Input: json.RawMessage("7")}}, // the item is the input
		{"nothing", 0, Work{External: true}},
		{"null", 0, Work{External: true, Input: json.RawMessage("null")}},
	} {
		w, err := g.Work(g.Number(c.step), c.index, someAbout)
		if d := cmp.Diff(c.want, w); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.step, err, d)
		}
		read, err := DecodeWork("k", w.Encode())
		if err != nil || string(read.Encode()) != string(w.Encode()) {
			t.Errorf("%s reads back as %+v, %v", c.step, read, err)
		}
	}
}

func TestWorkThatThereIsNot(t *testing.T) {
	g := mustGraph(t, specsOf([]string{"a"})...)
	read, err := DecodeGraph("k", g.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		g             *Graph
		number, index int
	}{{read, 0, 0}, {g, 1, 0}, {g, -1, 0}, {g, 0, 1}, {g, 0, -1}} {
		if _, err := c.g.Work(c.number, c.index, someAbout); problem.CodeOf(err) != problem.Internal {
			t.Errorf("%d, %d: %v", c.number, c.index, err)
		}
	}
}

// Escapes count: what is written to etcd is bounded, not what was meant.
func TestWorkIsBoundedAsItIsWritten(t *testing.T) {
	item, err := json.Marshal(string(make([]byte, 8000)))
	if err != nil {
		t.Fatal(err)
	}
	g := mustGraph(t, Spec{Name: "a", Items: itemsOf(string(item)), External: true, Input: json.RawMessage(`["{{.item}}", "{{.item}}"]`)})
	_, err = g.Work(0, 0, someAbout)
	wantField(t, err, "steps.a", "instance 0: its command, env and input are 96033 bytes long as JSON: use at most 65536")
}

func TestWorkThatCantBeRead(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `{"v":1}`, `{"v":2,"external":true}`, `{"v":1,"external":true,"more":1}`, `{"v":1,"external":true,"command":["a"]}`,
		`{"v":1,"command":[]}`, `{"v":1,"command":[""]}`, `{"v":1,"command":["a\u0000"]}`, `{"v":1,"command":["a"],"env":{"A=":"x"}}`,
		`{"v":1,"command":["a"],"env":{"A":"\u0000"}}`, `{"v":1,"command":["a"],"timeout":"-1s"}`, `{"v":1,"command":["a"],"timeout":1}`,
	} {
		_, err := DecodeWork("k", []byte(text))
		wantCorrupt(t, "k", err)
	}
}

// Rendering depends on nothing but what it is given, and changes nothing of it.
func TestRenderingTwiceGivesTheSame(t *testing.T) {
	parts := []string{"x", " ", "{{.item.a}}", "{{json .item}}", "{{json .item.b}}", "{{.index}}", "{{.run.id}}", "{{if .item.b}}yes{{else}}no{{end}}", "{{json .run.tags}}"}
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) (s string) {
			for _, p := range rapid.SliceOfN(rapid.SampledFrom(parts), 1, 6).Draw(t, name) {
				s += p
			}
			return s
		}
		spec := Spec{Name: "a", Items: &Items{}, Command: []string{"echo", text("argument")}, Env: map[string]string{"A": text("env")}}
		input, err := json.Marshal(map[string]any{"x": text("input"), "y": []any{text("more"), 1}})
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "has input") {
			spec.Input = input
		}
		for range rapid.IntRange(1, 5).Draw(t, "items") {
			item := map[string]any{
				"a": rapid.StringMatching(`[a-z<>&"\\ü]{0,5}`).Draw(t, "a"),
				"b": rapid.SampledFrom([]any{nil, 0, 1.5, "", "x", []any{}, map[string]any{"c": 1, "d": nil}}).Draw(t, "b"),
			}
			data, err := json.Marshal(item)
			if err != nil {
				t.Fatal(err)
			}
			spec.Items.List = append(spec.Items.List, data)
		}
		before := fmt.Sprintf("%+v %s", spec, spec.Items.List)
		all := func() (all []string) {
			g, err := NewGraph([]Spec{spec})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				for i := range g.Total() {
					w, err := g.Work(0, i, someAbout)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, string(w.Encode()))
				}
			}
			return all
		}
		first, second := all(), all()
		half := len(first) / 2
		if d := cmp.Diff(first, second); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(first[:half], first[half:]); d != "" {
			t.Error(d)
		}
		if after := fmt.Sprintf("%+v %s", spec, spec.Items.List); after != before {
			t.Errorf("the spec was changed:\n%s\n%s", before, after)
		}
	})
}
