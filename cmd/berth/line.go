package main

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/text"
)

// arrange puts a command line into the order in which cli reads it: the global
// flags, the command, its own flags, then "--" and the arguments. So flags may
// be anywhere, and an argument may begin with a dash if it is a number: a
// limit of -1. It also spells "help X" as "X --help".
//
// The arguments of exec begin with the first that is not a flag: what follows
// belongs to the command that it runs.
func arrange(app *cli.App, line []string) []string {
	app.Metadata = map[string]any{}
	a := arranger{root: app.Flags, subcommands: app.Commands}
	words := line[1:]
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "--":
			if len(a.rest)+len(words) == 0 {
				app.Metadata[metaNothing] = true
			}
			a.rest = append(a.rest, words...)
			words = nil
		case isHelp(word):
			a.help = true
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
	if a.help && !(a.named && a.unknown) { // that is an error of the command whose name is not known
		app.Metadata[metaHelp] = cmp.Or(a.command, rootOf(app))
	} else if a.number != nil && !a.unknown {
		app.Metadata[metaNumber] = a.number
	}
	return a.line(line[0])
}

// metaHelp is the key in an app's metadata of the command whose help is asked for.
const metaHelp = "help"

// metaNothing marks in an app's metadata a command line that ends with its "--", which
// cli does not report: the command after it is empty.
const metaNothing = "nothing behind --"

// metaNumber is the key in an app's metadata of the error of a flag whose value is not a decimal number. Package flag
// would take 0x10, 1_0 and +1 for numbers, and 010 for 8.
const metaNumber = "number"

// verbatim marks a command whose arguments are another command line.
const verbatim = "COMMAND [ARGUMENT…]"

type arranger struct {
	root, own   []cli.Flag     // flags of the app and of the command found so far
	command     *cli.Command   // found so far; nil at first
	subcommands []*cli.Command // below it
	verbatim    bool

	globals, path, flags, rest []string
	help, version              bool
	// named is set if help is asked for a command by its name, as in "help pools".
	named bool
	// unknown is set if the first of the rest should be a command, and is not;
	// stray that the word before may be a flag whose value it is.
	unknown, stray bool
	incomplete     []string // a line without more than a flag that lacks its value
	number         error    // of the first flag whose value is not a decimal number
}

// descend takes a word that is no flag for a command, if it can be one.
func (a *arranger) descend(word string) bool {
	if len(a.rest) > 0 {
		return false
	}
	if word == "help" && len(a.subcommands) > 0 {
		a.help, a.named = true, true
		return true
	}
	i := slices.IndexFunc(a.subcommands, func(c *cli.Command) bool { return c.HasName(word) })
	if i < 0 {
		return false
	}
	c := a.subcommands[i]
	a.path = append(a.path, word)
	a.command, a.own, a.subcommands, a.verbatim = c, c.Flags, c.Subcommands, c.ArgsUsage == verbatim
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
	if _, value, given := strings.Cut(word, "="); given {
		a.checkNumber(f, value)
	} else if len(next) > 0 {
		a.checkNumber(f, next[0])
	}
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

// checkNumber notes that a flag whose value is a number has another value.
func (a *arranger) checkNumber(f cli.Flag, value string) {
	switch f.(type) {
	case *cli.IntFlag, *cli.Uint64Flag:
		if !text.IsDecimal(value) && a.number == nil {
			a.number = ofCommand(usagef("%s", badValue(f, value)), cmp.Or(a.command, &cli.Command{}).HelpName)
		}
	}
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
		strange := func(flag string) bool { return findFlag(a.own, flag) == nil }
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
	if a.help && !(a.named && a.unknown) {
		return append(out, "--help")
	}
	if len(a.rest) > 0 {
		out = append(out, "--")
	}
	return append(out, a.rest...)
}

// isFlag reports whether a word is a flag: not "-", which is stdin, and not a
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

// helpWidth is the longest line of a help text, in columns.
const helpWidth = 100

// rootOf returns the app as a command, for its help.
func rootOf(app *cli.App) *cli.Command {
	return &cli.Command{
		Name: app.Name, HelpName: app.Name, Usage: app.Usage, Description: app.Description,
		UsageText: app.Name + " [options] COMMAND", Subcommands: app.Commands, Flags: app.Flags,
	}
}

// writeHelp writes the help of a command.
func writeHelp(out io.Writer, c *cli.Command) {
	sections := []string{"NAME:\n" + indent(c.HelpName+" - "+c.Usage), "USAGE:\n" + indent(usageOf(c))}
	if c.Description != "" {
		sections = append(sections, "DESCRIPTION:\n"+indent(c.Description))
	}
	if len(c.Subcommands) > 0 {
		sections = append(sections, "COMMANDS:\n"+commandsHelp(c.Subcommands))
	}
	sections = append(sections, "OPTIONS:\n"+flagsHelp(c.Flags))
	if c.HelpName != "berth" {
		sections = append(sections, "'berth --help' lists the global options.\n")
	}
	fmt.Fprint(out, strings.Join(sections, "\n"))
}

// usageOf returns how a command is called, a line for each way.
func usageOf(c *cli.Command) string {
	switch {
	case c.UsageText != "":
		return c.UsageText
	case len(c.Subcommands) == 0:
		return strings.TrimSpace(c.HelpName + " [options] " + c.ArgsUsage)
	case len(c.Flags) > 0:
		return c.HelpName + " [options]\n" + c.HelpName + " COMMAND"
	}
	return c.HelpName + " COMMAND"
}

// indent indents the lines of a text, and ends the last one.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(strings.TrimRight("   "+line, " ") + "\n")
	}
	return b.String()
}

