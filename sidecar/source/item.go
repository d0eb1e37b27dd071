package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
)

// Item is one of what a look lists.
type Item struct {
	ID string
	// Value is any JSON: an object with the id among its fields, or a text that is its
	// own id.
	Value json.RawMessage
	// Where it was listed: "line 3", or "item 3" of an array.
	Where string
}

// Refusal is something listed that can't become a run.
type Refusal struct {
	// Where it was listed, and Why it is refused.
	Where, Why string
}

// String says it for people.
func (r Refusal) String() string { return r.Where + ": " + r.Why }

// Decode reads what the command of a look has written: a JSON array, or else a line for
// each item, which is a JSON object or a plain text; blank lines say nothing. What is
// wrong with an item is among the refusals; an error is about all of it.
func (s *Spec) Decode(output []byte) (items []Item, refused []Refusal, err error) {
	d := decoder{spec: s, at: map[string]string{}}
	if bytes.HasPrefix(bytes.TrimSpace(output), []byte("[")) {
		err = d.array(output)
	} else {
		err = d.lines(output)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case len(d.items) == 0 && len(d.refused) > 0:
		return nil, nil, fmt.Errorf("what the list command has written has no item that can be used: %s", d.refused[0])
	}
	return d.items, d.refused, nil
}

type decoder struct {
	spec    *Spec
	at      map[string]string // where an id was listed first
	items   []Item
	refused []Refusal
}

var errTooMany = fmt.Errorf("the list command has listed more than %d items", MaxItems)

func (d *decoder) array(output []byte) error {
	var list []json.RawMessage
	if !utf8.Valid(output) {
		return errors.New("what the list command has written is no text in UTF-8")
	}
	if err := json.Unmarshal(output, &list); err != nil {
		return fmt.Errorf("what the list command has written begins with '[' and is no JSON array: %w", err)
	}
	if len(list) > MaxItems {
		return errTooMany
	}
	for i, value := range list {
		d.value(fmt.Sprintf("item %d", i+1), value)
	}
	return nil
}

func (d *decoder) lines(output []byte) error {
	number := 0
	for line := range bytes.Lines(output) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(d.items)+len(d.refused) == MaxItems {
			return errTooMany
		}
		where := fmt.Sprintf("line %d", number)
		switch {
		case !utf8.Valid(line):
			d.refuse(where, "it is no text in UTF-8")
		case line[0] == '{':
			d.value(where, line)
		default:
			text := string(line)
			d.add(where, text, encode(text))
		}
	}
	return nil
}

// value takes an item that is JSON.
func (d *decoder) value(where string, value json.RawMessage) {
	var text string
	if json.Unmarshal(value, &text) == nil && value[0] == '"' {
		d.add(where, text, encode(text))
		return
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(value, &fields); err != nil || fields == nil {
		d.refuse(where, "it is no JSON object and no text")
		return
	}
	field := d.spec.ID
	id, ok := fields[field]
	switch {
	case !ok:
		d.refuse(where, fmt.Sprintf("it has no field %q, which is to be its id", problem.Clip(field)))
	case isWhole(id):
		d.add(where, string(id), value)
	case id[0] != '"' || json.Unmarshal(id, &text) != nil:
		d.refuse(where, fmt.Sprintf("its %q is %s: allowed are a text and a whole number from 0 on", problem.Clip(field), problem.Clip(string(id))))
	default:
		d.add(where, text, value)
	}
}

// isWhole takes numbers that have one spelling only.
func isWhole(number json.RawMessage) bool {
	return strings.Trim(string(number), "0123456789") == ""
}

func (d *decoder) add(where, id string, value json.RawMessage) {
	// The names of sources have no characters that ids can't have.
	if id == "" || run.ValidateID(d.spec.RunID(id)) != nil {
		d.refuse(where, fmt.Sprintf("%q is no id of an item: allowed are 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-'",
			problem.Clip(id), run.MaxText-len(d.spec.RunID(""))))
		return
	}
	if first, twice := d.at[id]; twice {
		d.refuse(where, fmt.Sprintf("%q is listed twice, first in %s", id, first))
		return
	}
	if why := unusable(value); why != "" {
		d.refuse(where, fmt.Sprintf("%q: %s", id, why))
		return
	}
	d.at[id] = where
	d.items = append(d.items, Item{ID: id, Value: bytes.Clone(value), Where: where})
}

func (d *decoder) refuse(where, why string) {
	d.refused = append(d.refused, Refusal{where, why})
}

// encode writes JSON, without the escapes that are for web pages.
func encode(v any) json.RawMessage {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("source: encode %T: %v", v, err)) // a fault of the program
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}
