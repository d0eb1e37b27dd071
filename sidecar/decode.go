package sidecar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/berthhq/berth/internal/problem"
)

// decoder reads a body strictly: what is no JSON object, a field that is not
// known, in just this spelling, and a name that is given twice are refused.
type decoder[T any] struct {
	shape *shape
	// optional bodies may be left out.
	optional bool
}

func newDecoder[T any](optional bool) decoder[T] {
	return decoder[T]{shape: shapeOf(reflect.TypeFor[T]()), optional: optional}
}

// decode reads a body. Its error is a [*Problem].
func (d *decoder[T]) decode(body []byte) (v T, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		if d.optional {
			return v, nil
		}
		return v, newProblem(problem.Malformed, "the body is empty: send a JSON object")
	}
	if !json.Valid(body) {
		var any json.RawMessage
		return v, newProblem(problem.Malformed, "the body is no JSON: %s", json.Unmarshal(body, &any))
	}
	if !wellFormed(body) {
		return v, garbledProblem(body)
	}
	if faults := scanNames(body, d.shape); len(faults) > 0 {
		return v, fieldProblem(faults...)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, typeProblem(err)
	}
	return v, nil
}

// typeProblem tells which field has a value of the wrong type.
func typeProblem(err error) *Problem {
	if found := (*problem.Error)(nil); errors.As(err, &found) {
		return problemOf(found)
	}
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return newProblem(problem.Malformed, "the body can't be read: %s", err)
	}
	if wrong.Field == "" {
		return newProblem(problem.Malformed, "the body is no JSON object, but %s", wrong.Value)
	}
	return fieldProblem(FieldError{Field: clip(wrong.Field), Message: fmt.Sprintf("%s is no %s", wrong.Value, takes(wrong.Type))})
}

// takes names what a field of a type takes.
func takes(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration: write 30s, 5m or 1h30m"
	case t == slotsType:
		return `set of slots: write {"pool": 1}`
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "whole number that can be used here"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Map, t.Kind() == reflect.Struct:
		return "object"
	case t.Kind() == reflect.Slice:
		return "list"
	}
	return t.Kind().String()
}
