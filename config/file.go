package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/internal/strict"
)

// entry is a value in the settings file.
type entry struct {
	text   string
	source string // "berth.yaml:3"
}

// fileLimit bounds a file that is read, in bytes.
const fileLimit = 1 << 20

// readAll reads a file, and returns its mode as well.
func readAll(path string) (data []byte, mode fs.FileMode, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("can't be read: %w", err)
	}
	info, err := file.Stat()
	if err == nil {
		mode = info.Mode()
		data, err = io.ReadAll(io.LimitReader(file, fileLimit+1))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, 0, fmt.Errorf("can't be read: %w", err)
	}
	if len(data) > fileLimit {
		return nil, 0, fmt.Errorf("can't be read: %s is longer than %d bytes", path, fileLimit)
	}
	return data, mode, nil
}

// readFile reads a settings file: what it gives, and what is wrong with it.
func readFile(path string) (map[string]entry, Problems) {
	data, mode, err := readAll(path)
	if err != nil {
		return nil, Problems{{Source: path, Message: "the settings file " + err.Error()}}
	}
	entries, problems := decode(path, data)
	if !isPublic(mode) {
		return entries, problems
	}
	for _, f := range fields {
		if e, ok := entries[f.Name]; ok && f.holdsSecret(e.text) {
			problems = append(problems, Problem{Field: f.Name, Source: e.source, Message: "is a secret in a file that all users may read or change " + mend(path, mode)})
		}
	}
	return entries, problems
}

// decode reads the text of a settings file. An entry that is a problem is not
// among those returned.
func decode(path string, data []byte) (map[string]entry, Problems) {
	root, err := document(path, data)
	if err != nil {
		return nil, Problems{{Source: path, Message: err.Error()}}
	}
	if root == nil {
		return nil, nil
	}
	entries := map[string]entry{}
	var problems Problems
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		source := fmt.Sprintf("%s:%d", path, key.Line)
		field, ok := lookup(key.Value)
		if !ok || key.Kind != yaml.ScalarNode {
			problems = append(problems, Problem{
				Source: source, Value: key.Value, Message: "is not a setting: " + meant(key.Value),
			})
			continue
		}
		text, given, err := text(field, value, entries)
		switch {
		case err != nil:
			problems = append(problems, Problem{Field: field.Name, Source: source, Message: err.Error()})
		case given:
			entries[field.Name] = entry{text, source}
		}
	}
	return entries, problems
}

// document returns the mapping that the file consists of, or nil for an empty
// file.
func document(path string, data []byte) (*yaml.Node, error) {
	root, err := strict.Document(path, data)
	switch {
	case err != nil || root == nil || strict.IsNull(root):
		return nil, err
	case root.Kind != yaml.MappingNode:
		return nil, errors.New("the file must be lines of the form name: value")
	}
	return root, nil
}

// text returns the value of an entry as one would write it in a flag. A null is
// not given.
func text(field Field, value *yaml.Node, seen map[string]entry) (text string, given bool, err error) {
	if earlier, ok := seen[field.Name]; ok {
		return "", false, errors.New("is set twice, before at " + earlier.source)
	}
	switch {
	case strict.IsNull(value):
		return "", false, nil
	case strict.Ambiguous(value) != "":
		return "", false, errors.New(strict.Ambiguous(value))
	case value.Kind == yaml.ScalarNode:
		return value.Value, true, nil
	case value.Kind == yaml.SequenceNode && field.isList():
		return list(field, value)
	case field.isList():
		return "", false, errors.New("must be a text or a list of texts")
	}
	return "", false, errors.New("must be a single value")
}

func list(field Field, value *yaml.Node) (string, bool, error) {
	var items []string
	for _, item := range value.Content {
		if item.Kind != yaml.ScalarNode || strict.IsNull(item) {
			return "", false, errors.New("must be a text or a list of texts")
		}
		if what := strict.Ambiguous(item); what != "" {
			return "", false, errors.New(what)
		}
		items = append(items, item.Value)
	}
	if len(items) == 0 {
		return "", false, errors.New("is an empty list: must be " + field.Must)
	}
	return strings.Join(items, ","), true, nil
}

func (f Field) isList() bool {
	_, ok := f.value.(typed[[]string])
	return ok
}