// commandsHelp lists commands by their categories, in the order of the commands.
func commandsHelp(commands []*cli.Command) string {
	var categories []string
	rows := map[string][][2]string{}
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		if !slices.Contains(categories, c.Category) {
			categories = append(categories, c.Category)
		}
		rows[c.Category] = append(rows[c.Category], [2]string{c.Name, c.Usage})
	}
	var b strings.Builder
	for _, category := range categories {
		margin := "   "
		if category != "" {
			b.WriteString(margin + category + ":\n")
			margin += "  "
		}
		b.WriteString(helpColumns(margin, rows[category]))
	}
	return b.String()
}

// flagsHelp lists flags with their values and defaults.
func flagsHelp(flags []cli.Flag) string { return helpColumns("   ", flagRows(flags)) }

// flagRows returns flags with their values, each with what it means and its default.
func flagRows(flags []cli.Flag) [][2]string {
	var rows [][2]string
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, can := f.(cli.VisibleFlag); !ok || can && !v.IsVisible() {
			continue
		}
		value, usage := placeholder(d.GetUsage())
		var names []string
		for _, name := range f.Names() {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			names = append([]string{dashes + name}, names...) // the short ones first
		}
		name := strings.Join(names, ", ")
		if d.TakesValue() {
			name += " " + value
		}
		if text := strings.Trim(d.GetDefaultText(), `"`); text != "" && text != "false" {
			usage += " (default: " + text + ")"
		}
		rows = append(rows, [2]string{name, usage})
	}
	return append(rows, [2]string{"-h, --help", "print this help"})
}

// placeholder returns the value of a flag that its usage has between backticks, and the
// usage without them.
func placeholder(usage string) (value, text string) {
	before, rest, ok := strings.Cut(usage, "`")
	if !ok {
		return "VALUE", usage
	}
	value, after, _ := strings.Cut(rest, "`")
	return value, before + value + after
}

// placeholderOf returns the value of a flag as its usage names it.
func placeholderOf(f cli.Flag) string {
	value := ""
	if d, ok := f.(cli.DocGenerationFlag); ok {
		value, _ = placeholder(d.GetUsage())
	}
	return value
}

// helpColumns writes names with their texts, which it wraps.
func helpColumns(margin string, rows [][2]string) string {
	const widest = 30
	column := 0
	for _, row := range rows {
		if n := utf8.RuneCountInString(row[0]); n <= widest {
			column = max(column, n)
		}
	}
	gap := strings.Repeat(" ", column+2)
	var b strings.Builder
	for _, row := range rows {
		line := margin + row[0] + strings.Repeat(" ", max(0, column-utf8.RuneCountInString(row[0]))) + "  "
		if utf8.RuneCountInString(row[0]) > widest {
			b.WriteString(margin + row[0] + "\n")
			line = margin + gap
		}
		used := utf8.RuneCountInString(line)
		for i, word := range strings.Fields(row[1]) {
			n := utf8.RuneCountInString(word)
			switch {
			case i > 0 && used+1+n > helpWidth:
				b.WriteString(line + "\n")
				line, used = margin+gap, len(margin+gap)
			case i > 0:
				line, used = line+" ", used+1
			}
			line, used = line+word, used+n
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}
