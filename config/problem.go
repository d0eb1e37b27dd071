package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// Problem is one thing that is wrong with the settings.
type Problem struct {
	// Field is the setting's name in the file. Empty if the file as a whole is at
	// fault.
	Field string
	// Source is where the value came from: "berth.yaml:3", "BERTH_HOST",
	// "--host", "default", or the file. Empty if the value is missing.
	Source string
	// Value is what was given, or "(hidden)".
	Value string
	// Message says what is wrong, or what the value must be.
	Message string

	// noFile is set if the value names a file that does not exist.
	noFile bool
}

// Error says all of it on one line.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Field)
	if p.Source != "" {
		if p.Field != "" {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "(%s)", p.Source)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Value != "" {
		fmt.Fprintf(&b, "%s ", quote(p.Value))
	}
	b.WriteString(p.Message)
	return b.String()
}

// quoteLimit is how much of a bad value an error shows.
const quoteLimit = 80

func quote(value string) string {
	if value == hidden {
		return hidden
	}
	if len(value) > quoteLimit {
		return fmt.Sprintf("%.*q…", quoteLimit, value)
	}
	return fmt.Sprintf("%q", value)
}

// Problems is everything that is wrong with the settings: the error of [Load].
type Problems []Problem

// Error lists the problems, one a line.
func (ps Problems) Error() string {
	if len(ps) == 1 {
		return "settings: " + ps[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "settings: %d problems", len(ps))
	for _, p := range ps {
		b.WriteString("\n  " + p.Error())
	}
	return b.String()
}

// NoCertificate reports whether nothing is wrong but that files of certificates for etcd do not exist.
func (ps Problems) NoCertificate() bool {
	return !slices.ContainsFunc(ps, func(p Problem) bool {
		return !p.noFile || !slices.Contains([]string{"cacert", "cert", "key"}, p.Field)
	})
}

// Unwrap returns the problems as those of one table that all of berth shares,
// with the code [problem.Invalid].
func (ps Problems) Unwrap() []error {
	all := make([]error, len(ps))
	for i, p := range ps {
		field := p.Field
		p.Field = ""
		all[i] = problem.Field(field, "%s", p.Error())
	}
	return all
}

// err returns the problems as an error, or nil where there is none.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}
