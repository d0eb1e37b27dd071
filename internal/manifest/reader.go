package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/strict"
)

// Problems is everything that is wrong with a file.
type Problems struct {
	name string
	// Lines are the problems: "12:5: limit: …", or "12: …" where the column is not known.
	Lines []string
}

// Error lists the problems, one a line.
func (p *Problems) Error() string {
	if len(p.Lines) == 1 {
		return p.name + ":" + p.Lines[0]
	}
	text := fmt.Sprintf("%s: %d problems", p.name, len(p.Lines))
	for _, line := range p.Lines {
		text += "\n  " + p.name + ":" + line
	}
	return text
}

// Unwrap returns a [problem.Invalid] problem.
func (p *Problems) Unwrap() error { return problem.New(problem.Invalid, "the file is not valid") }

// reader walks through a document of YAML or JSON and notes all that is wrong
// with it.
type reader struct {
	name  string // of the file
	lines []string
	// removed explains fields that earlier versions had.
	removed map[string]string
}

// problems returns what was noted.
func (d *reader) problems() error {
	if len(d.lines) == 0 {
		return nil
	}
	return &Problems{name: d.name, Lines: d.lines}
}

func (d *reader) wrong(at *yaml.Node, format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf("%d:%d: ", at.Line, at.Column)+fmt.Sprintf(format, args...))
}

// root returns the top of the document, nil if it can't be read. Needs is what an empty
// file lacks.
func (d *reader) root(data []byte, needs string) *yaml.Node {
	root, err := strict.Document(d.name, data)
	if wrong := (*strict.SyntaxError)(nil); errors.As(err, &wrong) {
		d.lines = append(d.lines, placeOf(wrong)+wrong.What())
	} else if root == nil {
		d.lines = append(d.lines, "1: the file is empty: it needs "+needs)
	}
	return root
}

// placeOf writes "12:5: ", or "12: " where the column is not known.
func placeOf(wrong *strict.SyntaxError) string {
	if wrong.Column == 0 {
		return fmt.Sprintf("%d: ", wrong.Line)
	}
	return fmt.Sprintf("%d:%d: ", wrong.Line, wrong.Column)
}

// instead returns how to write a mapping in place of a node, which is none.
func instead(n *yaml.Node, what string, allowed []string) string {
	name := what[strings.LastIndexByte(what, '.')+1:]
	switch {
	case len(allowed) == 0:
		return ": write \"NAME: VALUE\", with a space behind the colon"
	case n.Kind != yaml.ScalarNode || !slices.Contains(allowed, "limit") || name == what:
		return fmt.Sprintf(": write \"%s: VALUE\", with a space behind the colon", allowed[0])
	}
	limit := "3"
	if _, err := strconv.Atoi(n.Value); err == nil {
		limit = n.Value
	}
	name, _, _ = strings.Cut(name, ":") // a space may be missing
	return fmt.Sprintf(": write \"%s: {limit: %s}\"", name, limit)
}

// mapping calls do for each entry of a mapping whose key is allowed, and given
// once. Without a list all keys are.
func (d *reader) mapping(n *yaml.Node, what string, allowed []string, do func(path string, key, value *yaml.Node)) {
	if n.Kind == yaml.AliasNode {
		d.wrong(n, "%s: aliases are not allowed", what)
		return
	}
	if n.Kind != yaml.MappingNode {
		if strict.IsNull(n) && allowed == nil {
			return // "pools:" with nothing below it: no pools
		}
		d.wrong(n, "%s must be a mapping%s", what, instead(n, what, allowed))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		first, twice := lines[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.wrong(key, "%s: a name must be a text", what)
		case key.ShortTag() == "!!merge":
			d.wrong(key, "%s: merge keys (<<) are not allowed: write out the fields", what)
		case !d.plain(what, key):
		case twice:
			d.wrong(key, "%s: %q is given twice, first on line %d", what, key.Value, first)
		case allowed != nil && d.removed[key.Value] != "":
			d.wrong(key, "%s.%s: %s", what, key.Value, d.removed[key.Value])
		case allowed != nil && !slices.Contains(allowed, key.Value):
			d.wrong(key, "%s: there is no %q, only %s", what, key.Value, strings.Join(allowed, ", "))
		default:
			lines[key.Value] = key.Line
			do(what+"."+key.Value, key, value)
		}
	}
}

// text reads a text. A number or a truth value is none: who means one writes it
// in quotes.
func (d *reader) text(path string, n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode:
		d.wrong(n, "%s: aliases are not allowed", path)
	case n.Kind != yaml.ScalarNode || strict.IsNull(n):
		d.wrong(n, "%s must be a text", path)
	case n.ShortTag() != "!!str":
		d.wrong(n, "%s must be a text: write %q, with the quotes", path, n.Value)
	default:
		return n.Value
	}
	return ""
}

// number reads a whole number.
func (d *reader) number(path string, n *yaml.Node) int {
	if n.Kind == yaml.AliasNode {
		d.wrong(n, "%s: aliases are not allowed", path)
		return 0
	}
	if !d.plain(path, n) {
		return 0
	}
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil {
		d.wrong(n, "%s must be a whole number", path)
		return 0
	}
	return v
}

// plain notes it if a node is a number that can be read in several ways, and reports
// whether it is none.
func (d *reader) plain(path string, n *yaml.Node) bool {
	what := strict.Ambiguous(n)
	if what != "" {
		d.wrong(n, "%s: %s", path, what)
	}
	return what == ""
}
