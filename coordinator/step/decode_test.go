package step

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// wantCorrupt checks that a refusal names the key.
func wantCorrupt(t *testing.T, key string, err error) {
	t.Helper()
	var c *store.CorruptError
	if !errors.As(err, &c) || c.Key != key {
		t.Errorf("key %q: %v", key, err)
	}
}

func FuzzDecodeGraph(f *testing.F) {
	f.Add([]byte(`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":"fail"},{"name":"b","needs":[0],"count":2,"queue":"q","on_failure":"finish","pools":{"db":1},"task":"t","timeout":"1m0s"}]}`))
	f.Add([]byte(`{"v":1,"steps":[{"name":"a","needs":[0],"count":1,"queue":"q","on_failure":"fail"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := DecodeGraph("k", data)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		for number, s := range g.Shapes() {
			for _, n := range s.Needs {
				if n < 0 || n >= number {
					t.Errorf("step %d needs %d", number, n)
				}
			}
		}
		again, err := DecodeGraph("k", g.Encode())
		if err != nil || again.Total() != g.Total() {
			t.Errorf("does not read back: %v", err)
		}
	})
}

func FuzzDecodeWork(f *testing.F) {
	f.Add([]byte(`{"v":1,"command":["a","b"],"env":{"A":"b"},"input":{"x":[1]},"timeout":"1s"}`))
	f.Add([]byte(`{"v":1,"external":true,"input":null}`))
	f.Add([]byte(`{"v":1,"external":true,"command":["a"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := DecodeWork("k", data)
		if err != nil {
			wantCorrupt(t, "k", err)
			return
		}
		again, err := DecodeWork("k", w.Encode())
		if err != nil || string(again.Encode()) != string(w.Encode()) {
			t.Errorf("reads back as %+v, %v", again, err)
		}
	})
}

func FuzzDecodeSpec(f *testing.F) {
	f.Add([]byte(`{"name":"a","items":{"from":1,"to":20,"by":2},"command":["x","{{.item}}"],"input":{"a":"{{json .item}}"}}`))
	f.Add([]byte(`{"name":"a","items":[1,"x",null,{"a":[true]}],"shell":"{{if .item}}a{{else}}b{{end}}","timeout":"1m"}`))
	f.Add([]byte(`{"name":"a","items":null,"external":true,"input":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Spec
		if json.Unmarshal(data, &s) != nil {
			return
		}
		g, err := NewGraph([]Spec{s})
		if err != nil {
			if problem.CodeOf(err) != problem.Invalid {
				t.Error(err)
			}
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var read Spec
		if err := json.Unmarshal(again, &read); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		h, err := NewGraph([]Spec{read})
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if d := cmp.Diff(g.Shapes(), h.Shapes()); d != "" {
			t.Error(d)
		}
		last := g.Total() - 1
		a, errA := g.Work(0, last, About{RunID: "r"})
		b, errB := h.Work(0, last, About{RunID: "r"})
		if (errA == nil) != (errB == nil) || errA == nil && string(a.Encode()) != string(b.Encode()) {
			t.Errorf("%s, %v\n%s, %v", a.Encode(), errA, b.Encode(), errB)
		}
	})
}

// Whatever the template and the item: it is refused, or what it makes is bounded, the
// same each time, and can be read back.
func FuzzTemplate(f *testing.F) {
	for _, text := range []string{
		"plain", "{{.item}}", "{{.item.day}}", "{{json .item}}", "{{.item | json}}", "{{if .item}}a{{else if .index}}b{{else}}c{{end}}",
		"{{range .item}}{{.}}{{end}}", `{{define "a"}}x{{end}}{{template "a"}}`, "{{with .item}}{{.}}{{end}}", "{{$x := .item}}{{$x}}",
		"{{printf \"%1000000000d\" 1}}", "{{.run.tags.env}}", "{{- /* c */ -}}", `{{"{{"}}`, "{{(json .item)}}", `{{block "x" .}}{{end}}`,
	} {
		f.Add(text, `{"day": "monday"}`)
		f.Add(text, `"x"`)
		f.Add(text, `null`)
	}
	about := About{RunID: "r", Name: "n", Tags: map[string]string{"env": "prod"}}
	f.Fuzz(func(t *testing.T, text, item string) {
		input, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		g, err := NewGraph([]Spec{{Name: "a", Items: itemsOf(item), Command: []string{"x", text}, Input: input}})
		if err != nil {
			if problem.CodeOf(err) != problem.Invalid {
				t.Error(err)
			}
			return
		}
		w, err := g.Work(0, 0, about)
		if err != nil {
			if problem.CodeOf(err) != problem.Invalid {
				t.Error(err)
			}
			return
		}
		if len(w.Encode()) > MaxWork+100 {
			t.Errorf("%d bytes", len(w.Encode()))
		}
		if again, err := g.Work(0, 0, about); err != nil || string(again.Encode()) != string(w.Encode()) {
			t.Errorf("the second time %s, %v", again.Encode(), err)
		}
		if _, err := DecodeWork("k", w.Encode()); err != nil {
			t.Error(err)
		}
	})
}
