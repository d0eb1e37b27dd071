package main

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/pool"
)

// checkSteps makes the graph of the steps that are asked for, if there are any, and
// counts its instances for the run.
func (a *asked) checkSteps() (err error) {
	if a.steps == nil {
		return nil
	}
	if a.graph, err = step.NewGraph(a.steps); err != nil {
		return err
	}
	a.spec.Steps = a.graph.Total()
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

// nearest is where a field stands, or what it is in.
func (d *submissionReader) nearest(field string) *yaml.Node {
	for field != "" {
		if n := d.at[field]; n != nil {
			return n
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return nil
}
