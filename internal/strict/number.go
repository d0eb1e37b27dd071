// Package strict reads files that people write, in YAML or JSON, to nodes with line and
// column. A value that YAML readers disagree about is refused.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// IsNull reports whether a node has no value.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// IsNumber reports whether a node is a number that is not in quotes.
func IsNumber(n *yaml.Node) bool {
	tag := n.ShortTag()
	return n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float")
}

// Ambiguous returns what to tell the user about a number that readers take for
// different values, and "" for any other node. With zeros in front it is octal in older
// YAML, and most often an id; prefixes such as 0x and '_' are lost in JSON.
func Ambiguous(n *yaml.Node) string {
	if !IsNumber(n) {
		return ""
	}
	digits := strings.TrimLeft(n.Value, "+-")
	octal := len(digits) > 1 && digits[0] == '0' && (digits[1] >= '0' && digits[1] <= '9' || strings.IndexByte("xXoObB", digits[1]) >= 0)
	if !octal && !strings.Contains(digits, "_") {
		return ""
	}
	return fmt.Sprintf("%s can be read in several ways: write %q, with the quotes, if it is a text, or the number in plain digits", n.Value, n.Value)
}

// SyntaxError is the error about a file that can't be read.
type SyntaxError struct {
	Line   int    // 1 if the line is not known
	Column int    // in bytes; 0 if it is not known
	Field  string // the place within the JSON; empty if it is not known, or the whole
	Reason string
}

// Error returns the place and the reason.
func (e *SyntaxError) Error() string {
	if e.Column == 0 {
		return fmt.Sprintf("line %d: %s", e.Line, e.What())
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.What())
}

// What returns the reason, behind the field if there is one.
func (e *SyntaxError) What() string {
	if e.Field == "" {
		return e.Reason
	}
	return clip(strings.ToValidUTF8(e.Field, "\ufffd")) + ": " + e.Reason
}

// clip shortens a field that a message names.
func clip(field string) string {
	const most = 64
	if len(field) <= most {
		return field
	}
	cut := most - len("…")
	for !utf8.RuneStart(field[cut]) {
		cut--
	}
	return field[:cut] + "…"
}

// Document reads a file that is one document of YAML, or one object of JSON, and returns its
// top node; nil if the file is empty. A file whose name ends in .json must be JSON. It can begin with a byte order
// mark. That a name is given twice is left to the caller. The error is a [*SyntaxError].
func Document(name string, data []byte) (*yaml.Node, error) {
	data = Text(data)
	switch trimmed := bytes.TrimSpace(data); {
	case len(trimmed) == 0:
		return nil, nil
	case strings.EqualFold(filepath.Ext(name), ".json"), trimmed[0] == '{' && json.Valid(trimmed):
		return jsonNode(data)
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(data, err)
	}
	if err := in.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &SyntaxError{Line: secondDocument(data), Column: 1, Reason: "the file must be one YAML document: another one begins here"}
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	if tooDeep(doc.Content[0], 1) {
		return nil, &SyntaxError{Line: 1, Reason: fmt.Sprintf(deepReason, MaxDepth)}
	}
	return doc.Content[0], nil
}

// secondDocument returns the line in which the first document of a file ends and the second one begins.
func secondDocument(data []byte) int {
	begun := false
	for i, line := range bytes.Split(data, []byte("\n")) {
		text := bytes.TrimRight(line, " \t\r")
		switch {
		case bytes.HasPrefix(text, []byte("---")), bytes.HasPrefix(text, []byte("...")):
			if begun {
				return i + 1
			}
			begun = len(text) > len("---") // it can begin behind the mark
		case len(text) > 0 && text[0] != '#' && text[0] != '%':
			begun = true
		}
	}
	return 1
}

// tooDeep reports whether a node at a depth has more levels than [MaxDepth].
func tooDeep(n *yaml.Node, depth int) bool {
	if len(n.Content) > 0 && depth > MaxDepth {
		return true
	}
	return slices.ContainsFunc(n.Content, func(child *yaml.Node) bool { return tooDeep(child, depth+1) })
}

// isControl reports whether a character is not allowed in YAML.
func isControl(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r) }

// syntaxError reads the message of the YAML reader: "yaml: line 3: did not find …". The column is that of the first
// text in the line, which the reader does not tell.
func syntaxError(data []byte, err error) *SyntaxError {
	e := &SyntaxError{Line: 1, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if rest, ok := strings.CutPrefix(e.Reason, "line "); ok {
		number, reason, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			e.Line, e.Reason = n, reason
		}
	}
	lines := bytes.Split(data, []byte("\n"))
	if e.Line > len(lines) {
		return e
	}
	if at := bytes.IndexFunc(data, isControl); at >= 0 && strings.HasPrefix(e.Reason, "control characters") {
		before := data[:at]
		return &SyntaxError{Line: 1 + bytes.Count(before, []byte("\n")), Column: at - bytes.LastIndexByte(before, '\n'), Reason: e.Reason}
	}
	line := lines[e.Line-1]
	e.Column = 1 + len(line) - len(bytes.TrimLeft(line, " \t"))
	// The reader names the line of the tab, or the one before it.
	for n := e.Line; n <= min(e.Line+1, len(lines)); n++ {
		indent := lines[n-1][:len(lines[n-1])-len(bytes.TrimLeft(lines[n-1], " \t"))]
		if at := bytes.IndexByte(indent, '\t'); at >= 0 && strings.Contains(e.Reason, "tab") || at >= 0 && strings.Contains(e.Reason, "cannot start any token") {
			return &SyntaxError{Line: n, Column: at + 1, Reason: "tabs are not allowed: indent with spaces"}
		}
	}
	return e
}

// jsonNode returns the top node of a JSON text. The YAML reader does not accept all escapes of JSON.
func jsonNode(data []byte) (*yaml.Node, error) {
	if wrong := find(data, MaxDepth, jsontext.AllowDuplicateNames(true)); wrong != nil {
		return nil, wrong
	}
	r := jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.dec.UseNumber()
	return r.value(), nil
}

// jsonReader makes nodes of a valid JSON text, with their lines and columns.
type jsonReader struct {
	data []byte
	dec  *json.Decoder
	// at is how far the lines are counted: line begins at start.
	at, start, line int
}

// value reads the next value, nil at the end of an object or a list.
func (r *jsonReader) value() *yaml.Node {
	n := &yaml.Node{}
	n.Line, n.Column = r.place()
	token, err := r.dec.Token()
	if err != nil {
		return nil
	}
	switch v := token.(type) {
	case json.Delim:
		switch v {
		case '{':
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		case '[':
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		default:
			return nil
		}
		for child := r.value(); child != nil; child = r.value() {
			n.Content = append(n.Content, child)
		}
		return n
	case string:
		n.Tag, n.Value = "!!str", v
	case json.Number:
		n.Tag, n.Value = "!!int", v.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", "false"
		if v {
			n.Value = "true"
		}
	case nil:
		n.Tag = "!!null"
	}
	n.Kind = yaml.ScalarNode
	return n
}

// place returns where the next token begins.
func (r *jsonReader) place() (line, column int) {
	next := int(r.dec.InputOffset())
	for next < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[next]) >= 0 {
		next++
	}
	for ; r.at < next; r.at++ {
		if r.data[r.at] == '\n' {
			r.line, r.start = r.line+1, r.at+1
		}
	}
	return r.line, next - r.start + 1
}
