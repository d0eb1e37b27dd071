package step

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/berthhq/berth/internal/problem"
)

// words are the fields of templates, and the fields of each: none for a text or a number,
// and any if nil.
var words = map[string]map[string]bool{
	wordItem: nil, "index": {}, "step": {},
	"run": {"id": true, "name": true, "tags": true, "labels": true},
}

const wordItem = "item"

// The functions of templates. Only the first is for users; the others are appended to the
// pipelines.
const (
	funcJSON  = "json"
	funcText  = "text"
	funcTruth = "truth"
)

var (
	writable  = map[string]any{funcJSON: toJSON}
	functions = template.FuncMap{funcJSON: toJSON, funcText: toText, funcTruth: truth}
)

// stencil is a string that is rendered once per instance.
type stencil struct {
	field    string // as users write it
	constant string // without a template
	template *template.Template
}

// newStencil parses a string. It allows only text, fields, json, if and else: without loops
// and nested templates, rendering evaluates each part once.
func (s *Spec) newStencil(field, text string) (stencil, error) {
	st := stencil{field: field, constant: text}
	if !strings.Contains(text, "{{") {
		return st, nil
	}
	const name = "template"
	found := map[string]*parse.Tree{}
	tree, err := parse.New(name).Parse(text, "", "", found, writable)
	if err != nil {
		return stencil{}, s.wrong(field, "the template can't be read: %s; %s", strings.TrimPrefix(err.Error(), "template: "+name+":"), howToWriteBraces)
	}
	for _, other := range found {
		if other != tree {
			return stencil{}, s.wrong(field, "the template can't define others: %s; %s", allowedParts, howToWriteBraces)
		}
	}
	if err := checkList(tree.Root, s.Items != nil); err != nil {
		return stencil{}, s.wrong(field, "the template %w; %s", err, howToWriteBraces)
	}
	st.template, err = template.New(name).Option("missingkey=error").Funcs(functions).AddParseTree(name, tree)
	if err != nil {
		return stencil{}, s.wrong(field, "the template can't be read: %w; %s", err, howToWriteBraces)
	}
	return st, nil
}

const allowedParts = "use fields as in {{.item.day}}, {{json .item}}, and {{if .item.day}} with {{else}} and {{end}}"

// howToWriteBraces helps with texts that are for another program, such as "docker ps --format
// {{.Names}}".
const howToWriteBraces = `to write {{ itself, write {{"{{"}}`

