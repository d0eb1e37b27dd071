package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep a file can be nested, in levels.
const MaxDepth = 128

const deepReason = "it is nested too deep: use at most %d levels"

// Text returns a text without the byte order marks that some editors and shells write first.
func Text(data []byte) []byte { return bytes.TrimLeft(data, "\ufeff") }

// Check returns a [*SyntaxError] unless data is one JSON value in UTF-8 that all readers take
// for the same: no object has a name twice, no text half a surrogate pair, and it is nested at
// most depth levels deep.
func Check(data []byte, depth int) error {
	if jsontext.Value(data).IsValid() && !deeper(data, depth) {
		return nil // nearly always
	}
	if wrong := find(data, depth); wrong != nil {
		return wrong
	}
	return nil
}

// find returns what is wrong with a value, and where.
func find(data []byte, depth int, opts ...jsontext.Options) *SyntaxError {
	d := jsontext.NewDecoder(bytes.NewBuffer(data), opts...)
	for {
		token, err := d.ReadToken()
		switch {
		case err != nil:
			return fault(data, err)
		case d.StackDepth() > depth && (token.Kind() == '{' || token.Kind() == '['):
			e := at(data, int(d.InputOffset())-1)
			e.Reason = fmt.Sprintf(deepReason, depth)
			return e
		case d.StackDepth() == 0:
			return rest(data, int(d.InputOffset()))
		}
	}
}

// rest returns an error if anything but space is behind an offset.
func rest(data []byte, offset int) *SyntaxError {
	left := bytes.TrimLeft(data[offset:], " \t\r\n")
	if len(left) == 0 {
		return nil
	}
	e := at(data, len(data)-len(left))
	e.Reason = "there is something after the value"
	return e
}

// fault returns the error of a decoder.
func fault(data []byte, err error) *SyntaxError {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) { // the end of the text
		e := at(data, len(data))
		e.Reason = "it ends within the value"
		return e
	}
	offset := min(int(syntax.ByteOffset), len(data))
	if errors.Is(err, jsontext.ErrDuplicateName) { // the name comes next
		offset += len(data[offset:]) - len(bytes.TrimLeft(data[offset:], " \t\r\n,:"))
	}
	e := at(data, offset)
	e.Field, e.Reason = Field(syntax.JSONPointer), Reason(syntax)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Reason = "it ends within the value"
	case isLastComma(data[offset:]):
		e.Reason = "there is a comma after the last value: remove it"
	}
	return e
}

// isLastComma reports whether a text begins with a comma that no value follows.
func isLastComma(text []byte) bool {
	next, comma := bytes.CutPrefix(text, []byte(","))
	next = bytes.TrimLeft(next, " \t\r\n")
	return comma && len(next) > 0 && (next[0] == ']' || next[0] == '}')
}

// at returns an error at an offset.
func at(data []byte, offset int) *SyntaxError {
	before := data[:offset]
	return &SyntaxError{Line: 1 + bytes.Count(before, []byte("\n")), Column: offset - bytes.LastIndexByte(before, '\n')}
}

// Array calls do with each element of a JSON array, which can begin with a byte order mark, and
// with the error of [Check] about the element, whose place is that in data. An array that can't be
// divided into elements is a [*SyntaxError].
func Array(data []byte, do func(value json.RawMessage, err error)) error {
	data = Text(data)
	d := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if token, err := d.ReadToken(); err != nil {
		return fault(data, err)
	} else if token.Kind() != '[' {
		e := at(data, int(d.InputOffset()))
		e.Reason = "it must be an array"
		return e
	}
	for i := 0; d.PeekKind() != ']'; i++ {
		value, err := d.ReadValue()
		if err != nil {
			return fault(data, err)
		}
		end := int(d.InputOffset())
		start := end - len(value)
		one := data[start:end:end]
		var wrong *SyntaxError
		if err := Check(one, MaxDepth-1); errors.As(err, &wrong) {
			place := at(data, start)
			if wrong.Line == 1 {
				wrong.Column += place.Column - 1
			}
			wrong.Line += place.Line - 1
			wrong.Field = Join(fmt.Sprintf("[%d]", i), wrong.Field)
			do(one, wrong)
			continue
		}
		do(one, nil)
	}
	if _, err := d.ReadToken(); err != nil {
		return fault(data, err)
	}
	if wrong := rest(data, int(d.InputOffset())); wrong != nil {
		return wrong
	}
	return nil
}

// deeper reports whether valid JSON has more levels than depth.
func deeper(data []byte, depth int) bool {
	now, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			if now++; now > depth {
				return true
			}
		case c == ']' || c == '}':
			now--
		}
	}
	return false
}

// Reason returns what is wrong with a JSON text, for a person.
func Reason(err *jsontext.SyntacticError) string {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return "it is given twice"
	}
	reason := strings.TrimPrefix(err.Err.Error(), "jsontext: ")
	if strings.HasPrefix(reason, "invalid surrogate pair") {
		return `it has half of a surrogate pair, such as \ud800 without the other half`
	}
	return reason
}

// Field writes a place in a JSON text for a person: /steps/0/name is steps[0].name.
func Field(at jsontext.Pointer) string {
	var field strings.Builder // a text can be deep
	for token := range at.Tokens() {
		if _, err := strconv.Atoi(token); err == nil {
			token = "[" + token + "]"
		} else if field.Len() > 0 && token != "" && token[0] != '[' {
			token = "." + token
		}
		field.WriteString(token)
	}
	return field.String()
}

// Join puts a place before one within it.
func Join(outer, inner string) string {
	if outer == "" || inner == "" || inner[0] == '[' {
		return outer + inner
	}
	return outer + "." + inner
}
