package step

import (
	"encoding/json"
	"strings"
	"testing"
)

var someAbout = About{RunID: "r1", Name: "nightly", Tags: map[string]string{"env": "prod"}, Labels: map[string]string{"ticket": "4711"}}

func TestWhatTemplatesWrite(t *testing.T) {
	const object = `{"day": "monday", "n": 7, "x": 0.0, "big": 12345678901234567890123, "list": [], "no": null, "yes": true, "deep": {"a<b": "c&d"}}`
	for _, c := range []struct{ text, item, want string }{
		{"plain", "1", "plain"},
		{"}}", "1", "}}"},
		{"{{.item}}", `"a b"`, "a b"},
		{"{{.item}}", "1.50", "1.50"},
		{"{{.item}}", "false", "false"},
		{"{{.item}}", `"{{.index}}"`, "{{.index}}"}, // what is rendered is not evaluated again
		{"<{{.item.day}}|{{.item.n}}|{{.item.x}}|{{.item.big}}>", object, "<monday|7|0.0|12345678901234567890123>"},
		{"{{json .item.day}} {{json .item.deep}} {{.item.no | json}} {{.item.list | json}}", object, `"monday" {"a<b":"c&d"} null []`},
		{"{{json (json .item.day)}}", object, ""},
		{"{{if .item.x}}a{{else}}b{{end}}{{if .item.n}}c{{end}}{{if .item.list}}d{{end}}{{if .item.no}}e{{end}}{{if .item.yes}}f{{end}}{{if .item.deep}}g{{end}}", object, "bcfg"},
		{"{{if .item.no}}a{{else if .item.yes}}b{{else}}c{{end}}", object, "b"},
		{"{{if .item.no}}{{.item.nothing}}{{end}}ok", object, "ok"},
		{"{{.index}} {{.step}} {{.run.id}} {{.run.name}} {{.run.tags.env}} {{.run.labels.ticket}}", "1", "4 a r1 nightly prod 4711"},
		{`{{"{{"}}{{"}}"}}`, "1", "{{}}"},
		{"a {{- /* not written */ -}} b", "1", "ab"},
		{"{{json .run.tags}}", "1", `{"env":"prod"}`},
	} {
		items := itemsOf("1", "1", "1", "1", c.item)
		g, err := NewGraph([]Spec{{Name: "a", Items: items, Command: []string{"echo", c.text}}})
		if c.want == "" {
			if err == nil {
				t.Errorf("%s was taken", c.text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if w, err := g.Work(0, 4, someAbout); err != nil || w.Command[1] != c.want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", c.text, w.Command, err, c.want)
		}
	}
}

const literal = `; to write {{ itself, write {{"{{"}}`

func TestTheErrorOfATemplateSaysHowToWriteTwoBraces(t *testing.T) {
	// What docker, Jinja and GitHub write.
	for _, text := range []string{"{{.Names}}", "{{ secrets.TOKEN }}", "${{ github.sha }}", "{{", "{{}}", "{{ x | upper }}", "{{range .}}"} {
		s := Spec{Name: "a", Command: []string{"docker", text}}
		err := s.Validate(0)
		if err == nil || !strings.HasSuffix(err.Error(), literal) {
			t.Errorf("%s: %v", text, err)
		}
		s.Command[1] = strings.Replace(text, "{{", `{{"{{"}}`, 1)
		g, err := NewGraph([]Spec{s})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if w, err := g.Work(0, 0, someAbout); err != nil || w.Command[1] != text {
			t.Errorf("%s becomes %q, %v", text, w.Command, err)
		}
	}
}

func TestTemplatesThatAreRefusedWithTheStep(t *testing.T) {
	const allowed = ": use fields as in {{.item.day}}, {{json .item}}, and {{if .item.day}} with {{else}} and {{end}}"
	for text, want := range map[string]string{
		"{{range .item}}x{{end}}":              "the template can't have {{range .item}}x{{end}}" + allowed,
		"{{with .item}}x{{end}}":               "",
		"{{.item}}{{break}}":                   "",
		`{{define "x"}}y{{end}}`:               "the template can't define others" + allowed,
		`{{define "template"}}y{{end}}`:        "",
		`{{block "x" .}}y{{end}}`:              "",
		`{{template "x"}}`:                     "",
		"{{$x := .item}}":                      "",
		"{{$.item}}":                           "the template can't have $.item" + allowed,
		"{{if $x := .item}}{{end}}":            "",
		"{{.}}":                                "the template can't have ." + allowed,
		"{{json .}}":                           "",
		"{{5}}":                                "",
		"{{(.item).day}}":                      "",
		"{{json (json .item)}}":                "",
		"{{json}}":                             "the template calls json in json with another number of values than one" + allowed,
		"{{json .item .index}}":                "",
		"{{.item | json .index}}":              "",
		"{{.item | .index}}":                   "",
		"{{.item .index}}":                     "",
		"{{printf `%d` 1}}":                    `the template can't be read: 1: function "printf" not defined`,
		"{{text .item}}":                       "",
		"{{truth .item}}":                      "",
		"{{len .item}}":                        "",
		"a\n{{.item":                           "the template can't be read: 2: unclosed action",
		"{{if .item}}":                         "",
		"{{end}}":                              "",
		"{{.itme}}":                            "the template has no .itme: use .index, .item, .run, .step",
		"{{if .item}}{{else}}{{.itme}}{{end}}": "",
		"{{if .itme}}{{end}}":                  "",
		"{{.run.owner}}":                       "the template has no .run.owner: allowed behind .run are .id, .labels, .name, .tags",
		"{{.index.x}}":                         "the template asks for something in .index, which is one value",
		"{{.step.name}}":                       "",
	} {
		for field, s := range map[string]Spec{
			"steps.a.command[1]": {Command: []string{"x", text}},
			"steps.a.shell":      {Shell: text},
			"steps.a.env.X":      {External: true, Env: map[string]string{"X": text}},
			"steps.a.input.x[0]": {External: true, Input: json.RawMessage(`{"x":[` + string(mustJSON(t, text)) + `]}`)},
		} {
			s.Name, s.Items = "a", itemsOf("1")
			message := want
			if want != "" {
				message += literal
			}
			wantField(t, s.Validate(0), field, message)
		}
	}
	s := Spec{Name: "a", Command: []string{"x", "{{.item}}"}}
	wantField(t, s.Validate(0), "steps.a.command[1]", "the template has no .item: the step has no items"+literal)
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestItemsForWhichATemplateCantBeRendered(t *testing.T) {
	long, err := json.Marshal(strings.Repeat("x", MaxWork/2))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, item, field, message string }{
		{"{{.item.day}}", `{"dya": 1}`, "command[1]", `instance 1: {{.item.day}}: .item has no field 'day': it has dya`},
		{"{{.item.day}}", `"monday"`, "command[1]", `instance 1: {{.item.day}}: .item is the single value "monday", and has no field 'day'`},
		{"{{.item.day}}", `17`, "command[1]", `instance 1: {{.item.day}}: .item is the single value 17, and has no field 'day'`},
		{"{{.item.day}}", `null`, "command[1]", `instance 1: {{.item.day}}: .item is null, and has no field 'day'`},
		{"{{.item.day}}", `[1]`, "command[1]", `instance 1: {{.item.day}}: .item is a list, and has no field 'day'`},
		{"{{.item.day}}", `{}`, "command[1]", `instance 1: {{.item.day}}: .item has no field 'day': it is empty`},
		{"{{.item.day.of.week}}", `{"day": {"of": 1}}`, "command[1]", `instance 1: {{.item.day.of.week}}: .item.day.of is the single value 1, and has no field 'week'`},
		{"{{if .item.day}}x{{end}}", `{"dya": 1}`, "command[1]", `instance 1: {{.item.day}}: .item has no field 'day': it has dya`},
		{"{{json .item.day}}", `{"dya": 1}`, "command[1]", `instance 1: {{.item.day}}: .item has no field 'day': it has dya`},
		{"{{.item}}", `{"day": 1}`, "command[1]", `instance 1: {{.item}}: it is more than one value: json writes it, or one of its fields is meant`},
		{"a {{.index}} b {{.item.day}}, {{.item}}", `{"day": 1}`, "command[1]", `instance 1: {{.item}}: it is more than one value: json writes it, or one of its fields is meant`},
		{"{{if .item}}{{else}}{{.item}}{{end}}{{if .item}}{{.item.day}}{{end}}", `{"day": [1]}`, "command[1]", `instance 1: {{.item.day}}: it is more than one value: json writes it, or one of its fields is meant`},
		{"{{.item}}", `[1]`, "command[1]", `instance 1: {{.item}}: it is more than one value: json writes it, or one of its fields is meant`},
		{"{{.item}}", `null`, "command[1]", `instance 1: {{.item}}: it is null: only json writes that`},
		{"{{.run.tags.team}}", `1`, "command[1]", `instance 1: {{.run.tags.team}}: .run.tags has no field 'team': it has env`},
		{"{{.item}}", `"a\u0000b"`, "command[1]", "instance 1: it contains a NUL byte"},
		{"{{.item}}{{.item}}{{.item}}", string(long), "", "instance 1: command, env and input are longer than 65536 bytes as they are rendered"},
		{"{{.item}}{{.item}}{{if .item}}{{end}}", string(long), "", ""},
	} {
		g := mustGraph(t, Spec{Name: "a", Items: itemsOf(`{"day": "x"}`, c.item), Command: []string{"echo", c.text}})
		_, err := g.Work(0, 1, someAbout)
		if c.field != "" {
			c.field = "." + c.field
		}
		wantField(t, err, "steps.a"+c.field, c.message)
	}
	g := mustGraph(t, Spec{Name: "a", Items: itemsOf(`""`), Command: []string{"{{.item}}"}})
	_, err = g.Work(0, 0, someAbout)
	wantField(t, err, "steps.a", "instance 0: command[0]: it is empty, and must name a program")
}
