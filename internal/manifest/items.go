package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/strict"
)

// maxItemsFile bounds a file of items, in bytes: some 600 for each of the most there
// may be.
const maxItemsFile = 64 << 20

const itemsHow = "%s must be a list, a range as in {from: 1, to: 20}, or {file: PATH}"

// items reads what a step fans out over.
func (d *submissionReader) items(path string, n *yaml.Node) *step.Items {
	switch n.Kind {
	case yaml.SequenceNode:
		it := &step.Items{List: []json.RawMessage{}}
		for i, each := range n.Content {
			field := fmt.Sprintf("%s[%d]", path, i)
			d.at[field] = each
			it.List = append(it.List, d.json(field, each))
		}
		return it
	case yaml.MappingNode:
		return d.itemsMapping(path, n)
	}
	d.wrong(n, itemsHow, path)
	return nil
}

func (d *submissionReader) itemsMapping(path string, n *yaml.Node) *step.Items {
	r, file, before := step.Range{By: 1}, "", len(d.lines)
	given := map[string]bool{}
	d.mapping(n, path, []string{"from", "to", "by", "file"}, func(field string, key, value *yaml.Node) {
		d.at[field], given[key.Value] = value, true
		switch key.Value {
		case "from":
			r.From = int64(d.number(field, value))
		case "to":
			r.To = int64(d.number(field, value))
		case "by":
			r.By = int64(d.number(field, value))
		case "file":
			file = d.text(field, value)
		}
	})
	switch {
	case len(d.lines) > before:
	case given["file"] && len(given) > 1:
		d.wrong(n, "%s: a file goes with no other field", path)
	case given["file"]:
		list, err := itemsFile(filepath.Dir(d.name), file)
		if err != nil {
			d.wrong(d.at[path+".file"], "%s.file: %s", path, err)
		}
		return &step.Items{List: list}
	case !given["from"] || !given["to"]:
		d.wrong(n, "%s: a range needs from and to", path)
	default:
		return &step.Items{Range: &r}
	}
	return nil
}

// itemsFile reads a file of items: a JSON array, or else a line each, blank lines
// aside. A path that does not begin at the root begins in folder.
func itemsFile(folder, path string) ([]json.RawMessage, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	// A pipe or a device might never end.
	if is, err := os.Stat(path); err == nil && !is.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file that can be read to its end", path)
	}
	return OpenItems(path)
}

// OpenItems reads items of whatever has that path.
func OpenItems(path string) ([]json.RawMessage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the file can't be read: %w", err)
	}
	return ReadItems(path, f)
}

// ReadItems reads items to their end.
func ReadItems(name string, in io.ReadCloser) ([]json.RawMessage, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxItemsFile+1))
	if closeErr := in.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the file can't be read: %w", err)
	case len(data) > maxItemsFile:
		return nil, problem.New(problem.TooLarge, "%s is longer than %d MB", name, maxItemsFile>>20)
	}
	list, err := parseItems(data)
	var wrong *strict.SyntaxError
	switch {
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("%s:%s%s", name, placeOf(wrong), wrong.What())
	case len(list) == 0:
		return nil, fmt.Errorf("%s: it has no items: at least one is needed", name)
	}
	return list, nil
}

func parseItems(data []byte) ([]json.RawMessage, error) {
	list := []json.RawMessage{}
	data = strict.Text(data)
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		var first error
		err := strict.Array(data, func(item json.RawMessage, err error) {
			first = cmp.Or(first, err)
			list = append(list, item)
		})
		var wrong *strict.SyntaxError
		if errors.As(err, &wrong) { // it may be lines that are no JSON
			wrong.Reason = "it begins with '[' and is not a JSON array: " + wrong.Reason
			return nil, wrong
		}
		return list, first
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = strict.Text(bytes.TrimRight(line, "\r\n")) // another file may begin here
		if !utf8.Valid(line) {
			return nil, &strict.SyntaxError{Line: number, Reason: "it is not text in UTF-8"}
		}
		if bytes.IndexByte(line, 0) >= 0 {
			return nil, &strict.SyntaxError{Line: number, Reason: "it has a NUL byte: write each item on a line of its own"}
		}
		if bytes.IndexByte(line, '\r') >= 0 {
			return nil, &strict.SyntaxError{Line: number, Reason: "it has a carriage return (CR): end each line with LF, or with CR and LF"}
		}
		if len(bytes.TrimSpace(line)) > 0 {
			list = append(list, encodeJSON(string(line)))
		}
	}
	return list, nil
}

// json reads any value.
func (d *submissionReader) json(path string, n *yaml.Node) json.RawMessage {
	if v, ok := d.value(path, n); ok {
		return encodeJSON(v)
	}
	return json.RawMessage("null") // and it is noted what is wrong
}

// encodeJSON writes what [submissionReader.value] has read.
func encodeJSON(v any) json.RawMessage {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("berth: encode %T: %v", v, err)) // a fault of the program
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// value reads any value that JSON can say.
func (d *submissionReader) value(path string, n *yaml.Node) (v any, ok bool) {
	before := len(d.lines)
	switch n.Kind {
	case yaml.MappingNode:
		object := map[string]any{}
		d.mapping(n, path, []string(nil), func(field string, key, value *yaml.Node) {
			d.at[field] = value
			object[key.Value], _ = d.value(field, value)
		})
		return object, len(d.lines) == before
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, each := range n.Content {
			field := fmt.Sprintf("%s[%d]", path, i)
			d.at[field] = each
			list[i], _ = d.value(field, each)
		}
		return list, len(d.lines) == before
	case yaml.ScalarNode:
		if !d.plain(path, n) {
			return nil, false
		}
		if v, ok := scalar(n); ok {
			return v, true
		}
		d.wrong(n, "%s: %q is no value that JSON has: write it in quotes", path, n.Value)
	default:
		d.wrong(n, "%s: aliases are not allowed", path)
	}
	return nil, false
}

// scalar reads a single value. Numbers keep their digits where JSON writes them so, too;
// dates are texts.
func scalar(n *yaml.Node) (v any, ok bool) {
	if strict.IsNumber(n) && json.Valid([]byte(n.Value)) {
		return json.Number(n.Value), true
	}
	tag := n.ShortTag()
	switch tag {
	case "!!str", "!!timestamp":
		return n.Value, utf8.ValidString(n.Value)
	case "!!null":
		return nil, true
	}
	if !slices.Contains([]string{"!!int", "!!float", "!!bool"}, tag) || n.Decode(&v) != nil {
		return nil, false
	}
	if f, isFloat := v.(float64); isFloat && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return nil, false
	}
	return v, true
}
