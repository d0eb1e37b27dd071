package config

import (
	"fmt"
	"slices"
	"strings"

	units "github.com/berthhq/berth/internal/text"
)

// Group is a set of settings that are used together: see [Load] and [Flags].
type Group string

// The groups.
const (
	Common    Group = "common"    // for every command
	Etcd      Group = "etcd"      // how to reach etcd
	Access    Group = "access"    // how to reach a sidecar
	Claims    Group = "claims"    // how to wait for slots
	Instance  Group = "instance"  // the identity of this process
	State     Group = "state"     // what it keeps for its next start
	Serve     Group = "serve"     // how to be a sidecar
	Candidate Group = "candidate" // whether a sidecar runs a coordinator
	Lead      Group = "lead"      // how a candidate leads
	Work      Group = "work"      // whose commands a worker runs
	Dev       Group = "dev"       // the embedded etcd
	Server    Group = "server"    // its cluster
)

// Field is one setting.
type Field struct {
	// Name is the name in the file, such as "log_level".
	Name string
	// Group is the group by which commands load it.
	Group Group
	// Usage describes it for the help of a command.
	Usage string
	// Default is the value if none is given, in the form of the file.
	Default string
	// Must completes the sentence "The value must be …".
	Must string
	// NoFlag is set for secrets, which a list of processes would show.
	NoFlag bool

	value    value
	secret   bool   // the value is not shown in errors, nor given to child processes
	computed string // the default in words, if it depends on the machine
}

// Env is the environment variable, such as "BERTH_LOG_LEVEL".
func (f Field) Env() string { return VariablePrefix + strings.ToUpper(f.Name) }

// Flag is the name of the flag without dashes, such as "log-level", or empty.
func (f Field) Flag() string {
	if f.NoFlag {
		return ""
	}
	return strings.ReplaceAll(f.Name, "_", "-")
}

// holdsSecret reports whether a text of the field is a secret, or has one in it.
func (f Field) holdsSecret(text string) bool {
	if f.Name == "user" {
		_, text, _ = strings.Cut(text, ":")
	}
	return f.secret && text != ""
}

// DefaultText is the default for people: in words where it depends on the
// machine, empty where there is none.
func (f Field) DefaultText() string {
	if f.computed != "" {
		return f.computed
	}
	return f.Default
}

// Fields returns the table of all settings, in the order of its groups.
func Fields() []Field { return slices.Clone(fields) }

func lookup(name string) (Field, bool) {
	i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return Field{}, false
	}
	return fields[i], true
}

func names() []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.Name
	}
	slices.Sort(all)
	return all
}

// meant returns which setting is meant by a name that is none, or which settings there are.
func meant(name string) string {
	if near := units.Nearest(strings.ToLower(name), names()); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "the settings are " + strings.Join(names(), ", ")
}

// value is the part of [Settings] that a field is about.
type value interface {
	// set reads a text into the settings, or reports that it is not allowed.
	set(s *Settings, text string) bool
	// show writes the value as a text, without secrets.
	show(s *Settings) string
}

// isSwitch reports whether a field is on or off: its flag needs no value.
func (f Field) isSwitch() bool {
	_, ok := f.value.(typed[bool])
	return ok
}

// typed is a value of one type: where it is, and how it is read.
type typed[T any] struct {
	at    func(*Settings) *T
	parse func(string) (T, bool)
}

func (v typed[T]) set(s *Settings, text string) bool {
	x, ok := v.parse(text)
	if ok {
		*v.at(s) = x
	}
	return ok
}

func (v typed[T]) show(s *Settings) string {
	if list, ok := any(*v.at(s)).([]string); ok {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(*v.at(s))
}
