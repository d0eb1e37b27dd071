package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
	"github.com/xrash/smetrics"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
)

// usageError tells that a command line can't be understood.
type usageError struct{ message string }

// Error says what is wrong with it.
func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// status is an exit code that has been explained already, or needs no words:
// that of a child.
type status int

// Error names the code.
func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// statusError is an error with an exit code of its own.
type statusError struct {
	code int
	error
}

// Unwrap returns the error.
func (e *statusError) Unwrap() error { return e.error }

// report writes the one line about an error and returns the exit code.
func report(w io.Writer, err error) int {
	var done status
	var own *statusError
	var usage *usageError
	var settings config.Problems
	switch {
	case err == nil:
		return 0
	case errors.As(err, &done):
		return int(done)
	case errors.As(err, &usage):
		fmt.Fprintf(w, "berth: %v; see 'berth help'\n", err)
		return problem.ExitUsage
	case errors.As(err, &settings):
		fmt.Fprintf(w, "berth: %v\n", err)
		return problem.ExitUsage
	}
	fmt.Fprintf(w, "berth: %s\n", explain(err))
	if errors.As(err, &own) {
		return own.code
	}
	if problem.CodeOf(err) == problem.Internal {
		return problem.ExitFailure
	}
	return problem.CodeOf(err).Exit()
}

// advice is what to do about problems whose message does not say.
var advice = map[problem.Code]string{
	problem.EtcdUnavailable: "is etcd running, and are the endpoints right (--endpoints, BERTH_ENDPOINTS)? 'berth dev' starts one to try",
	problem.EtcdDenied:      "give a user or a certificate with rights on the prefix (--user, --cert and --key)",
	problem.PoolNotFound:    "'berth pools list' shows what there is, 'berth pools set NAME LIMIT' makes one",
	problem.ClaimNotFound:   "'berth claims list' shows what there is",
	problem.RunNotFound:     "'berth runs list' shows what there is",
	problem.Unauthorized:    "give the sidecar's token in BERTH_TOKEN or BERTH_TOKEN_FILE",
}

// explain makes one line of an error: what happened, and what to do.
func explain(err error) string {
	text := strings.TrimSuffix(err.Error(), "\n")
	if todo, ok := advice[problem.CodeOf(err)]; ok && !strings.Contains(text, "berth ") {
		return text + "; " + todo
	}
	return text
}

// onUsageError says in berth's words what package flag finds wrong.
func onUsageError(c *cli.Context, err error, _ bool) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		name = strings.TrimLeft(name, "-")
		if near := nearest(name, flagNames(c)); near != "" {
			return usagef("%s has no flag --%s; did you mean --%s?", c.Command.HelpName, name, near)
		}
		return usagef("%s has no flag --%s", c.Command.HelpName, name)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return usagef("--%s needs a value", strings.TrimLeft(name, "-"))
	}
	// invalid value "x" for flag -wait: parse error
	if value, rest, ok := strings.Cut(strings.TrimPrefix(text, "invalid value "), " for flag -"); ok {
		name, _, _ := strings.Cut(rest, ":")
		return usagef("--%s can't be %s", name, value)
	}
	return usagef("%s", text)
}

func flagNames(c *cli.Context) []string {
	var all []string
	for _, flags := range [][]cli.Flag{c.Command.Flags, c.App.Flags} {
		for _, f := range flags {
			all = append(all, f.Names()...)
		}
	}
	return all
}

// near is how alike two words must be for one to be meant by the other, from 0
// to 1: "lst" and "list" are, "foo" and "info" are not.
const near = 0.8

// nearest returns the word that was probably meant, or nothing.
func nearest(word string, words []string) string {
	best, found := near, ""
	for _, w := range words {
		if d := smetrics.JaroWinkler(word, w, 0.7, 4); d > best {
			best, found = d, w
		}
	}
	return found
}
