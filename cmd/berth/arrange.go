package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// arrange puts a command line into the order in which cli reads it: the global
// flags, the command, its own flags, then "--" and the arguments. So flags may
// stand anywhere, and an argument may begin with a dash if it is a number: a
// limit of -1. It also spells "help X" as "X --help".
//
// The arguments of exec begin with the first that is no flag: what follows
// belongs to the command that it runs.
func arrange(app *cli.App, line []string) []string {
	a := arranger{root: app.Flags, subcommands: app.Commands}
	words := line[1:]
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "--":
			if len(a.rest)+len(words) == 0 {
				app.Metadata = map[string]any{metaNothing: true}
			}
			a.rest = append(a.rest, words...)
			words = nil
		case isFlag(word):
			words = a.flag(word, words)
		case a.descend(word):
			a.stray = false
		default:
			a.unknown = a.unknown || len(a.rest) == 0 && len(a.subcommands) > 0 && !a.stray
			a.rest = append(a.rest, word)
			if a.verbatim {
				a.rest = append(a.rest, words...)
				words = nil
			}
		}
	}
	return a.line(line[0])
}

// metaNothing marks in an app's metadata a command line that ends with its "--", which
// cli does not tell: the command that was to stand behind is empty.
const metaNothing = "nothing behind --"

// verbatim marks a command whose arguments are another command line.
const verbatim = "COMMAND [ARGUMENT…]"

type arranger struct {
	root, own   []cli.Flag     // flags of the app and of the command found so far
	subcommands []*cli.Command // below it
	verbatim    bool

	globals, path, flags, rest []string
	help, version              bool
	// unknown tells that the first of the rest was meant as a command, and is none;
	// stray that the word before may be a flag whose value it is.
	unknown, stray bool
	incomplete     []string // a line without more than a flag that lacks its value
}

// descend takes a word that is no flag for a command, if it can be one.
func (a *arranger) descend(word string) bool {
	if len(a.rest) > 0 {
		return false
	}
	if word == "help" && len(a.subcommands) > 0 {
		a.help = true
		return true
	}
	i := slices.IndexFunc(a.subcommands, func(c *cli.Command) bool { return c.HasName(word) })
	if i < 0 {
		return false
	}
	c := a.subcommands[i]
	a.path = append(a.path, word)
	a.own, a.subcommands, a.verbatim = c.Flags, c.Subcommands, c.ArgsUsage == verbatim
	return true
}

// flag sorts a flag in, with its value if that is the next word, and returns
// the words that are left.
func (a *arranger) flag(word string, next []string) []string {
	f, global := a.find(word)
	to := &a.flags
	if global {
		to = &a.globals
	}
	a.stray = f == nil && !strings.Contains(word, "=")
	a.version = a.version || word == "--version" && len(a.path) == 0
	if f == nil || strings.Contains(word, "=") || !takesValue(f) {
		*to = append(*to, word)
		return next
	}
	if len(next) == 0 {
		a.incomplete = []string{word}
		if !global {
			a.incomplete = append(slices.Clone(a.path), word)
		}
		return nil
	}
	*to = append(*to, word, next[0])
	return next[1:]
}

// find returns the flag that a word names, and whether it is a global one.
func (a *arranger) find(word string) (f cli.Flag, global bool) {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if f := findFlag(a.own, name); f != nil {
		return f, false
	}
	f = findFlag(a.root, name)
	return f, f != nil
}

func (a *arranger) line(name string) []string {
	if a.unknown { // that is to be said first: what flags there are depends on the command
		strange := func(flag string) bool { return findFlag(a.own, flag) == nil && !isHelp(flag) }
		a.rest = append(a.rest, keep(a.flags, strange)...)
		a.flags, a.incomplete = slices.DeleteFunc(a.flags, strange), nil
	}
	if a.incomplete != nil { // nothing must be taken for its value
		return append([]string{name}, a.incomplete...)
	}
	if a.version {
		return append([]string{name}, append(a.globals, "version")...)
	}
	out := slices.Concat([]string{name}, a.globals, a.path, a.flags)
	if a.help {
		return append(out, "--help")
	}
	if len(a.rest) > 0 {
		out = append(out, "--")
	}
	return append(out, a.rest...)
}

// isFlag tells whether a word is a flag: not "-", which is stdin, and not a
// negative number.
func isFlag(word string) bool {
	return len(word) > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9')
}

func isHelp(word string) bool { return word == "--help" || word == "-h" }

func findFlag(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}
