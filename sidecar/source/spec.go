package source

import (
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
)

// Defaults of a [Spec].
const (
	DefaultInterval = 30 * time.Second
	DefaultTimeout  = time.Minute
	DefaultForget   = 24 * time.Hour
	// DefaultID is the field of an item that contains its id.
	DefaultID = "id"
)

// Bounds of a [Spec].
const (
	MinInterval, MaxInterval = time.Second, 24 * time.Hour
	MinTimeout, MaxTimeout   = time.Second, time.Hour
	MinForget, MaxForget     = time.Minute, 365 * 24 * time.Hour
	// MaxOutput bounds the output of the command, in bytes.
	MaxOutput = 4 << 20
	// MaxItems bounds the items of one list.
	MaxItems = 10_000
	// maxName bounds a name, so that the ids of runs can contain those of items.
	maxName = 40
)

// The labels that every run of a source has.
const (
	LabelSource = "source"
	LabelItem   = "item"
)

// Spec describes a source.
type Spec struct {
	Name string
	// List is the command that lists, with its arguments; Shell is a script for /bin/sh -c.
	// A source has one of the two.
	List  []string
	Shell string
	// Interval is the pause between two polls. Timeout bounds the command.
	Interval, Timeout time.Duration
	// ID is the field of an item that contains its id.
	ID string
	// Forget is how long the dedup record of an item stays that is not listed any more.
	Forget time.Duration
	// Vars are the fields that an item can have besides its id, by name. Nil declares
	// none and allows any.
	Vars map[string]Var
	// Run is the run of an item. Its name, and the values of its tags and labels, can be
	// templates over the item.
	Run run.Spec
	// Steps are those of the run. A step without items of its own gets the listed item.
	Steps []step.Spec
}

// Argv returns the command that lists.
func (s *Spec) Argv() []string {
	if s.Shell != "" {
		return []string{"/bin/sh", "-c", s.Shell}
	}
	return s.List
}

// RunID returns the id of the run of an item. Names of sources have no dot, so items of
// different sources have different runs.
func (s *Spec) RunID(item string) string { return s.Name + "." + item }

// ValidateName returns a problem if name cannot be the name of a source.
func ValidateName(name string) error {
	legal := func(r rune) bool { return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '_' }
	if name == "" || len(name) > maxName || strings.Trim(name[:1], "-_") == "" ||
		strings.ContainsFunc(name, func(r rune) bool { return !legal(r) }) {
		return problem.Field("name", "%q is not a source name: use 1 to %d of a-z, 0-9, '_' and '-', the first a letter or digit", problem.Clip(name), maxName)
	}
	return nil
}

// Validate returns a problem that names the field if the spec is not valid.
func (s *Spec) Validate() error {
	if err := ValidateName(s.Name); err != nil {
		return err
	}
	switch {
	case len(s.List) == 0 && s.Shell == "":
		return problem.Field("list", "list or shell is required")
	case len(s.List) > 0 && s.Shell != "":
		return problem.Field("shell", "list and shell cannot be used together")
	case s.Shell == "" && s.List[0] == "":
		return problem.Field("list[0]", "it is empty: it must name a program")
	case strings.ContainsRune(strings.Join(s.Argv(), ""), 0):
		return problem.Field("list", "it contains a NUL byte")
	case s.ID == "":
		return problem.Field("id", "it is empty: it must name the field of an item that contains its id")
	}
	for _, d := range []struct {
		field           string
		value, min, max time.Duration
	}{
		{"interval", s.Interval, MinInterval, MaxInterval},
		{"timeout", s.Timeout, MinTimeout, MaxTimeout},
		{"forget", s.Forget, MinForget, MaxForget},
	} {
		if d.value < d.min || d.value > d.max {
			return problem.Field(d.field, "%s is out of range: use %s to %s", d.value, d.min, d.max)
		}
	}
	if err := s.validateVars(); err != nil {
		return err
	}
	return s.validateRun()
}

// validateRun validates the run as far as possible without an item.
func (s *Spec) validateRun() error {
	for _, label := range []string{LabelSource, LabelItem} {
		if _, ok := s.Run.Labels[label]; ok {
			return problem.Field("run.labels."+label, "it is set by the source: use another name")
		}
	}
	if err := s.Run.Validate(); err != nil {
		return withinRun(err)
	}
	if _, err := s.head(anyItem); err != nil {
		return withinRun(err)
	}
	spec := s.Run
	if s.Steps != nil {
		g, err := step.NewGraph(s.stepsOver(anyItem))
		if err != nil {
			return withinRun(err)
		}
		spec.Steps = g.Total()
	}
	if err := spec.ValidateNew(); err != nil {
		return withinRun(err)
	}
	return nil
}
