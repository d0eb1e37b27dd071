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
	"github.com/berthhq/berth/internal/strict"
)

// Item is an entry of the list.
type Item struct {
	ID string
	// Value is JSON: an object with the id among its fields, or a string that is the
	// id.
	Value json.RawMessage
	// Where is its place in the list: "line 3", or "item 3" of an array.
	Where string
}

// Refusal is an entry of the list that cannot become a run.
type Refusal struct {
	// Where is its place in the list, and Why the reason.
	Where, Why string
}

// String returns the place and the reason.
func (r Refusal) String() string { return r.Where + ": " + r.Why }

// Decode reads the output of the command: a JSON array, or one item per line, which is a
// JSON object or plain text; blank lines are ignored. Items that cannot be used are
// refused; an error concerns the whole output.
func (s *Spec) Decode(output []byte) (items []Item, refused []Refusal, err error) {
	d := decoder{spec: s, at: map[string]string{}}
	output = strict.Text(output)
	if bytes.HasPrefix(bytes.TrimSpace(output), []byte("[")) {
		err = d.array(output)
	} else {
		err = d.lines(output)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case len(d.items) == 0 && len(d.refused) > 0:
		return nil, nil, fmt.Errorf("the output of the list command has no usable item: %s", d.refused[0])
	}
	return d.items, d.refused, nil
}

type decoder struct {
	spec    *Spec
	at      map[string]string // where an id was listed first
	items   []Item
	refused []Refusal
}

var errTooMany = fmt.Errorf("the list command listed more than %d items", MaxItems)

func (d *decoder) array(output []byte) error {
	if !utf8.Valid(output) {
		return errors.New("the output of the list command is not UTF-8")
	}
	number := 0
	err := strict.Array(output, func(value json.RawMessage, err error) {
		if number++; number <= MaxItems {
			d.value(fmt.Sprintf("item %d", number), value, err)
		}
	})
	switch {
	case err != nil:
		return fmt.Errorf("the output of the list command begins with '[' and is not a JSON array: %w", err)
	case number > MaxItems:
		return errTooMany
	}
	return nil
}

func (d *decoder) lines(output []byte) error {
	number := 0
	for line := range bytes.Lines(output) {
		number++
		line = strict.Text(bytes.TrimSpace(line)) // another file may begin here
		if len(line) == 0 {
			continue
		}
		if len(d.items)+len(d.refused) == MaxItems {
			return errTooMany
		}
		where := fmt.Sprintf("line %d", number)
		switch {
		case !utf8.Valid(line):
			d.refuse(where, "it is not UTF-8")
		case line[0] == '{':
			err := strict.Check(line, strict.MaxDepth)
			if wrong := (*strict.SyntaxError)(nil); errors.As(err, &wrong) {
				err = fmt.Errorf("column %d: %s", wrong.Column, wrong.What())
			}
			d.value(where, line, err)
		default:
			text := string(line)
			d.add(where, text, encode(text))
		}
	}
	return nil
}

// value adds an item that is JSON; err is what is wrong with it.
func (d *decoder) value(where string, value json.RawMessage, err error) {
	if err != nil {
		d.refuse(where, "it is not JSON that can be used: "+err.Error())
		return
	}
	var text string
	if json.Unmarshal(value, &text) == nil && value[0] == '"' {
		d.add(where, text, encode(text))
		return
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(value, &fields); err != nil || fields == nil {
		d.refuse(where, "it is neither a JSON object nor a string")
		return
	}
	field := d.spec.ID
	id, ok := fields[field]
	switch {
	case !ok:
		d.refuse(where, fmt.Sprintf("it has no field %q for its id", problem.Clip(field)))
	case isWhole(id):
		d.add(where, string(id), value)
	case id[0] != '"' || json.Unmarshal(id, &text) != nil:
		d.refuse(where, fmt.Sprintf("its %q is %s: use a string and an integer from 0", problem.Clip(field), problem.Clip(string(id))))
	default:
		d.add(where, text, value)
	}
}

// isWhole reports whether a number is written with digits only.
func isWhole(number json.RawMessage) bool {
	return strings.Trim(string(number), "0123456789") == ""
}

func (d *decoder) add(where, id string, value json.RawMessage) {
	if most := run.MaxID - len(d.spec.RunID("")); len(id) > most {
		d.refuse(where, fmt.Sprintf("its id has %d bytes: use at most %d", len(id), most))
		return
	}
	// All characters of a source's name are allowed in ids.
	if id == "" || run.ValidateID(d.spec.RunID(id)) != nil {
		d.refuse(where, fmt.Sprintf("%q is not an item id: use 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-'",
			problem.Clip(id), run.MaxID-len(d.spec.RunID(""))))
		return
	}
	if first, twice := d.at[id]; twice {
		d.refuse(where, fmt.Sprintf("%q is listed twice, first at %s", id, first))
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

// encode writes JSON without escaping for HTML.
func encode(v any) json.RawMessage {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("source: encode %T: %v", v, err)) // a fault of the program
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}
