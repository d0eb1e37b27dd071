package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/sidecar/source"
)

// decodeSource reads a file that says what a source is. Its error is [*fileProblems],
// with all that is wrong.
func decodeSource(name string, data []byte) (source.Spec, error) {
	d := sourceReader{
		submissionReader: submissionReader{name: name, at: map[string]*yaml.Node{}},
		spec: source.Spec{
			ID: source.DefaultID, Interval: source.DefaultInterval, Timeout: source.DefaultTimeout, Forget: source.DefaultForget,
		},
	}
	d.readSource(data)
	return d.spec, d.problems(name)
}

// sourceReader reads a source, and notes where its fields stand.
type sourceReader struct {
	submissionReader
	spec source.Spec
}

var sourceFields = []string{"name", "list", "shell", "interval", "timeout", "id", "forget", "run"}

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
