package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/problem"
)

// maxFaults bounds how many wrong names are reported.
const maxFaults = 10

// shape is which names an object may have. A nil shape is that of an object with
// names of any kind, or of no object.
type shape struct {
	names []string
	// needed may not be left out.
	needed []string
	// positive are numbers of which 0 would count as left out.
	positive []string
	// of are the shapes of the objects in lists, by name.
	of map[string]*shape
}

// shapeOf returns the shape of a struct. What may not be left out is checked in
// lists only: what a body as a whole needs is for its endpoint to check.
func shapeOf(t reflect.Type) *shape {
	sh := &shape{of: map[string]*shape{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		sh.names = append(sh.names, name)
		if !strings.Contains(options, "omit") {
			sh.needed = append(sh.needed, name)
		}
		if f.Tag.Get("minimum") == "1" {
			sh.positive = append(sh.positive, name)
		}
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			sh.of[name] = shapeOf(f.Type.Elem())
		}
	}
	return sh
}

// nameScan checks the names in valid JSON.
type nameScan struct {
	data   []byte
	at     int
	path   []string
	faults []FieldError
	// garbled are the fields that are no text: see wellFormed.
	garbled []string
}

// scanNames finds names that are given twice, and those that are not of a shape,
// or that it needs.
func scanNames(data []byte, top *shape) []FieldError {
	s := nameScan{data: data}
	s.value(&shape{names: top.names, positive: top.positive, of: top.of})
	return s.faults
}

func (s *nameScan) fault(name, format string, args ...any) {
	if len(s.faults) == maxFaults {
		return
	}
	field := strings.Join(append(slices.Clone(s.path), name), ".")
	s.faults = append(s.faults, FieldError{Field: problem.Clip(field), Message: fmt.Sprintf(format, args...)})
}

// next returns the next byte that is no white space, and stays there.
func (s *nameScan) next() byte {
	for {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
}

// value passes over a value.
func (s *nameScan) value(sh *shape) {
	switch s.next() {
	case '{':
		s.object(sh)
	case '[':
		s.array(sh)
	case '"':
		s.text()
	default:
		for s.at < len(s.data) && strings.IndexByte(",]} \t\r\n", s.data[s.at]) < 0 {
			s.at++
		}
	}
}

// array checks a list, of which each object has the shape.
func (s *nameScan) array(sh *shape) {
	s.at++ // [
	last := len(s.path) - 1
	for i := 0; s.next() != ']'; i++ {
		if sh != nil && last >= 0 {
			list := s.path[last]
			s.path[last] = fmt.Sprintf("%s[%d]", list, i)
			s.value(sh)
			s.path[last] = list
		} else {
			s.value(nil)
		}
		if s.next() == ',' {
			s.at++
		}
	}
	s.at++
}

// object checks the names of an object; with a shape, they must be of it.
func (s *nameScan) object(sh *shape) {
	s.at++ // {
	var seen names
	for s.next() != '}' {
		name := s.text()
		switch {
		case !seen.add(name):
			s.fault(name, "it is given twice")
		case sh != nil && !slices.Contains(sh.names, name):
			s.fault(name, "there is no such field: there are %s", strings.Join(sh.names, ", "))
		}
		s.next()
		s.at++ // :
		s.path = append(s.path, name)
		first := s.next()
		begin := s.at
		if sh != nil && first == '[' {
			s.value(sh.of[name])
		} else {
			s.value(nil)
		}
		s.path = s.path[:len(s.path)-1]
		if sh != nil && slices.Contains(sh.positive, name) && isZero(s.data[begin:s.at]) {
			s.fault(name, "0 is out of range: allowed is 1 and more; leave it out to name none")
		}
		if s.next() == ',' {
			s.at++
		}
	}
	s.at++
	if sh == nil {
		return
	}
	for _, name := range sh.needed {
		if !seen.has(name) {
			s.fault(name, "it is missing")
		}
	}
}

// text passes over a string and returns it.
func (s *nameScan) text() string {
	begin := s.at
	plain := true
	for s.at++; s.data[s.at] != '"'; s.at++ {
		switch c := s.data[s.at]; {
		case c == '\\':
			s.at++
			plain = false
		case c >= 0x80:
			plain = false
		}
	}
	s.at++
	raw := s.data[begin:s.at]
	if plain {
		return string(raw[1 : len(raw)-1])
	}
	var text string
	_ = json.Unmarshal(raw, &text) // it is valid
	if !wellFormed(raw) {
		s.garbled = append(s.garbled, cmp.Or(strings.Join(s.path, "."), text))
	}
	return text
}

// names is a set that is a list while it is small.
type names struct {
	few  []string
	many map[string]bool
}

func (n *names) has(name string) bool { return n.many[name] || slices.Contains(n.few, name) }

// add reports whether a name is new.
func (n *names) add(name string) bool {
	const most = 8
	switch {
	case n.many != nil:
		if n.many[name] {
			return false
		}
		n.many[name] = true
	case slices.Contains(n.few, name):
		return false
	case len(n.few) < most:
		n.few = append(n.few, name)
	default:
		n.many = map[string]bool{name: true}
		for _, f := range n.few {
			n.many[f] = true
		}
	}
	return true
}

// wellFormed reports whether the strings of valid JSON are text: in UTF-8, with both halves of
// each pair of escapes. Package json would put U+FFFD for the rest, and so make two
// different texts equal.
func wellFormed(data []byte) bool {
	if !utf8.Valid(data) {
		return false
	}
	for {
		i := bytes.IndexByte(data, '\\')
		if i < 0 {
			return true
		}
		data = data[i:]
		r, ok := escaped(data)
		switch {
		case !ok:
			data = data[2:] // another escape
			continue
		case !utf16.IsSurrogate(r):
			data = data[escapeLen:]
			continue
		}
		low, ok := escaped(data[escapeLen:])
		if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
			return false
		}
		data = data[2*escapeLen:]
	}
}

// escapeLen is the length of an escape such as \u00e9.
const escapeLen = 6

// escaped reads such an escape, if data begins with one.
func escaped(data []byte) (rune, bool) {
	if len(data) < escapeLen || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(data[2:escapeLen]), 16, 16)
	return rune(n), err == nil
}

// garbledProblem is that of valid JSON which is not well-formed.
func garbledProblem(body []byte) *Problem {
	s := nameScan{data: body}
	s.value(nil)
	var faults []FieldError
	for _, field := range s.garbled[:min(len(s.garbled), maxFaults)] {
		faults = append(faults, FieldError{Field: problem.Clip(field), Message: "it is no text in UTF-8"})
	}
	p := FieldProblem(faults...)
	p.Title, p.Status, p.Code = problem.Malformed.Title(), problem.Malformed.Status(), string(problem.Malformed)
	return p
}

// isZero reports whether a value in JSON is the whole number 0.
func isZero(value []byte) bool { return string(value) == "0" || string(value) == "-0" }
