package sidecar

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// maxFaults bounds how many names are told to be wrong.
const maxFaults = 10

// nameScan looks at the names in valid JSON.
type nameScan struct {
	data   []byte
	at     int
	path   []string
	faults []FieldError
}

// scanNames finds names that are given twice, and those at the top that are not
// among fields.
func scanNames(data []byte, fields []string) []FieldError {
	s := nameScan{data: data}
	s.value(fields)
	return s.faults
}

func (s *nameScan) fault(name, format string, args ...any) {
	if len(s.faults) == maxFaults {
		return
	}
	field := strings.Join(append(slices.Clone(s.path), name), ".")
	s.faults = append(s.faults, FieldError{Field: clip(field), Message: fmt.Sprintf(format, args...)})
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
func (s *nameScan) value(fields []string) {
	switch s.next() {
	case '{':
		s.object(fields)
	case '[':
		s.array()
	case '"':
		s.text()
	default:
		for s.at < len(s.data) && strings.IndexByte(",]} \t\r\n", s.data[s.at]) < 0 {
			s.at++
		}
	}
}

func (s *nameScan) array() {
	s.at++ // [
	for s.next() != ']' {
		s.value(nil)
		if s.next() == ',' {
			s.at++
		}
	}
	s.at++
}

// object looks at the names of an object; with fields, they must be among those.
func (s *nameScan) object(fields []string) {
	s.at++ // {
	var seen names
	for s.next() != '}' {
		name := s.text()
		switch {
		case !seen.add(name):
			s.fault(name, "it is given twice")
		case fields != nil && !slices.Contains(fields, name):
			s.fault(name, "there is no such field: there are %s", strings.Join(fields, ", "))
		}
		s.next()
		s.at++ // :
		s.path = append(s.path, name)
		s.value(nil)
		s.path = s.path[:len(s.path)-1]
		if s.next() == ',' {
			s.at++
		}
	}
	s.at++
}

// text passes over a string and returns what it says.
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
	return text
}

// names is a set that is a list while it is small.
type names struct {
	few  []string
	many map[string]bool
}

// add tells whether a name is new.
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
