package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
)

var instantType = reflect.TypeFor[run.Instant]()

// Decoder reads a body strictly: it refuses what is no JSON object, a field that is not known
// in just this spelling, and a name that is given twice.
type Decoder[T any] struct {
	shape *shape
	// optional bodies may be left out.
	optional bool
}

// NewDecoder returns a decoder of bodies of type T. Optional bodies may be left out.
func NewDecoder[T any](optional bool) Decoder[T] {
	return Decoder[T]{shape: shapeOf(reflect.TypeFor[T]()), optional: optional}
}

// Decode reads a body. Its error is a [*Problem].
func (d *Decoder[T]) Decode(body []byte) (v T, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		if d.optional {
			return v, nil
		}
		return v, NewProblem(problem.Malformed, "the body is empty: send a JSON object")
	}
	if !json.Valid(body) {
		var any json.RawMessage
		return v, NewProblem(problem.Malformed, "the body is no JSON: %s", json.Unmarshal(body, &any))
	}
	if !wellFormed(body) {
		return v, garbledProblem(body)
	}
	if faults := scanNames(body, d.shape); len(faults) > 0 {
		return v, FieldProblem(faults...)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, typeProblem(err)
	}
	return v, nil
}

// typeProblem returns the problem of a field that has a value of the wrong type.
func typeProblem(err error) *Problem {
	if found := (*problem.Error)(nil); errors.As(err, &found) {
		return ProblemOf(found)
	}
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return NewProblem(problem.Malformed, "the body can't be read: %s", err)
	}
	if wrong.Field == "" {
		return NewProblem(problem.Malformed, "the body is no JSON object, but %s", wrong.Value)
	}
	return FieldProblem(FieldError{Field: problem.Clip(wrong.Field), Message: typeMessage(wrong, wrong.Type)})
}

// typeMessage states what a field of type t takes, and what it was given.
func typeMessage(wrong *json.UnmarshalTypeError, t reflect.Type) string {
	if t.Kind() == reflect.Pointer { // a field that may be left out
		t = t.Elem()
	}
	what := takes(t)
	if name := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]; t == reflect.TypeFor[Duration]() && name == reserveAfterName {
		what += `, or "-1" for never`
	}
	given := wrong.Value
	switch given {
	case "number", "string":
		given = "a " + given
	case "array", "object":
		given = "an " + given
	case "bool":
		given = "a truth value"
	}
	return fmt.Sprintf("must be %s, not %s", what, given)
}

// reserveAfterName is the one duration that can be -1.
const reserveAfterName = "reserve_after"

// takes states what a field of a type takes.
func takes(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration]():
		return `a duration such as "30s", "5m" or "1h30m"`
	case t == instantType:
		return "a " + run.Instant{}.TypeName()
	case t == reflect.TypeFor[Slots]():
		return `an object with a number of slots for each pool, as {"pool": 1}`
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "a whole number that can be used here"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Map, t.Kind() == reflect.Struct:
		return "an object"
	case t.Kind() == reflect.Slice:
		return "an array"
	}
	return "a value of type " + t.String()
}
