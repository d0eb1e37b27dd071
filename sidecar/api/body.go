package api

import (
	"bytes"
	jsonv1 "encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/strict"
	"github.com/berthhq/berth/pool"
)

var instantType = reflect.TypeFor[run.Instant]()

// Decoder reads a body strictly: it refuses what is not one JSON object in UTF-8, an unknown
// field, and a name that is given twice.
type Decoder[T any] struct {
	// positive are the numbers that must be left out rather than be 0.
	positive []string
	// optional bodies may be left out.
	optional bool
}

// NewDecoder returns a decoder of bodies of type T. Optional bodies may be left out.
func NewDecoder[T any](optional bool) Decoder[T] {
	d := Decoder[T]{optional: optional}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if f.Tag.Get("minimum") == "1" {
			d.positive = append(d.positive, nameOf(f))
		}
	}
	return d
}

// Decode reads a body. Its error is a [*Problem].
func (d *Decoder[T]) Decode(body []byte) (v T, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		if d.optional {
			return v, nil
		}
		return v, NewProblem(problem.Malformed, "the body is empty: send a JSON object")
	}
	if err := unmarshal(body, &v); err != nil {
		return v, decodeProblem(err)
	}
	if bytes.TrimSpace(body)[0] != '{' { // the library takes null for no fields
		return v, NewProblem(problem.Malformed, "the body is not a JSON object that can be read: must be an object, not null")
	}
	for _, name := range d.positive {
		if !bytes.Contains(body, []byte(name)) && !bytes.Contains(body, []byte{'\\'}) {
			continue // nearly always: it need not be read again
		}
		var given map[string]jsontext.Value
		_ = json.Unmarshal(body, &given) // it was read before
		if text := string(given[name]); text == "0" || text == "-0" {
			return v, FieldProblem(FieldError{Field: name, Message: "0 is out of range: use 1 and more; leave it out to name none"})
		}
	}
	return v, nil
}

func unmarshal(data []byte, v any) error {
	return json.Unmarshal(data, v, json.RejectUnknownMembers(true))
}

// nameOf returns the name that a field has in JSON.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// UnreadableBody returns the problem of a body that is not JSON.
func UnreadableBody(err error) error { return decodeProblem(err) }

// decodeProblem returns the problem of a body that can't be read.
func decodeProblem(err error) *Problem {
	f := faultOf(err, "")
	if f.Field == "" {
		return NewProblem(problem.Malformed, "the body is not a JSON object that can be read: %s", f.Message)
	}
	p := FieldProblem(FieldError{Field: problem.Clip(f.Field), Message: f.Message})
	if f.Code == problem.Malformed {
		p.Title, p.Status, p.Code = f.Code.Title(), f.Code.Status(), string(f.Code)
	}
	return p
}

// faultOf returns what is wrong with a body or a part of it, which is the field at; empty for
// the body. An error of a method that reads a part is about a field of that part.
func faultOf(err error, at string) *problem.Error {
	var (
		syntax   *jsontext.SyntacticError
		semantic *json.SemanticError
		wrong    *jsonv1.UnmarshalTypeError
		found    *problem.Error
	)
	wrap := func(code problem.Code, message string) *problem.Error {
		return &problem.Error{Code: code, Field: at, Message: message}
	}
	switch {
	case errors.As(err, &semantic):
		at = strict.Join(at, strict.Field(semantic.JSONPointer))
		switch inner := semantic.Err; {
		case errors.Is(inner, json.ErrUnknownName) && at == "retain" && semantic.GoType == reflect.TypeFor[PoolChange]():
			return wrap(problem.Invalid, pool.RetainRemoved)
		case errors.Is(inner, json.ErrUnknownName):
			return wrap(problem.Invalid, "there is no such field: there are "+fieldsOf(semantic.GoType))
		case inner != nil && (readsItself(semantic.GoType) || errors.As(inner, &wrong)):
			return faultOf(inner, at)
		default:
			given := string(semantic.JSONValue)
			if given == "" {
				given = kindText(semantic.JSONKind)
			}
			return wrap(problem.Invalid, typeMessage(at, semantic.GoType, given))
		}
	case errors.As(err, &syntax):
		at = strict.Join(at, strict.Field(syntax.JSONPointer))
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return wrap(problem.Invalid, strict.Reason(syntax))
		}
		return wrap(problem.Malformed, strict.Reason(syntax))
	case errors.As(err, &wrong):
		at = strict.Join(at, wrong.Field)
		return wrap(problem.Invalid, typeMessage(at, wrong.Type, wrong.Value))
	case errors.As(err, &found):
		at = strict.Join(at, found.Field)
		return wrap(found.Code, found.Message)
	}
	return wrap(problem.Invalid, strings.TrimPrefix(err.Error(), at[strings.LastIndexByte(at, '.')+1:]+": "))
}

// readsItself reports whether a type has a method that reads it, with errors of its own.
func readsItself(t reflect.Type) bool {
	return t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[jsonv1.Unmarshaler]())
}

// fieldsOf lists the fields of a type.
func fieldsOf(t reflect.Type) string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if name := nameOf(f); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// kindText describes a JSON value.
func kindText(k jsontext.Kind) string {
	switch k {
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 't', 'f':
		return "a truth value"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "null"
}

// typeMessage states what a field of type t takes, and what it was given.
func typeMessage(field string, t reflect.Type, given string) string {
	if t.Kind() == reflect.Pointer { // a field that may be left out
		t = t.Elem()
	}
	what := takes(t)
	if name := field[strings.LastIndexByte(field, '.')+1:]; t == reflect.TypeFor[Duration]() && name == reserveAfterName {
		what += `, or "-1" for never`
	}
	return fmt.Sprintf("must be %s, not %s", what, given)
}

// reserveAfterName is the one duration that can be -1.
const reserveAfterName = "reserve_after"

// takes states what a field of a type takes.
func takes(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration](), t == reflect.TypeFor[step.Duration]():
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

const jsonType = "application/json"

// encode writes the body of an answer.
func encode(w io.Writer, v any) error {
	enc := jsonv1.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Write answers a request with a body, without huma.
func Write(w http.ResponseWriter, status int, body any) { write(w, status, jsonType, body) }

func write(w http.ResponseWriter, status int, kind string, body any) {
	var text bytes.Buffer
	if err := encode(&text, body); err != nil {
		panic(fmt.Sprintf("api: encode an answer: %v", err))
	}
	w.Header()["Content-Type"] = []string{kind}
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the client may be gone
}
