package main

import (
	"bytes"
	"encoding/json"
	"io"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

var outputFlag = &cli.StringFlag{
	Name:    "output",
	Aliases: []string{"o"},
	Value:   "table",
	Usage:   "`FORMAT` of what is printed: table, json or yaml",
}

// printer writes what a command was asked for, in the format asked for.
type printer struct {
	format string
	out    io.Writer
	now    time.Time // times in tables are told from here
}

func printerOf(c *cli.Context) (*printer, error) {
	p := &printer{format: c.String(outputFlag.Name), out: c.App.Writer, now: time.Now()}
	switch p.format {
	case "table", "json", "yaml":
		return p, nil
	}
	return nil, usagef("--output can't be %q: it must be table, json or yaml", p.format)
}

// print writes a value. Its JSON and YAML are for programs and have the names of
// the HTTP API; text makes what people read, and may begin with a table.
func (p *printer) print(value any, text func(*page)) error {
	var b bytes.Buffer
	switch p.format {
	case "json":
		if err := writeJSON(&b, value); err != nil {
			return err
		}
	case "yaml":
		if err := writeYAML(&b, value); err != nil {
			return err
		}
	default:
		text(&page{out: &b, now: p.now})
	}
	_, err := p.out.Write(b.Bytes())
	return err
}

func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// writeYAML writes a value as its JSON says, so that names, order and forms are
// the same.
func writeYAML(w io.Writer, value any) error {
	var text bytes.Buffer
	if err := writeJSON(&text, value); err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text.Bytes(), &doc); err != nil {
		return err
	}
	plain(&doc)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return err
	}
	return e.Close()
}

// plain takes from a document the style of JSON, where YAML reads the same
// without it: not the quotes of a text that could be a number or, to some
// readers, a truth value, nor the brackets of what is empty.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && !needsQuotes(n) || len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}

func needsQuotes(n *yaml.Node) bool {
	if n.ShortTag() != "!!str" {
		return false
	}
	text, err := yaml.Marshal(n.Value)
	return err != nil || bytes.HasPrefix(text, []byte(`"`))
}
