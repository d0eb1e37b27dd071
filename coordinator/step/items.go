package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/berthhq/berth/internal/problem"
)

// Items are the items of a step: a list of JSON values, or a range of numbers. In JSON they
// are an array, or {"from": 1, "to": 20, "by": 1}.
type Items struct {
	List  []json.RawMessage
	Range *Range
}

// Range is the integers from From to To, both included, in steps of By, which may be
// negative.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// By is not 0. Its default in JSON is 1.
	By int64 `json:"by"`
}

// maxNumber bounds the numbers of a range: JSON readers lose digits of larger ones.
const maxNumber = 1<<53 - 1

// Count returns the number of items.
func (it *Items) Count() int {
	if it.Range == nil {
		return len(it.List)
	}
	return it.Range.count()
}

// At returns the item at an index below [Items.Count], as JSON.
func (it *Items) At(index int) json.RawMessage {
	if it.Range == nil {
		return it.List[index]
	}
	return strconv.AppendInt(nil, it.Range.From+int64(index)*it.Range.By, 10)
}

// count requires numbers within their bounds.
func (r *Range) count() int {
	if r.By > 0 && r.From <= r.To || r.By < 0 && r.From >= r.To {
		return int((r.To-r.From)/r.By) + 1
	}
	return 0
}

// Validate returns a problem that names the field if the items are not valid.
func (it *Items) Validate() error {
	if it.Range != nil {
		if it.List != nil {
			return problem.Field("items", "they are a list and a range: use one of the two")
		}
		if err := it.Range.validate(); err != nil {
			return err
		}
	}
	switch n := it.Count(); {
	case n == 0 && it.Range != nil:
		return problem.Field("items", "there is none from %d to %d by %d: at least one is needed", it.Range.From, it.Range.To, it.Range.By)
	case n == 0:
		return problem.Field("items", "there is none: at least one is needed")
	case n > MaxItems && it.Range == nil: // a list was not read beyond the first that is too many
		return problem.Field("items", "there are more than %d, which is the most that is allowed", MaxItems)
	case n > MaxItems:
		return problem.Field("items", "%d are too many: use at most %d", n, MaxItems)
	}
	for i, item := range it.List {
		field := fmt.Sprintf("items[%d]", i)
		if len(item) > MaxWork {
			return problem.Field(field, "it is %d bytes long: use at most %d", len(item), MaxWork)
		}
		if fault := jsonFault(item); fault != "" {
			return problem.Field(field, "%s", fault)
		}
	}
	return nil
}

func (r *Range) validate() error {
	for _, n := range []struct {
		field string
		value int64
	}{{"from", r.From}, {"to", r.To}, {"by", r.By}} {
		if n.value < -maxNumber || n.value > maxNumber {
			return problem.Field("items."+n.field, "%d is out of range: use %d to %d", n.value, -maxNumber, maxNumber)
		}
	}
	if r.By == 0 {
		return problem.Field("items.by", "0 leads nowhere: use any other whole number")
	}
	return nil
}

// MarshalJSON encodes an array, or the range.
func (it Items) MarshalJSON() ([]byte, error) {
	if it.Range != nil {
		return json.Marshal(it.Range)
	}
	if it.List == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(it.List)
}

// UnmarshalJSON decodes an array, or a range without unknown fields.
func (it *Items) UnmarshalJSON(data []byte) error {
	const how = `use an array, and a range as {"from": 1, "to": 20, "by": 1}`
	*it = Items{}
	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("[")) {
		var err error
		it.List, err = listOf(bytes.Clone(data))
		return err
	}
	if !bytes.HasPrefix(data, []byte("{")) {
		return fmt.Errorf("items: %s", how)
	}
	var r struct {
		From *int64 `json:"from"`
		To   *int64 `json:"to"`
		By   *int64 `json:"by"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return fmt.Errorf("items: %w: %s", err, how)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("items: there is something behind their end: %s", how)
	}
	if r.From == nil || r.To == nil {
		return fmt.Errorf("items: a range needs from and to: %s", how)
	}
	it.Range = &Range{From: *r.From, To: *r.To, By: 1}
	if r.By != nil {
		it.Range.By = *r.By
	}
	return nil
}

// listOf returns the elements of an array as parts of it: a copy of each would cost more than
// the array. Of too many, one more than [MaxItems] is returned.
func listOf(array []byte) ([]json.RawMessage, error) {
	list := []json.RawMessage{}
	d := jsontext.NewDecoder(bytes.NewBuffer(array), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	for len(list) <= MaxItems && d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		end := d.InputOffset()
		list = append(list, json.RawMessage(array[end-int64(len(v)):end:end]))
	}
	return list, nil
}
