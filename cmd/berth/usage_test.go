package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/problem"
)

// leaves calls do with each command that does something, and with its words.
func leaves(commands []*cli.Command, above []string, do func(words []string, c *cli.Command)) {
	for _, c := range commands {
		words := append(slices.Clone(above), c.Name)
		if c.Hidden {
			continue
		}
		leaves(c.Subcommands, words, do)
		do(words, c)
	}
}

// badLines returns lines of a command that are not valid.
func badLines(words []string, c *cli.Command) [][]string {
	line := func(more ...string) []string { return append(slices.Clone(words), more...) }
	lines := [][]string{line("--nonsense"), line("--nonsense=3"), line("-Z")}
	if len(c.Subcommands) > 0 {
		lines = append(lines, line(""), line("nonsense"), line("--", "nonsense"))
	}
	rest := strings.Fields(c.ArgsUsage)
	if len(c.Subcommands) == 0 && c.ArgsUsage != verbatim {
		lines = append(lines, line(""))
		if !strings.Contains(c.ArgsUsage, "...") {
			lines = append(lines, line(slices.Repeat([]string{"a"}, len(rest)+1)...))
		}
	}
	if len(rest) > 0 && !strings.HasPrefix(rest[0], "[") && c.Name != "submit" {
		lines = append(lines, line())
	}
	for _, f := range c.Flags {
		name := "--" + f.Names()[0]
		bad := []string{}
		switch f.(type) {
		case *cli.IntFlag, *cli.Uint64Flag:
			bad = []string{"", "x", "1e3", "0x10", "1_0", "+1", "010", "1.5", " 1", "99999999999999999999"}
		case *cli.DurationFlag:
			bad = []string{"", "x", "5", "1e3s", "5 s"}
		case *cli.BoolFlag:
			bad = []string{"maybe", ""}
		}
		for _, value := range bad {
			lines = append(lines, line(name+"="+value))
		}
		if takesValue(f) {
			lines = append(lines, line(name))
		}
	}
	return lines
}

func TestEveryCommandExitsWith2IfItsLineIsNotValid(t *testing.T) {
	t.Setenv("BERTH_ENDPOINTS", "127.0.0.1:1")
	t.Chdir(t.TempDir())
	lines := [][]string{{""}, {"nonsense"}, {"--nonsense"}}
	leaves(newApp(nil, nil).Commands, nil, func(words []string, c *cli.Command) { lines = append(lines, badLines(words, c)...) })
	for _, line := range lines {
		var stdout, stderr bytes.Buffer
		if code := perform(t.Context(), append([]string{"berth"}, line...), &stdout, &stderr); code != problem.ExitUsage {
			t.Errorf("%q exits with %d: %s%.100s", line, code, stderr.String(), stdout.String())
		}
		if said := stderr.String(); !strings.HasPrefix(said, "berth: ") || strings.Contains(said, "?;") {
			t.Errorf("%q: %s", line, said)
		}
	}
}

func TestNamesAndFilesOfALineThatAreNotValidExitWith2(t *testing.T) {
	t.Setenv("BERTH_ENDPOINTS", "127.0.0.1:1")
	t.Chdir(t.TempDir())
	for _, line := range [][]string{
		{"certs", "issue", "a b"}, {"certs", "issue", "ca"}, {"certs", "make", "--client", "a b"}, {"certs", "make", "--client="},
		{"certs", "make", "--server", "=localhost"}, {"certs", "init", "--dir="},
		{"source", "wake", "A B"}, {"source", "delete", "../x"},
		{"claims", "list", "--pool", "A B"}, {"pools", "info", "DB"}, {"exec", "--pool", "DB", "--", "true"},
		{"exec", "--pool", "db=010", "--", "true"}, {"exec", "--pool", "db=1e3", "--", "true"}, {"submit", "--pool", "db=+1", "--", "true"},
		{"dev", "--pool", "DB=3"}, {"dev", "--pool", "db=-2"}, {"dev", "--pool", "db=1000001"}, {"dev", "--pool="},
		{"pools", "set", "db", "-0"}, {"pools", "set", "db", "010"}, {"pools", "set", "db", "0x10"}, {"pools", "set", "db", "０"},
		{"pools", "set", "db", " 1"}, {"limits", "set", "--max-concurrent-runs", "010"}, {"limits", "set", "--tag", "env=prod=010"},
		{"apply", "-f", "."}, {"apply", "-f", "none.yaml"}, {"submit", "-f", "."}, {"submit", "-f", "none.yaml"},
		{"submit", "--items", ".", "--", "true"}, {"source", "run", "-f", "."}, {"source", "run", "-f", "none.yaml"},
		{"token", "list", "--tokens-file", "."}, {"token", "revoke", "a", "--tokens-file", "."}, {"token", "revoke", "a", "--tokens-file", "none"},
		{"token", "create", "a", "--role", "view", "--tokens-file", "."}, {"cluster", "restore", "none"}, {"cluster", "restore", "."},
		{"exec", "--wait", "0s"}, {"exec"}, {"exec", "--pool", "db"}, {"submit", "--"},
	} {
		var stdout, stderr bytes.Buffer
		if code := perform(t.Context(), append([]string{"berth"}, line...), &stdout, &stderr); code != problem.ExitUsage {
			t.Errorf("%q exits with %d: %s%.100s", line, code, stderr.String(), stdout.String())
		}
	}
}