// checkList returns an error for parts that are not allowed, and inserts the functions that
// format and test values.
func checkList(list *parse.ListNode, items bool) error {
	if list == nil {
		return nil
	}
	for _, n := range list.Nodes {
		var err error
		switch n := n.(type) {
		case *parse.TextNode:
		case *parse.ActionNode:
			if err = checkPipe(n.Pipe, items); err == nil {
				pipeInto(n.Pipe, funcText)
			}
		case *parse.IfNode:
			if err = checkPipe(n.Pipe, items); err == nil {
				pipeInto(n.Pipe, funcTruth)
				err = cmp.Or(checkList(n.List, items), checkList(n.ElseList, items))
			}
		default:
			err = notAllowed(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPipe allows {{.a.b}}, {{json .a.b}}, {{.a.b | json}} and quoted texts.
func checkPipe(p *parse.PipeNode, items bool) error {
	if len(p.Decl) > 0 {
		return notAllowed(p)
	}
	for i, c := range p.Cmds {
		args := c.Args
		if call, ok := args[0].(*parse.IdentifierNode); ok && call.Ident == funcJSON {
			// The piped value is its argument.
			if args = args[1:]; (len(args) == 1) == (i > 0) {
				return fmt.Errorf("calls json in %s with another number of values than one: %s", problem.Clip(p.String()), allowedParts)
			}
		} else if i > 0 {
			return notAllowed(c)
		}
		if len(args) > 1 {
			return notAllowed(c)
		}
		for _, arg := range args {
			if err := checkArg(arg, items); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkArg(n parse.Node, items bool) error {
	switch n := n.(type) {
	case *parse.StringNode:
		return nil
	case *parse.FieldNode:
		return checkField(n, items)
	}
	return notAllowed(n)
}

// checkField returns an error for unknown fields, before any instance is rendered.
func checkField(n *parse.FieldNode, items bool) error {
	next, known := words[n.Ident[0]]
	switch {
	case !known:
		return fmt.Errorf("has no .%s: use %s", problem.Clip(n.Ident[0]), listed(words))
	case n.Ident[0] == wordItem && !items:
		return errors.New("has no .item: the step has no items")
	case next == nil || len(n.Ident) == 1:
		return nil
	case !next[n.Ident[1]] && len(next) == 0:
		return fmt.Errorf("asks for something in .%s, which is one value", n.Ident[0])
	case !next[n.Ident[1]]:
		return fmt.Errorf("has no .%s.%s: allowed behind .%s are %s", n.Ident[0], problem.Clip(n.Ident[1]), n.Ident[0], listed(next))
	}
	return nil
}

// listed formats fields as .item, .run.
func listed[V any](of map[string]V) string {
	return "." + strings.Join(slices.Sorted(maps.Keys(of)), ", .")
}

func notAllowed(n parse.Node) error {
	return fmt.Errorf("can't have %s: %s", problem.Clip(n.String()), allowedParts)
}

// pipeInto appends a function to a pipeline.
func pipeInto(p *parse.PipeNode, function string) {
	p.Cmds = append(p.Cmds, &parse.CommandNode{
		NodeType: parse.NodeCommand, Pos: p.Pos,
		Args: []parse.Node{parse.NewIdentifier(function).SetPos(p.Pos)},
	})
}

// render renders a stencil, and reduces left by the size of the result.
func (s *stencil) render(values map[string]any, left *int) (string, error) {
	if s.template == nil {
		if *left -= len(s.constant); *left < 0 {
			return "", errTooLong
		}
		return s.constant, nil
	}
	out := bounded{left: left}
	if err := s.template.Execute(&out, values); err != nil {
		if errors.Is(err, errTooLong) {
			return "", errTooLong
		}
		return "", s.explain(err, values)
	}
	return out.String(), nil
}

var errTooLong = fmt.Errorf("command, env and input are longer than %d bytes as they are rendered", MaxWork)

// bounded fails when more than left bytes are written.
type bounded struct {
	bytes.Buffer
	left *int
}

var _ io.Writer = (*bounded)(nil)

func (b *bounded) Write(p []byte) (int, error) {
	if *b.left -= len(p); *b.left < 0 {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}

// toJSON encodes a value without escaping for HTML.
func toJSON(v any) (string, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(out.String(), "\n"), err
}

// toText formats a single value.
func toText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case json.Number, bool, int:
		return fmt.Sprint(v), nil
	case nil:
		return "", errors.New("it is null: only json writes that")
	}
	return "", errors.New("it is more than one value: json writes it, or one of its fields is meant")
}

// truth reports whether a value is not null, false, 0 or empty.
func truth(v any) bool {
	if n, ok := v.(json.Number); ok {
		f, err := n.Float64()
		return err != nil || f != 0
	}
	yes, _ := template.IsTrue(v)
	return yes
}

// explain returns why a template could not be rendered. The error is that of text/template,
// such as
//
//	template: template:1:7: executing "template" at <.item.day>: …
func (s *stencil) explain(err error, values map[string]any) error {
	where, what, _ := strings.Cut(err.Error(), ": executing ")
	_, what, _ = strings.Cut(what, " at <")
	at, what, known := strings.Cut(what, ">: ")
	switch {
	case !known:
		return err
	case strings.HasPrefix(at, "."):
		if why := missing(values, strings.Split(at[1:], ".")); why != "" {
			return fmt.Errorf("{{%s}}: %s", problem.Clip(at), why)
		}
	case at == funcText:
		if unwrapped := errors.Unwrap(errors.Unwrap(err)); unwrapped != nil {
			what = unwrapped.Error() // the error of toText
		}
		at = s.pipeAt(strings.TrimPrefix(where, "template: "))
	}
	return fmt.Errorf("{{%s}}: %s", problem.Clip(at), what)
}

// missing returns which field of a path is missing; empty if none is.
func missing(value any, path []string) string {
	at := ""
	for _, name := range path {
		var fields []string
		var next any
		found := false
		switch v := value.(type) {
		case map[string]any:
			fields = keysOf(v)
			next, found = v[name]
		case map[string]string:
			fields = keysOf(v)
			next, found = v[name]
		case nil:
			return fmt.Sprintf("%s is null, and has no field '%s'", at, problem.Clip(name))
		case []any:
			return fmt.Sprintf("%s is a list, and has no field '%s'", at, problem.Clip(name))
		default:
			text, _ := json.Marshal(v)
			return fmt.Sprintf("%s is the single value %s, and has no field '%s'", at, problem.Clip(string(text)), problem.Clip(name))
		}
		switch {
		case found:
		case len(fields) == 0:
			return fmt.Sprintf("%s has no field '%s': it is empty", at, problem.Clip(name))
		default:
			return fmt.Sprintf("%s has no field '%s': it has %s", at, problem.Clip(name), names(fields))
		}
		value, at = next, at+"."+name
	}
	return ""
}

// keysOf returns the names of the fields of an object, clipped.
func keysOf[V any](of map[string]V) []string {
	all := make([]string, 0, len(of))
	for name := range of {
		all = append(all, problem.Clip(name))
	}
	slices.Sort(all)
	return all
}

// pipeAt returns the pipeline at a position of text/template.
func (s *stencil) pipeAt(place string) string {
	text := funcText
	tree := s.template.Tree
	var look func(list *parse.ListNode)
	is := func(p *parse.PipeNode) {
		if at, _ := tree.ErrorContext(p); at == place {
			text = strings.TrimSuffix(strings.TrimSuffix(p.String(), " | "+funcText), " | "+funcTruth)
		}
	}
	look = func(list *parse.ListNode) {
		if list == nil {
			return
		}
		for _, n := range list.Nodes {
			switch n := n.(type) {
			case *parse.ActionNode:
				is(n.Pipe)
			case *parse.IfNode:
				is(n.Pipe)
				look(n.List)
				look(n.ElseList)
			}
		}
	}
	look(tree.Root)
	return text
}
