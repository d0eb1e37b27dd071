package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

// submission is the run of an item.
type submission struct {
	id    string
	spec  run.Spec
	graph *step.Graph // nil if the run has no steps
}

// anyItem replaces the item where only the form of templates is validated.
var anyItem = json.RawMessage("null")

// submission returns the run of an item. Its error is a problem that names the field.
func (s *Spec) submission(it Item) (submission, error) {
	id := s.RunID(it.ID)
	value, err := s.withVars(it)
	if err != nil {
		return submission{}, err
	}
	g, err := s.head(value)
	if err != nil {
		return submission{}, err
	}
	spec, err := s.rendered(g, id)
	if err != nil {
		return submission{}, err
	}
	spec.Labels = maps.Clone(spec.Labels)
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels[LabelSource], spec.Labels[LabelItem] = s.Name, it.ID
	sub := submission{id: id, spec: spec}
	if s.Steps != nil {
		if sub.graph, err = step.NewGraph(s.stepsOver(value)); err != nil {
			return submission{}, err
		}
	}
	return sub, nil
}

// stepsOver returns the steps, with an item for those that have none of their own.
func (s *Spec) stepsOver(item json.RawMessage) []step.Spec {
	steps := make([]step.Spec, len(s.Steps))
	for i, each := range s.Steps {
		if each.Items == nil {
			each.Items = &step.Items{List: []json.RawMessage{item}}
		}
		steps[i] = each
	}
	return steps
}

// head returns a graph that renders the templates of a run's name, tags and labels like
// those of a step's input; nil if there are none.
func (s *Spec) head(item json.RawMessage) (*step.Graph, error) {
	var input bytes.Buffer
	e := json.NewEncoder(&input)
	e.SetEscapeHTML(false)
	if err := e.Encode(headOf(s.Run)); err != nil {
		return nil, problem.New(problem.Internal, "a run could not be written: %w", err)
	}
	if !strings.Contains(input.String(), "{{") {
		return nil, nil
	}
	g, err := step.NewGraph([]step.Spec{{
		Name: headStep, External: true, Input: input.Bytes(), Items: &step.Items{List: []json.RawMessage{item}},
	}})
	return g, ofHead(err)
}

// head holds the fields of a run that can be templates.
type head struct {
	Name   string            `json:"name"`
	Tags   map[string]string `json:"tags"`
	Labels map[string]string `json:"labels"`
}

func headOf(s run.Spec) head { return head{s.Name, s.Tags, s.Labels} }

const headStep = "run"

// rendered returns the run with its templates rendered.
func (s *Spec) rendered(g *step.Graph, id string) (run.Spec, error) {
	spec := s.Run
	if g == nil {
		return spec, nil
	}
	w, err := g.Work(0, 0, step.About{RunID: id})
	if err != nil {
		return spec, ofHead(err)
	}
	var h head
	if err := json.Unmarshal(w.Input, &h); err != nil {
		return spec, problem.New(problem.Internal, "a run could not be read: %w", err)
	}
	spec.Name, spec.Tags, spec.Labels = h.Name, h.Tags, h.Labels
	return spec, nil
}

// ofHead names a field of the run as users write it.
func ofHead(err error) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return err
	}
	return problem.Field(strings.TrimPrefix(p.Field, "steps."+headStep+".input."), "%s", strings.TrimPrefix(p.Message, "instance 0: "))
}

// withinRun prefixes the field of a problem with "run".
func withinRun(err error) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return err
	}
	field := "run"
	if p.Field != "" {
		field += "." + p.Field
	}
	return problem.Field(field, "%s", p.Message)
}
