package main

import (
	"bytes"
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// jsonNode reads a text that is a JSON object; it is nil if the text is none. YAML
// is said to include JSON, but its reader stumbles over some escapes.
func jsonNode(data []byte) *yaml.Node {
	if trimmed := bytes.TrimSpace(data); len(trimmed) == 0 || trimmed[0] != '{' || !json.Valid(trimmed) {
		return nil
	}
	r := jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.dec.UseNumber()
	return r.value()
}

// jsonReader makes nodes of a valid JSON text, with where they stand.
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

// place is where the next token stands.
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
