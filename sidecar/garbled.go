package sidecar

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/problem"
)

// wellFormed tells whether valid JSON says in its strings what can be known: in
// UTF-8, with both halves of each pair of escapes. Package json would put U+FFFD
// for the rest, and so make one of two texts that differ.
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
	p := fieldProblem(faults...)
	p.Title, p.Status, p.Code = problem.Malformed.Title(), problem.Malformed.Status(), string(problem.Malformed)
	return p
}

// isZero tells whether a value in JSON is the whole number 0.
func isZero(value []byte) bool { return string(value) == "0" || string(value) == "-0" }
