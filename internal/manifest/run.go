package manifest

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// Run is what a file, or a command line, submits.
type Run struct {
	ID   string
	Spec run.Spec
	// Steps are nil in a run without any; Graph is what they make.
	Steps []step.Spec
	Graph *step.Graph
	// Placed adds to a problem the place of its field in the file. It is nil of a run that
	// was not read from a file.
	Placed func(error) error
}

// ReadRun reads a file that says what 'berth submit' is to submit. Its
// error is [*Problems], with all that is wrong.
func ReadRun(name string, data []byte) (Run, error) {
	d := submissionReader{reader: reader{name: name}, at: map[string]*yaml.Node{}}
	d.read(data)
	d.found.Placed = d.placed
	return d.found, d.problems()
}

// placed adds to a problem the place of its field in the file.
func (d *submissionReader) placed(err error) error {
	if at := d.at[fieldOf(err)]; at != nil {
		return fmt.Errorf("%s:%d:%d: %w", d.name, at.Line, at.Column, err)
	}
	return err
}

// submissionReader reads a submission, and records the places of its fields.
type submissionReader struct {
	reader
	found Run
	at    map[string]*yaml.Node // by field, as problems name it
}

var submissionFields = []string{"id", "name", "owner", "priority", "retries", "tags", "labels", "pools", "not_before", "delay", "max_concurrent_steps", "max_steps_per_tick", "steps"}

func (d *submissionReader) read(data []byte) {
	root := d.root(data, "fields of a run, or {}")
	if root == nil {
		return
	}
	s := &d.found.Spec
	d.mapping(root, "the file", submissionFields, func(_ string, key, value *yaml.Node) {
		field := key.Value
		d.at[field] = value
		switch field {
		case "id":
			d.found.ID = d.text(field, value)
			d.refuse(run.ValidateID(d.found.ID), value)
		case "steps":
			d.found.Steps = d.steps(value)
		default:
			d.specField(s, field, field, value)
		}
	})
	if len(d.lines) == 0 {
		d.refuse(d.found.Check(), root)
	}
	if len(d.lines) == 0 {
		d.refuse(s.ValidateNew(), root)
	}
}

// specField reads a field of a run. Path is its name in problems.
func (d *submissionReader) specField(s *run.Spec, name, path string, value *yaml.Node) {
	switch name {
	case "name":
		s.Name = d.text(path, value)
	case "owner":
		s.Owner = d.text(path, value)
	case "priority":
		s.Priority = d.number(path, value)
	case "retries":
		s.Retries = d.number(path, value)
	case "tags":
		s.Tags = d.pairs(path, value)
	case "labels":
		s.Labels = d.pairs(path, value)
	case "pools":
		s.Pools = d.slots(path, value)
	case "not_before":
		s.NotBefore = d.instant(path, value)
	case "delay":
		if s.Delay = time.Duration(d.duration(path, value)); s.Delay < 0 {
			d.wrong(value, "%s: %s is out of range: use 0s (none) to %s", path, s.Delay, run.MaxDelay)
		}
	case "max_concurrent_steps":
		s.MaxConcurrentSteps = d.number(path, value)
	case "max_steps_per_tick":
		s.MaxStepsPerTick = d.number(path, value)
	}
}

// pairs reads a mapping of texts.
func (d *submissionReader) pairs(field string, n *yaml.Node) map[string]string {
	pairs := map[string]string{}
	d.mapping(n, field, nil, func(path string, key, value *yaml.Node) {
		d.at[path] = key
		pairs[key.Value] = d.text(path, value)
	})
	return pairs
}

// instant reads a point in time.
func (d *submissionReader) instant(path string, n *yaml.Node) run.Instant {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" && n.ShortTag() != "!!timestamp" {
		d.wrong(n, "%s must be a %s", path, run.Instant{}.TypeName())
		return run.Instant{}
	}
	t, err := run.ParseInstant(path, n.Value)
	if err != nil {
		d.wrong(n, "%s", problem.New(problem.Invalid, "%w", err))
	}
	return t
}

// slots reads a mapping of numbers.
func (d *submissionReader) slots(field string, n *yaml.Node) map[string]int {
	slots := map[string]int{}
	d.mapping(n, field, nil, func(path string, key, value *yaml.Node) {
		d.at[path] = key
		if err := pool.ValidateName(key.Value); err != nil {
			d.wrong(key, "%s: %s", field, messageOf(err))
		}
		slots[key.Value] = d.number(path, value)
	})
	return slots
}

