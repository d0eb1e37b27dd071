package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// declared is what a file says of the pools.
type declared struct {
	pools map[string]declaredPool
}

// declaredPool is a pool in a file. A limit must be there; a lease duration or a
// reservation that is not is the default; and a pause is left alone unless the
// file speaks of it.
type declaredPool struct {
	spec   pool.Spec
	paused *bool
}

// change is what has to be set for a pool to be as declared.
func (d declaredPool) change() pool.Change {
	s := d.spec
	return pool.Change{Limit: &s.Limit, LeaseDuration: &s.LeaseDuration, ReserveAfter: &s.ReserveAfter, Paused: d.paused}
}

// fileProblems is everything that is wrong with a file.
type fileProblems struct {
	name  string
	lines []string // "12: limit: …"
}

// Error lists the problems, one a line.
func (p *fileProblems) Error() string {
	if len(p.lines) == 1 {
		return p.name + ":" + p.lines[0]
	}
	text := fmt.Sprintf("%s: %d problems", p.name, len(p.lines))
	for _, line := range p.lines {
		text += "\n  " + p.name + ":" + line
	}
	return text
}

// Unwrap makes them one problem of the table.
func (p *fileProblems) Unwrap() error { return problem.New(problem.Invalid, "the file is not valid") }

// decodeDeclared reads a file of the form
//
//	pools:
//	  NAME:
//	    limit: 3
//	    lease_duration: 5m
//	    reserve_after: 1m
//	    paused: false
//
// strictly. Its error is [*fileProblems], with all of them.
func decodeDeclared(name string, data []byte) (declared, error) {
	d := decoder{found: declared{pools: map[string]declaredPool{}}}
	d.document(data)
	if len(d.lines) > 0 {
		return declared{}, &fileProblems{name: name, lines: d.lines}
	}
	return d.found, nil
}

// decoder walks through a document and notes what is wrong with it.
type decoder struct {
	found declared
	lines []string
}

func (d *decoder) wrong(line int, format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf("%d: ", line)+fmt.Sprintf(format, args...))
}

func (d *decoder) document(data []byte) {
	in := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.wrong(1, "the file is empty: it needs pools")
		return
	case err != nil:
		d.syntax(err)
		return
	}
	if err := in.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		d.wrong(1, "the file must be one YAML document")
		return
	}
	root := doc.Content[0]
	seen := false
	d.mapping(root, "the file", []string{"pools"}, func(_ string, _, pools *yaml.Node) {
		seen = true
		d.mapping(pools, "pools", nil, d.pool)
	})
	if !seen && len(d.lines) == 0 {
		d.wrong(root.Line, "pools is missing")
	}
}

// syntax notes what the YAML reader says: "yaml: line 3: did not find …".
func (d *decoder) syntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, what, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			line, text = n, what
		}
	}
	d.wrong(line, "%s", text)
}

// mapping calls do for each entry of a mapping whose key is allowed, and given
// once. Without a list all keys are.
func (d *decoder) mapping(n *yaml.Node, what string, allowed []string, do func(path string, key, value *yaml.Node)) {
	if n.Kind == yaml.AliasNode {
		d.wrong(n.Line, "%s: aliases are not allowed", what)
		return
	}
	if n.Kind != yaml.MappingNode {
		if isEmpty(n) && allowed == nil {
			return // "pools:" with nothing below it: no pools
		}
		d.wrong(n.Line, "%s must be a mapping", what)
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		first, twice := lines[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.wrong(key.Line, "%s: a name must be a text", what)
		case twice:
			d.wrong(key.Line, "%s: %q is given twice, first in line %d", what, key.Value, first)
		case allowed != nil && !slices.Contains(allowed, key.Value):
			d.wrong(key.Line, "%s: there is no %q, only %s", what, key.Value, strings.Join(allowed, ", "))
		default:
			lines[key.Value] = key.Line
			do(what+"."+key.Value, key, value)
		}
	}
}

func isEmpty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// pool reads one pool.
func (d *decoder) pool(path string, key, n *yaml.Node) {
	if err := pool.ValidateName(key.Value); err != nil {
		d.wrong(key.Line, "%s", messageOf(err))
		return
	}
	p := declaredPool{spec: pool.DefaultSpec()}
	limit := false
	before := len(d.lines)
	lines := map[string]int{}
	d.mapping(n, path, []string{"limit", "lease_duration", "reserve_after", "paused"}, func(path string, key, value *yaml.Node) {
		limit = limit || key.Value == "limit"
		lines[key.Value] = value.Line
		if value.Kind != yaml.ScalarNode || isEmpty(value) {
			d.wrong(value.Line, "%s must be a single value", path)
		} else if must := p.set(key.Value, value.Value); must != "" {
			d.wrong(value.Line, "%s can't be %q: it must be %s", path, value.Value, must)
		}
	})
	if len(d.lines) > before {
		return
	}
	if !limit {
		d.wrong(key.Line, "%s needs a limit", path)
	} else if err := p.spec.Validate(); err != nil {
		d.wrong(lines[fieldOf(err)], "%s.%s", path, err)
		return
	}
	d.found.pools[key.Value] = p
}

// set reads one field. What it returns says what the field must be, if it can't
// be read.
func (d *declaredPool) set(field, text string) (must string) {
	var err error
	switch field {
	case "limit":
		d.spec.Limit, err = strconv.Atoi(text)
		must = "a number of slots, 0 (closed) or -1 (unlimited)"
	case "lease_duration":
		d.spec.LeaseDuration, err = time.ParseDuration(text)
		must = "a duration such as 30s, 5m or 1h30m"
	case "reserve_after":
		d.spec.ReserveAfter, err = pool.ParseReserveAfter(text)
		must = "a duration such as 30s or 5m, 0 (at once) or -1 (never)"
	case "paused":
		d.paused = new(text == "true")
		if text != "true" && text != "false" {
			err = strconv.ErrSyntax
		}
		must = "true or false"
	}
	if err == nil {
		return ""
	}
	return must
}

// fieldOf returns the field that a problem is about, messageOf its message
// without the field.
func fieldOf(err error) string {
	var p *problem.Error
	if errors.As(err, &p) {
		return p.Field
	}
	return ""
}

func messageOf(err error) string {
	var p *problem.Error
	if errors.As(err, &p) {
		return p.Message
	}
	return err.Error()
}
