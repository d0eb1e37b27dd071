package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/internal/strict"
	"github.com/berthhq/berth/sidecar/source"
)

// ReadSource reads a file that says what a source is. Its error is [*Problems],
// with all that is wrong.
func ReadSource(name string, data []byte) (source.Spec, error) {
	d := sourceReader{
		submissionReader: submissionReader{reader: reader{name: name}, at: map[string]*yaml.Node{}},
		spec: source.Spec{
			ID: source.DefaultID, Interval: source.DefaultInterval, Timeout: source.DefaultTimeout, Forget: source.DefaultForget,
		},
	}
	d.readSource(data)
	return d.spec, d.problems()
}

// sourceReader reads a source, and records the places of its fields.
type sourceReader struct {
	submissionReader
	spec source.Spec
}

var sourceFields = []string{"name", "list", "shell", "interval", "timeout", "id", "forget", "vars", "run"}

// sourceRunFields are those of a submission, but for the id, which comes from the item.
var sourceRunFields = slices.DeleteFunc(slices.Clone(submissionFields), func(f string) bool { return f == "id" })

func (d *sourceReader) readSource(data []byte) {
	root := d.root(data, "the fields of a source: "+strings.Join(sourceFields, ", "))
	if root == nil {
		return
	}
	s := &d.spec
	d.mapping(root, "the file", sourceFields, func(_ string, key, value *yaml.Node) {
		field := key.Value
		d.at[field] = value
		switch field {
		case "name":
			s.Name = d.text(field, value)
		case "list":
			s.List = d.texts(field, value)
		case "shell":
			s.Shell = d.text(field, value)
		case "interval":
			s.Interval = time.Duration(d.duration(field, value))
		case "timeout":
			s.Timeout = time.Duration(d.duration(field, value))
		case "id":
			s.ID = d.text(field, value)
		case "forget":
			s.Forget = time.Duration(d.duration(field, value))
		case "vars":
			s.Vars = d.vars(value)
		case "run":
			d.run(value)
		}
	})
	if d.at["run"] == nil && root.Kind == yaml.MappingNode {
		d.wrong(root, "run is missing: it says what each item becomes, as a file of 'berth submit' does")
	}
	if len(d.lines) == 0 {
		d.refuse(s.Validate(), root)
	}
}

// vars reads the fields that items can have: a mapping of what each can be, or a list of
// the names of those that are required.
func (d *sourceReader) vars(n *yaml.Node) map[string]source.Var {
	vars := map[string]source.Var{}
	switch n.Kind {
	case yaml.MappingNode:
		d.mapping(n, "vars", nil, func(path string, key, value *yaml.Node) {
			d.at[path] = key
			vars[key.Value] = d.declared(path, value)
		})
	case yaml.SequenceNode:
		for i, name := range d.texts("vars", n) {
			if at := d.at["vars."+name]; at != nil {
				d.wrong(n.Content[i], "vars: %q is given twice, first on line %d", name, at.Line)
			}
			d.at["vars."+name] = n.Content[i]
			vars[name] = source.Var{Required: true}
		}
	default:
		d.wrong(n, "vars must be a mapping, or a list of names")
	}
	return vars
}

// declared reads what a var can be: a single value is its default.
func (d *sourceReader) declared(path string, n *yaml.Node) (v source.Var) {
	switch {
	case strict.IsNull(n):
		return v
	case n.Kind == yaml.ScalarNode:
		v.Default = d.json(path, n)
		return v
	case n.Kind != yaml.MappingNode:
		d.wrong(n, "%s must be its default (a text, a number, true or false), or a mapping", path)
		return v
	}
	d.mapping(n, path, []string{"default", "required", "pattern", "values"}, func(field string, key, value *yaml.Node) {
		d.at[field] = value
		switch key.Value {
		case "default":
			v.Default = d.json(field, value)
		case "required":
			v.Required = d.truth(field, value)
		case "pattern":
			p, err := source.NewPattern(d.text(field, value))
			if err != nil {
				d.wrong(value, "%s: %s", field, err)
			}
			v.Pattern = p
		case "values":
			v.Values = d.singles(field, value)
		}
	})
	return v
}

// singles reads a list of texts, numbers and truth values, as templates write them.
func (d *sourceReader) singles(path string, n *yaml.Node) []string {
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, "%s must be a list", path)
		return nil
	}
	all := []string{}
	for i, each := range n.Content {
		field := fmt.Sprintf("%s[%d]", path, i)
		if each.Kind != yaml.ScalarNode || strict.IsNull(each) {
			d.wrong(each, "%s must be a text, a number, true or false", field)
		} else if v, ok := d.value(field, each); ok {
			all = append(all, fmt.Sprint(v))
		}
	}
	return all
}

// run reads what each item becomes.
func (d *sourceReader) run(n *yaml.Node) {
	s := &d.spec.Run
	d.mapping(n, "run", sourceRunFields, func(field string, key, value *yaml.Node) {
		d.at[field] = value
		if key.Value == "steps" {
			d.spec.Steps = d.steps(value)
			return
		}
		d.specField(s, key.Value, field, value)
	})
	// Steps are read, and so named, as those of a submission; problems have the run before.
	for field, at := range maps.Clone(d.at) {
		if strings.HasPrefix(field, "steps") {
			d.at["run."+field] = at
		}
	}
}
