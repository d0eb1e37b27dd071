package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/source"
	"github.com/urfave/cli/v2"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Category:  helping,
		Usage:     "print a script that completes commands, flags and names in a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: `bash: berth completion bash > ~/.local/share/bash-completion/completions/berth
zsh:  berth completion zsh > "${fpath[1]}/_berth"
fish: berth completion fish > ~/.config/fish/completions/berth.fish

New shells load it. For the current one: source <(berth completion bash)`,
		Action: handle(func(r *request) error {
			script, ok := completionScripts[r.args[0]]
			if !ok {
				return usagef("there is no completion for %q: the shells are bash, zsh and fish", r.args[0])
			}
			_, err := fmt.Fprint(r.out, script)
			return err
		}, argument{name: "a shell: bash, zsh or fish"}),
	}
}

// manCommand is for packages, which contain the pages.
func manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Hidden: true,
		Usage:     "write the man pages of all commands into a folder",
		ArgsUsage: "DIR",
		Action: handle(func(r *request) error {
			if info, err := os.Stat(r.args[0]); err != nil || !info.IsDir() {
				return usagef("%q is not a folder", r.args[0])
			}
			root := rootOf(r.App)
			for _, c := range append([]*cli.Command{root}, root.Subcommands...) {
				if c.Hidden {
					continue
				}
				path := filepath.Join(r.args[0], manName(c)+".1")
				if err := os.WriteFile(path, []byte(manPage(c)), 0o644); err != nil {
					return err
				}
			}
			return nil
		}, argument{name: "a folder"}),
	}
}

// manName returns the name of the page of a command.
func manName(c *cli.Command) string { return strings.ReplaceAll(c.HelpName, " ", "-") }

// manPage returns the page of a command and of the commands below it. The pages of those
// below berth are pages of their own.
func manPage(c *cli.Command) string {
	var b strings.Builder
	name := manName(c)
	fmt.Fprintf(&b, ".TH %s 1 \"\" %q \"berth\"\n", strings.ToUpper(name), "berth "+version())
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", roff(name), roff(c.Usage))
	manCommandText(&b, c, ".SH DESCRIPTION", ".SH OPTIONS")
	seeAlso := "berth"
	switch {
	case c.HelpName == "berth":
		b.WriteString(".SH COMMANDS\n")
		var pages []string
		for _, sub := range c.Subcommands {
			if !sub.Hidden {
				fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(sub.HelpName), roff(sub.Usage))
				pages = append(pages, manName(sub))
			}
		}
		seeAlso = strings.Join(pages, "(1), ")
	case len(c.Subcommands) > 0:
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range c.Subcommands {
			fmt.Fprintf(&b, ".SS %s\n%s.\n", roff(sub.HelpName), roff(sub.Usage))
			manCommandText(&b, sub, ".PP", ".PP\nOptions:")
		}
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s(1)\n", roff(seeAlso))
	return b.String()
}

// manCommandText writes how a command is called, its description, and its flags.
func manCommandText(b *strings.Builder, c *cli.Command, description, options string) {
	for i, line := range strings.Split(usageOf(c), "\n") {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(b, "\\fB%s\\fR\n", roff(line))
	}
	if c.Description != "" {
		b.WriteString(description + "\n")
		example := false // indented lines keep their form
		for line := range strings.SplitSeq(c.Description, "\n") {
			if indented := strings.HasPrefix(line, " "); line != "" && indented != example {
				example = indented
				b.WriteString(map[bool]string{true: ".PP\n.nf\n", false: ".fi\n"}[example])
			}
			b.WriteString(cmp.Or(roff(line), ".PP") + "\n")
		}
		if example {
			b.WriteString(".fi\n")
		}
	}
	b.WriteString(options + "\n")
	for _, row := range flagRows(c.Flags) {
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s\n", roff(row[0]), roff(row[1]))
	}
}

// roff escapes a line of text: a minus can be copied, and a dot at its start is no request.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}

// completeVerb is what the scripts call: the words of the line up to the cursor
// follow it. It prints what the last one could become, each with a tab and a
// description behind. Nothing means that the shell may offer files.
const completeVerb = "__complete"

var completionScripts = map[string]string{
	"bash": `# bash completion of berth