// refuse records a problem at the place of its field, or at otherwise.
func (d *submissionReader) refuse(err error, otherwise *yaml.Node) {
	if err == nil {
		return
	}
	field, at := fieldOf(err), otherwise
	if n := d.nearest(field); n != nil {
		at = n
	}
	for name, n := range d.at {
		// A long key is named in part.
		if name == field || strings.HasSuffix(field, "…") && strings.HasPrefix(name, strings.TrimSuffix(field, "…")) {
			at = n
		}
	}
	d.wrong(at, "%s", problem.New(problem.Invalid, "%w", err))
}

// Check makes the graph of the steps that are asked for, if there are any, and
// counts its instances for the run.
func (a *Run) Check() (err error) {
	if a.Steps == nil {
		return nil
	}
	if a.Graph, err = step.NewGraph(a.Steps); err != nil {
		return err
	}
	a.Spec.Steps = a.Graph.Total()
	return nil
}

var stepFields = []string{
	"name", "needs", "not_before", "items", "concurrency", "pools", "task", "queue", "command", "shell", "external",
	"env", "input", "retries", "backoff", "timeout", "on_failure",
}

// steps reads the steps of a run.
func (d *submissionReader) steps(n *yaml.Node) []step.Spec {
	specs := []step.Spec{}
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, "steps must be a list, each step with a name and what it is to do")
		return specs
	}
	for i, each := range n.Content {
		specs = append(specs, d.step(i, each))
	}
	return specs
}

// step reads one step. It is called by its name as soon as that is known.
func (d *submissionReader) step(number int, n *yaml.Node) (s step.Spec) {
	path := fmt.Sprintf("steps[%d]", number)
	d.at[path] = n
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if value := n.Content[i+1]; n.Content[i].Value == "name" && value.Kind == yaml.ScalarNode && pool.ValidateName(value.Value) == nil {
				d.at[path+".name"] = value
				path = "steps." + value.Value
				d.at[path] = n
				break
			}
		}
	}
	d.mapping(n, path, stepFields, func(field string, key, value *yaml.Node) {
		d.at[field] = value
		switch key.Value {
		case "name":
			s.Name = d.text(field, value)
		case "needs":
			s.Needs = d.texts(field, value)
		case "not_before":
			s.NotBefore = d.instant(field, value)
		case "items":
			s.Items = d.items(field, value)
		case "concurrency":
			s.Concurrency = d.number(field, value)
		case "pools":
			s.Pools = d.slots(field, value)
		case "task":
			s.Task = d.task(field, value)
		case "queue":
			s.Queue = d.text(field, value)
		case "command":
			s.Command = d.texts(field, value)
		case "shell":
			s.Shell = d.text(field, value)
		case "external":
			s.External = d.truth(field, value)
		case "env":
			s.Env = d.pairs(field, value)
		case "input":
			s.Input = d.json(field, value)
		case "retries":
			s.Retries = d.number(field, value)
		case "backoff":
			s.Backoff = d.duration(field, value)
		case "timeout":
			s.Timeout = d.duration(field, value)
		case "on_failure":
			s.OnFailure = step.OnFailure(d.text(field, value))
		}
	})
	return s
}

// task reads the name of a task, or a mapping of its name and its limit.
func (d *submissionReader) task(path string, n *yaml.Node) (t step.Task) {
	if n.Kind != yaml.MappingNode {
		return step.Task{Name: d.text(path, n)}
	}
	d.mapping(n, path, []string{"name", "limit"}, func(field string, key, value *yaml.Node) {
		d.at[field] = value
		if key.Value == "name" {
			t.Name = d.text(field, value)
			return
		}
		limit := d.number(field, value)
		t.Limit = &limit
	})
	if t.Name == "" || t.Limit == nil {
		d.wrong(n, "%s: a mapping needs name and limit, as in {name: resize, limit: 4}", path)
	}
	return t
}

// texts reads a list of texts.
func (d *submissionReader) texts(path string, n *yaml.Node) []string {
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, "%s must be a list of texts", path)
		return nil
	}
	all := []string{}
	for i, each := range n.Content {
		field := fmt.Sprintf("%s[%d]", path, i)
		d.at[field] = each
		all = append(all, d.text(field, each))
	}
	return all
}

// truth reads true or false.
func (d *submissionReader) truth(path string, n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		d.wrong(n, "%s must be true or false", path)
		return false
	}
	return strings.EqualFold(n.Value, "true")
}

// duration reads a time span.
func (d *submissionReader) duration(path string, n *yaml.Node) step.Duration {
	if !d.plain(path, n) {
		return 0
	}
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.wrong(n, "%s must be a duration such as 30s, 5m or 1h30m", path)
		return 0
	}
	return step.Duration(v)
}

// nearest returns the place of a field, or of the field that contains it.
func (d *submissionReader) nearest(field string) *yaml.Node {
	for field != "" {
		if n := d.at[field]; n != nil {
			return n
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return nil
}
