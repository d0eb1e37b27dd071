package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// recipe renders the work of the instances of a step. It is immutable.
type recipe struct {
	step     string
	items    *Items
	command  []stencil
	external bool
	env      []variable
	input    any // as JSON is read, with stencils for texts; nil if none was given
}

type variable struct {
	name  string
	value stencil
}

// newRecipe parses all templates of a spec.
func newRecipe(s *Spec) (*recipe, error) {
	r := &recipe{step: s.Name, items: s.Items, external: s.External}
	add := func(field, text string) error {
		st, err := s.newArgument(field, text)
		r.command = append(r.command, st)
		return err
	}
	for i, arg := range s.Command {
		if err := add(fmt.Sprintf("command[%d]", i), arg); err != nil {
			return nil, err
		}
	}
	if s.Shell != "" {
		r.command = []stencil{{constant: "/bin/sh"}, {constant: "-c"}}
		if err := add("shell", s.Shell); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		st, err := s.newArgument("env."+name, s.Env[name])
		if err != nil {
			return nil, err
		}
		r.env = append(r.env, variable{name, st})
	}
	if s.Input == nil {
		return r, nil
	}
	value, err := readJSON(s.Input)
	if err != nil {
		return nil, s.wrong("input", "it can't be read: %w", err)
	}
	r.input, err = s.stencils("input", value)
	return r, err
}

// newArgument is [Spec.newStencil] of an argument or a variable.
func (s *Spec) newArgument(field, text string) (stencil, error) {
	if !utf8.ValidString(text) {
		return stencil{}, s.wrong(field, "it has characters that can't be read: use text in UTF-8")
	}
	if strings.ContainsRune(text, 0) {
		return stencil{}, s.wrong(field, "%w", errNUL)
	}
	return s.newStencil(field, text)
}

var errNUL = errors.New("it contains a NUL byte")

// stencils replaces each string of a JSON value by a stencil; names of fields stay.
func (s *Spec) stencils(field string, value any) (_ any, err error) {
	switch v := value.(type) {
	case string:
		return s.newStencil(field, v)
	case []any:
		for i := range v {
			if v[i], err = s.stencils(fmt.Sprintf("%s[%d]", field, i), v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if v[name], err = s.stencils(field+"."+problem.Clip(name), v[name]); err != nil {
				return nil, err
			}
		}
	case nil:
		return json.RawMessage("null"), nil // which is not the same as none
	}
	return value, nil
}

// readJSON decodes JSON and keeps all digits of numbers.
func readJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// rendering is the rendering of the work of one instance.
type rendering struct {
	recipe *recipe
	index  int
	values map[string]any
	left   int
}

// render renders the work of an instance.
func (r *recipe) render(index int, about About) (Work, error) {
	to := rendering{recipe: r, index: index, left: MaxWork, values: map[string]any{
		"index": index, "step": r.step,
		"run": map[string]any{"id": about.RunID, "name": about.Name, "tags": about.Tags, "labels": about.Labels},
	}}
	w := Work{External: r.external}
	if r.items != nil {
		item, err := readJSON(r.items.At(index))
		if err != nil {
			return Work{}, to.wrong("items", err)
		}
		to.values[wordItem] = item
	}
	for i := range r.command {
		arg, err := to.argument(&r.command[i])
		if err != nil {
			return Work{}, err
		}
		w.Command = append(w.Command, arg)
	}
	if len(r.env) > 0 {
		w.Env = make(map[string]string, len(r.env))
	}
	for i := range r.env {
		value, err := to.argument(&r.env[i].value)
		if err != nil {
			return Work{}, err
		}
		w.Env[r.env[i].name] = value
	}
	var err error
	if w.Input, err = to.input(); err != nil {
		return Work{}, err
	}
	if err := w.check(); err != nil {
		return Work{}, to.wrong("", err)
	}
	if size := len(store.Encode(w)); size > MaxWork {
		return Work{}, to.wrong("", fmt.Errorf("its command, env and input are %d bytes long as JSON: use at most %d", size, MaxWork))
	}
	return w, nil
}

// input returns the rendered input, or without one the item.
func (to *rendering) input() (json.RawMessage, error) {
	value, given := to.values[wordItem]
	if to.recipe.input != nil {
		var err error
		if value, err = to.json(to.recipe.input); err != nil {
			return nil, err
		}
	} else if !given {
		return nil, nil
	}
	text, err := toJSON(value)
	if err != nil {
		return nil, to.wrong("input", err)
	}
	return json.RawMessage(text), nil
}

// json returns a copy of a JSON value with rendered stencils.
func (to *rendering) json(value any) (any, error) {
	switch v := value.(type) {
	case stencil:
		return to.text(&v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			var err error
			if list[i], err = to.json(v[i]); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		object := make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			var err error
			if object[name], err = to.json(v[name]); err != nil {
				return nil, err
			}
		}
		return object, nil
	}
	return value, nil
}

// argument returns a text for an argument or a variable.
func (to *rendering) argument(s *stencil) (string, error) {
	text, err := to.text(s)
	if err == nil && strings.ContainsRune(text, 0) {
		err = to.wrong(s.field, errNUL)
	}
	return text, err
}

func (to *rendering) text(s *stencil) (string, error) {
	text, err := s.render(to.values, &to.left)
	if errors.Is(err, errTooLong) {
		return "", to.wrong("", err)
	}
	if err != nil {
		return "", to.wrong(s.field, err)
	}
	return text, nil
}

// wrong names the step, the field and the index.
func (to *rendering) wrong(field string, err error) error {
	if field != "" {
		field = "." + field
	}
	return problem.Field("steps."+to.recipe.step+field, "instance %d: %w", to.index, err)
}