_berth() {
	local IFS=$'\n'
	COMPREPLY=($("${COMP_WORDS[0]}" ` + completeVerb + ` "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _berth berth
`,
	"zsh": `#compdef berth
# zsh completion of berth
_berth() {
	local -a found
	found=("${(@f)$("${words[1]}" ` + completeVerb + ` "${(@)words[2,CURRENT]}" 2>/dev/null | sed -e 's/:/\\:/g' -e 's/	/:/')}")
	if [[ -n "${found[1]}" ]]; then
		_describe berth found
	else
		_files
	fi
}
if [[ "${funcstack[1]}" == _berth ]]; then
	_berth
else
	compdef _berth berth
fi
`,
	"fish": `# fish completion of berth
function __berth_complete
	set -l before (commandline -opc)
	command $before[1] ` + completeVerb + ` $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c berth -a '(__berth_complete)'
`,
}

// candidate is what a word of a command line could become.
type candidate struct{ word, about string }

// printCandidates writes the candidates for the last word of a line.
func printCandidates(w io.Writer, app *cli.App, words []string) int {
	for _, c := range complete(app, words) {
		fmt.Fprintf(w, "%s\t%s\n", c.word, c.about)
	}
	return 0
}

// complete finds what the last of the words could become.
func complete(app *cli.App, words []string) []candidate {
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	a := arranger{root: app.Flags, subcommands: app.Commands}
	for before := words[:len(words)-1]; len(before) > 0; {
		word := before[0]
		before = before[1:]
		switch {
		case word == "--":
			return nil
		case isFlag(word):
			if f, _ := a.find(word); f != nil && takesValue(f) && !strings.Contains(word, "=") && len(before) == 0 {
				return starting(append(values(f), a.lookUp(app, placeholderOf(f))...), last)
			}
			before = a.flag(word, before)
		case a.descend(word):
		default:
			a.rest = append(a.rest, word)
			if a.verbatim {
				return nil
			}
		}
	}
	switch {
	case strings.HasPrefix(last, "-"):
		return starting(flagCandidates(slices.Concat(a.own, a.root)), last)
	case len(a.subcommands) > 0 && len(a.rest) == 0:
		return starting(commandCandidates(a.subcommands), last)
	case a.command != nil:
		if words := strings.Fields(a.command.ArgsUsage); len(a.rest) < len(words) {
			return starting(a.lookUp(app, strings.TrimSuffix(strings.TrimPrefix(words[len(a.rest)], "["), "]]")), last)
		}
	}
	return nil
}

// lookUpTimeout bounds how long a completion reads etcd.
const lookUpTimeout = 2 * time.Second

// lookUp returns the names that a placeholder such as POOL can be, read from etcd. It
// returns none if etcd does not answer.
func (a *arranger) lookUp(app *cli.App, placeholder string) (all []candidate) {
	read, ok := lookUps[placeholder]
	if !ok || a.command == nil {
		return nil
	}
	a.command.Action = handle(func(r *request) error {
		return r.connect(func() error {
			names, err := read(r, a.rest)
			for _, name := range names {
				all = append(all, candidate{name, ""})
			}
			return err
		})
	})
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTimeout)
	defer cancel()
	app.Writer, app.ErrWriter = io.Discard, io.Discard
	_ = app.RunContext(ctx, slices.Concat([]string{app.Name}, a.globals, a.path)) // without an answer there are none
	return all
}

// lookUps read the names for the placeholders of arguments and flags, given the arguments
// before.
var lookUps = map[string]func(r *request, before []string) ([]string, error){
	"POOL": poolNames, "POOL=SLOTS": poolNames,
	"CLAIM": func(r *request, _ []string) ([]string, error) {
		holders, waiters, err := r.Claims(r.ctx())
		return append(namesOf(holders, func(h pool.HolderStatus) string { return h.Claim }),
			namesOf(waiters, func(w pool.WaiterStatus) string { return w.Claim })...), err
	},
	"RUN": func(r *request, _ []string) ([]string, error) {
		all, err := r.Runs.All(r.ctx())
		if err != nil {
			return nil, err
		}
		return namesOf(all.With(), func(one *run.Run) string { return one.ID }), nil
	},
	"STEP[INDEX]": stepNames, "STEP|STEP[INDEX": stepNames,
	"HOST": func(r *request, _ []string) ([]string, error) {
		f, err := r.Fleet(r.ctx())
		if err != nil {
			return nil, err
		}
		return slices.Compact(namesOf(f.Hosts, func(h inspect.Host) string { return h.Host })), nil
	},
	"HOST/INSTANCE": workerNames, "HOST[/INSTANCE": workerNames,
	"SOURCE": func(r *request, _ []string) ([]string, error) {
		all, err := sourcesOf(r).All(r.ctx())
		return namesOf(all, func(o source.Overview) string { return o.Name }), err
	},
}

func namesOf[T any](all []T, name func(T) string) []string {
	var names []string
	for _, one := range all {
		names = append(names, name(one))
	}
	return names
}

func poolNames(r *request, _ []string) ([]string, error) {
	all, err := r.Pools(r.ctx())
	return namesOf(all, func(p pool.Status) string { return p.Name }), err
}

func stepNames(r *request, before []string) ([]string, error) {
	o, err := r.Steps.Overview(r.ctx(), before[0])
	if err != nil {
		return nil, err
	}
	return namesOf(o.Steps, func(s step.Summary) string { return s.Shape.Name }), nil
}

func workerNames(r *request, _ []string) ([]string, error) {
	f, err := r.Fleet(r.ctx())
	if err != nil {
		return nil, err
	}
	return namesOf(f.Workers, func(w inspect.Worker) string { return w.Host + "/" + w.Instance }), nil
}

func starting(all []candidate, with string) []candidate {
	return slices.DeleteFunc(all, func(c candidate) bool { return !strings.HasPrefix(c.word, with) })
}

func commandCandidates(commands []*cli.Command) []candidate {
	var all []candidate
	for _, c := range commands {
		if !c.Hidden {
			all = append(all, candidate{c.Name, c.Usage})
		}
	}
	return all
}

// flagCandidates are the long names: they are what a reader of the line
// understands.
func flagCandidates(flags []cli.Flag) []candidate {
	all := []candidate{{"--help", "print help"}}
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
			continue
		}
		about := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			about = strings.ReplaceAll(d.GetUsage(), "`", "")
		}
		all = append(all, candidate{"--" + f.Names()[0], about})
	}
	return all
}

// values are what the value of a flag can be, where there are few.
func values(f cli.Flag) []candidate {
	var all []candidate
	for _, word := range map[string][]string{
		"output":     {"table", "json", "yaml", "name"},
		"log-level":  {"trace", "debug", "info", "warn", "error"},
		"log-format": {"text", "json"},
		"status":     strings.Split(statusNames(), ", "),
	}[f.Names()[0]] {
		all = append(all, candidate{word, ""})
	}
	return all
}
