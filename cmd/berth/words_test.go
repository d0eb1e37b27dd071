package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/pool"
)

func TestPage_LinesUpColumnsAndShowsNoControlCharacters(t *testing.T) {
	var b bytes.Buffer
	out := &page{out: &b}
	out.table("nothing", []string{"POOL", "RUN", "N"}, [][]string{
		{"a", "evil\x1b[2J\trun\n", "1"},
		{"longer-name", "", "22"},
	})
	want := "" +
		"POOL         RUN            N\n" +
		"a            evil?[2J?run?  1\n" +
		"longer-name  -              22\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	b.Reset()
	out.table("nothing", []string{"POOL"}, nil)
	if b.String() != "nothing\n" {
		t.Errorf("an empty table is %q", b.String())
	}
}

func TestPrinter_WritesYAMLWithTheNamesAndTheOrderOfJSON(t *testing.T) {
	value := struct {
		Zeta  string         `json:"zeta"`
		Alpha []int          `json:"alpha"`
		None  []string       `json:"none"`
		Pools map[string]int `json:"pools"`
		Text  string         `json:"text"`
		Odd   string         `json:"odd"`
	}{"5m0s", []int{1, 2}, []string{}, map[string]int{"b": 1, "a": 2}, "no", "a: <b> & \"c\"\n#d"}
	var b bytes.Buffer
	if err := (&printer{format: "yaml", out: &b}).print(value, nil); err != nil {
		t.Fatal(err)
	}
	want := "zeta: 5m0s\nalpha:\n  - 1\n  - 2\nnone: []\npools:\n  a: 2\n  b: 1\ntext: \"no\"\nodd: |-\n  a: <b> & \"c\"\n  #d\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestWaitText_SaysWhyAndWhere(t *testing.T) {
	full := pool.Reason{
		Text: "pool 'db' full (3/3 slots)", Position: 2, Waiting: 5, Pools: []pool.Shortage{{Pool: "db"}},
	}
	if got, want := waitText(full), "waiting for pool 'db' full (3/3 slots), position 2 of 5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	paused := pool.Reason{Text: "pool 'db' is paused", Position: 1, Waiting: 1, Pools: []pool.Shortage{{Pool: "db"}}}
	if got, want := waitText(paused), "waiting: pool 'db' is paused, position 1 of 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	turn := pool.Reason{Text: "waiting its turn", Position: 1, Waiting: 2}
	if got, want := waitText(turn), "waiting its turn, position 1 of 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// commandsOf returns a command and those below it that are shown.
func commandsOf(c *cli.Command) []*cli.Command {
	all := []*cli.Command{c}
	for _, sub := range c.Subcommands {
		if !sub.Hidden {
			all = append(all, commandsOf(sub)...)
		}
	}
	return all
}

func TestHelp_FitsIntoHelpWidth(t *testing.T) {
	for _, c := range commandsOf(rootOf(newApp(io.Discard, io.Discard))) {
		var b bytes.Buffer
		writeHelp(&b, c)
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth {
				t.Errorf("%s: a line has %d columns, more than %d: %s", c.HelpName, n, helpWidth, line)
			}
		}
	}
}

func TestNames_AreIDsOrNamesOfRecords(t *testing.T) {
	for _, tc := range []struct {
		value any
		want  string
	}{
		{inspect.ListOf([]string{}, func(string) inspect.Pool { return inspect.Pool{} }), ""},
		{inspect.List[inspect.Pool]{Items: []inspect.Pool{{Name: "a"}, {Name: "b"}}}, "a\nb\n"},
		{inspect.Run{ID: "r", Name: "nightly"}, "r\n"},
		{inspect.Claim{ID: "c", Host: "h"}, "c\n"},
		{inspect.Host{Host: "h", Instance: "worker"}, "h/worker\n"},
		{inspect.StepInstance{RunID: "r", Step: "s", Index: 3}, "s[3]\n"},
		{deletedRecord{Name: "a"}, "a\n"},
	} {
		var b bytes.Buffer
		if err := (&printer{format: "name", out: &b}).print(tc.value, nil); err != nil || b.String() != tc.want {
			t.Errorf("%+v: %q, %v, want %q", tc.value, b.String(), err, tc.want)
		}
	}
}

func TestTable_HeadersCanBeBoldOrLeftOut(t *testing.T) {
	for want, p := range map[string]page{
		"A  B\n1  22\n":               {},
		"1  22\n":                     {noHeaders: true, bold: true},
		"\x1b[1mA  B\x1b[0m\n1  22\n": {bold: true},
	} {
		var b bytes.Buffer
		p.out = &b
		p.table("nothing", []string{"A", "B"}, [][]string{{"1", "22"}})
		if b.String() != want {
			t.Errorf("got %q, want %q", b.String(), want)
		}
	}
}

// private are words that users of berth would have to learn first, as they are written in
// plain words.
var private = regexp.MustCompile(`(?i)\b(anew|asker|askers|at once more|beside|board|deed|door|doors|farewell|` +
	`gather|gathers|hand-over|handover|heard|in doubt|in line|its line|leftover|looks?|looked|looking|nobody|parting|` +
	`room|somebody|stands?|standing|stood|strange|stretch|tell|tells|tidings|told|trust|trusted|whoever|` +
	`who looks|ask(s|ed)? back|take(s|n)? back|given back|give(s)? back|is no [a-z]+:|not to be had|of no use|besides|` +
	`has no use|left over)\b`)

func TestWords_ArePlainInMessagesAndHelp(t *testing.T) {
	for _, dir := range []string{".", "../../config", "../../internal/problem", "../../internal/manifest"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			files := token.NewFileSet()
			f, err := parser.ParseFile(files, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					for line := range strings.Lines(lit.Value) {
						if word := private.FindString(line); word != "" {
							t.Errorf("%s: %q in %s", files.Position(lit.Pos()), word, strings.TrimSpace(line))
						}
					}
				}
				return true
			})
		}
	}
}
