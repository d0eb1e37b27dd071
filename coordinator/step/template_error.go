package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/berthhq/berth/internal/problem"
)

// explain says in the words of templates why one could not be rendered: the error is
// text/template's, as in
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
			what = unwrapped.Error() // what toText says
		}
		at = s.pipeAt(strings.TrimPrefix(where, "template: "))
	}
	return fmt.Errorf("{{%s}}: %s", problem.Clip(at), what)
}

// missing says what there is not of a path of fields; empty if there is all of it.
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

// keysOf are the names in an object, each no longer than can be read.
func keysOf[V any](of map[string]V) []string {
	all := make([]string, 0, len(of))
	for name := range of {
		all = append(all, problem.Clip(name))
	}
	slices.Sort(all)
	return all
}

// pipeAt is what stands between the braces at a place of the template, as text/template
// names places.
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
