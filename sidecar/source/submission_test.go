package source

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

func wantField(t *testing.T, err error, field, message string) {
	t.Helper()
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != problem.Invalid || p.Field != field || message != "" && p.Message != message {
		t.Errorf("%v\nwant %s: %s", err, field, message)
	}
}

func TestSpecsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		field, message string
		change         func(*Spec)
	}{
		{"name", `"" is not a source name: use 1 to 40 of a-z, 0-9, '_' and '-', the first a letter or digit`, func(s *Spec) { s.Name = "" }},
		{"name", "", func(s *Spec) { s.Name = "a.b" }},
		{"name", "", func(s *Spec) { s.Name = "-a" }},
		{"name", "", func(s *Spec) { s.Name = "A" }},
		{"name", "", func(s *Spec) { s.Name = strings.Repeat("a", 41) }},
		{"list", "list or shell is required", func(s *Spec) { s.List = nil }},
		{"shell", "list and shell cannot be used together", func(s *Spec) { s.Shell = "ls" }},
		{"list[0]", "it is empty: it must name a program", func(s *Spec) { s.List = []string{""} }},
		{"list", "it contains a NUL byte", func(s *Spec) { s.List = []string{"ls", "\x00"} }},
		{"id", "it is empty: it must name the field of an item that contains its id", func(s *Spec) { s.ID = "" }},
		{"interval", "999ms is out of range: use 1s to 24h0m0s", func(s *Spec) { s.Interval = 999 * time.Millisecond }},
		{"timeout", "0s is out of range: use 1s to 1h0m0s", func(s *Spec) { s.Timeout = 0 }},
		{"forget", "1s is out of range: use 1m0s to 8760h0m0s", func(s *Spec) { s.Forget = time.Second }},
		{"run.labels.item", "it is set by the source: use another name", func(s *Spec) { s.Run.Labels = map[string]string{"item": "x"} }},
		{"run.priority", "1001 is out of range: use -1000 to 1000", func(s *Spec) { s.Run.Priority = 1001 }},
		{"run.name", "the template has no .itme: use .index, .item, .run, .step; to write {{ itself, write {{\"{{\"}}", func(s *Spec) { s.Run.Name = "{{.itme}}" }},
		{"run.tags.env", "", func(s *Spec) { s.Run.Tags = map[string]string{"env": "{{.item"} }},
		{"run.steps", "there is none: at least one is needed", func(s *Spec) { s.Steps = []step.Spec{} }},
		{"run.steps.a.shell", "", func(s *Spec) { s.Steps = []step.Spec{{Name: "a", Shell: "{{.itme}}"}} }},
		{"run.steps.a.env.BERTH_SOURCE", "", func(s *Spec) {
			s.Steps = []step.Spec{{Name: "a", Shell: "x", Env: map[string]string{"BERTH_SOURCE": "x"}}}
		}},
		{"run.pools", "a run with steps cannot hold slots itself: its steps have pools", func(s *Spec) {
			s.Steps, s.Run.Pools = []step.Spec{{Name: "a", Shell: "x"}}, map[string]int{"db": 1}
		}},
	} {
		s := testSpec()
		c.change(&s)
		wantField(t, s.Validate(), c.field, c.message)
	}
	s := testSpec()
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}

func TestTheRunOfAnItem(t *testing.T) {
	s := testSpec()
	s.Run = run.Spec{
		Name: "load {{.item.day}}", Priority: 3, Owner: "{{not a template}}",
		Tags: map[string]string{"tenant": "{{.item.tenant}}", "env": "prod"}, Labels: map[string]string{"all": "{{json .item.n}}"},
	}
	s.Steps = []step.Spec{
		{Name: "load", Command: []string{"load", "{{.item.day}}"}, Env: map[string]string{"ID": "{{.run.labels.item}}"}},
		{Name: "each", Needs: []string{"load"}, Items: &step.Items{Range: &step.Range{From: 1, To: 2, By: 1}}, Shell: "echo {{.item}} {{.run.labels.item}} {{.run.tags.tenant}}"},
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	sub, err := s.submission(Item{ID: "a", Value: json.RawMessage(`{"id": "a", "day": "mon", "tenant": "x", "n": [1.50]}`)})
	if err != nil {
		t.Fatal(err)
	}
	r := sub.spec
	if sub.id != "inbox.a" || r.Name != "load mon" || r.Priority != 3 || r.Owner != "{{not a template}}" ||
		!maps.Equal(r.Tags, map[string]string{"tenant": "x", "env": "prod"}) ||
		!maps.Equal(r.Labels, map[string]string{"all": "[1.50]", "source": "inbox", "item": "a"}) {
		t.Errorf("%s %+v", sub.id, r)
	}
	about := step.About{RunID: sub.id, Name: r.Name, Tags: r.Tags, Labels: r.Labels}
	load, err := sub.graph.Work(0, 0, about)
	if err != nil || load.Command[1] != "mon" || load.Env["ID"] != "a" || string(load.Input) != `{"day":"mon","id":"a","n":[1.50],"tenant":"x"}` {
		t.Errorf("%+v, %v", load, err)
	}
	each, err := sub.graph.Work(1, 1, about)
	if err != nil || each.Command[2] != "echo 2 a x" || string(each.Input) != "2" {
		t.Errorf("%+v, %v", each, err)
	}
	if len(s.Run.Labels) != 1 || s.Steps[0].Items != nil {
		t.Error("the source was changed")
	}
	_, err = s.submission(Item{ID: "b", Value: json.RawMessage(`{"tenant": "x", "n": 1}`)})
	wantField(t, err, "name", `{{.item.day}}: .item has no field 'day': it has n, tenant`)
}

func TestARunWithoutSteps(t *testing.T) {
	s := testSpec()
	sub, err := s.submission(Item{ID: "a", Value: encode("a")})
	if err != nil || sub.graph != nil || !maps.Equal(sub.spec.Labels, map[string]string{"source": "inbox", "item": "a"}) {
		t.Errorf("%+v, %v", sub, err)
	}
}
