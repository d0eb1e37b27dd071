package config

import (
	"os"
	"slices"
)

// Sources are where settings come from.
type Sources struct {
	// File is the settings file. Where it is empty, [FileEnv] may name one.
	File string
	// Env looks up environment variables, as [os.LookupEnv] does. Nil is an empty
	// environment.
	Env func(name string) (value string, ok bool)
	// Flag looks up flags, by their name without dashes. Nil is none.
	Flag func(name string) (value string, ok bool)
	// Hostname returns the host name of the machine; nil is [os.Hostname].
	Hostname func() (string, error)
}

// FileEnv is the environment variable that names the settings file.
const FileEnv = "BERTH_CONFIG"

// strength orders the sources.
type strength int

const (
	byDefault strength = iota
	byFile
	byEnv
	byFlag
)

// origin is where a value came from.
type origin struct {
	strength strength
	name     string // as a [Problem] tells it
}

// loader holds what [Load] has found out so far.
type loader struct {
	src      Sources
	groups   []Group
	settings Settings
	origins  map[string]origin // of each field that has a value
	problems Problems
}

// Load reads the settings. It checks them as far as the groups need; without
// any, all groups are. The error is [Problems].
func Load(src Sources, groups ...Group) (Settings, error) {
	if src.Env == nil {
		src.Env = func(string) (string, bool) { return "", false }
	}
	if src.Flag == nil {
		src.Flag = func(string) (string, bool) { return "", false }
	}
	if src.Hostname == nil {
		src.Hostname = os.Hostname
	}
	l := &loader{src: src, groups: groups, origins: map[string]origin{}}
	file := l.file()
	for _, f := range fields {
		if text, from, ok := l.strongest(f, file); ok {
			l.set(f, text, from)
		}
	}
	l.rules()
	return l.settings, l.problems.err()
}

// file reads the settings file, if there is one.
func (l *loader) file() map[string]entry {
	path := l.src.File
	if path == "" {
		path, _ = l.src.Env(FileEnv)
	}
	if path == "" {
		return nil
	}
	entries, problems := readFile(path)
	l.problems = append(l.problems, problems...)
	return entries
}

// strongest returns the text that counts for a field.
func (l *loader) strongest(f Field, file map[string]entry) (text string, from origin, ok bool) {
	if f.Flag() != "" {
		if text, ok := l.src.Flag(f.Flag()); ok {
			return text, origin{byFlag, "--" + f.Flag()}, true
		}
	}
	if text, ok := l.src.Env(f.Env()); ok && text != "" {
		return text, origin{byEnv, f.Env()}, true
	}
	if e, ok := file[f.Name]; ok {
		return e.text, origin{byFile, e.source}, true
	}
	return f.Default, origin{byDefault, "default"}, f.Default != ""
}

func (l *loader) set(f Field, text string, from origin) {
	l.origins[f.Name] = from
	if !f.value.set(&l.settings, text) {
		l.bad(f, from, text)
	}
}

// bad notes a value that a field does not allow.
func (l *loader) bad(f Field, from origin, text string) {
	p := Problem{Field: f.Name, Source: from.name, Value: text, Message: "must be " + f.Must}
	switch {
	case text == "":
		p.Message = "is empty: " + p.Message
	case f.secret:
		p.Value = hidden
	}
	l.problems = append(l.problems, p)
}

// wrong notes that a field is wrong for another reason than its value alone.
func (l *loader) wrong(field, message string) {
	l.problems = append(l.problems, Problem{Field: field, Source: l.origins[field].name, Message: message})
}

// need reports whether one of the groups is to be checked.
func (l *loader) need(groups ...Group) bool {
	return len(l.groups) == 0 || slices.ContainsFunc(groups, func(g Group) bool { return slices.Contains(l.groups, g) })
}

// sound reports whether a field has no problem so far.
func (l *loader) sound(field string) bool {
	return !slices.ContainsFunc(l.problems, func(p Problem) bool { return p.Field == field })
}
