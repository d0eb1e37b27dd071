package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"errors"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/manifest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

var outputFlag = &cli.StringFlag{
	Name:    "output",
	Aliases: []string{"o"},
	Value:   "table",
	Usage:   "`FORMAT` of the output: table, json, yaml, or name for one name or id per line",
}

var headersFlag = &cli.BoolFlag{Name: "no-headers", Usage: "print tables without their headers"}

// printer writes the result of a command in the format that the flags ask for.
type printer struct {
	format    string
	out       io.Writer
	now       time.Time // for the ages in tables
	noHeaders bool
	bold      bool // the headers of tables
}

func printerOf(c *cli.Context) (*printer, error) {
	p := &printer{
		format: c.String(outputFlag.Name), out: c.App.Writer, now: time.Now(), noHeaders: c.Bool(headersFlag.Name),
		bold: c.App.Writer == os.Stdout && hasColor(os.Stdout),
	}
	switch p.format {
	case "table", "json", "yaml":
		return p, nil
	case "name":
		of, _, _ := strings.Cut(strings.TrimPrefix(c.Command.HelpName, "berth "), " ")
		if slices.Contains([]string{"pools", "claims", "runs", "queue", "steps", "hosts", "worker", "source", "submit", "actions", "token"}, of) {
			return p, nil
		}
		return nil, usagef("--output can't be name: the output has no names")
	}
	return nil, usagef("--output can't be %q: it must be table, json, yaml or name", p.format)
}

// print writes a value. Its JSON and YAML are for programs and have the names of
// the HTTP API; text makes what people read, and may begin with a table.
func (p *printer) print(value any, text func(*page)) error {
	var b bytes.Buffer
	switch p.format {
	case "json":
		if err := writeJSON(&b, value); err != nil {
			return err
		}
	case "yaml":
		if err := writeYAML(&b, value); err != nil {
			return err
		}
	case "name":
		if err := writeNames(&b, value); err != nil {
			return err
		}
	default:
		text(&page{out: &b, now: p.now, noHeaders: p.noHeaders, bold: p.bold})
	}
	_, err := p.out.Write(b.Bytes())
	return err
}

// hasColor reports whether escape sequences may be written to a file: it is a terminal,
// and NO_COLOR is not set.
func hasColor(f *os.File) bool {
	return isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == ""
}

// named holds the members of JSON records that name them.
type named struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Run      string `json:"run"`
	Step     string `json:"step"`
	Index    int    `json:"index"`
}

func (n named) String() string {
	switch {
	case n.ID != "":
		return n.ID
	case n.Step != "":
		return n.Step + "[" + strconv.Itoa(n.Index) + "]"
	case n.Name != "":
		return n.Name
	case n.Host != "":
		return n.Host + "/" + n.Instance
	}
	return n.Run
}

// writeNames writes the name or id of a record, or of each item of a list, one a line.
func writeNames(w io.Writer, value any) error {
	var text bytes.Buffer
	if err := writeJSON(&text, value); err != nil {
		return err
	}
	var list struct {
		Items *[]named `json:"items"`
		named
	}
	if err := json.Unmarshal(text.Bytes(), &list); err != nil {
		return err
	}
	if list.Items == nil {
		list.Items = &[]named{list.named}
	}
	for _, n := range *list.Items {
		fmt.Fprintln(w, clean(n.String()))
	}
	return nil
}

func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// writeYAML writes a value as its JSON says, so that names, order and forms are
// the same.
func writeYAML(w io.Writer, value any) error {
	var text bytes.Buffer
	if err := writeJSON(&text, value); err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text.Bytes(), &doc); err != nil {
		return err
	}
	plain(&doc)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return err
	}
	return e.Close()
}

// plain takes from a document the style of JSON, where YAML reads the same
// without it: not the quotes of a text that could be a number or, to some
// readers, a truth value, nor the brackets of what is empty.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && !needsQuotes(n) || len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}

func needsQuotes(n *yaml.Node) bool {
	if n.ShortTag() != "!!str" {
		return false
	}
	text, err := yaml.Marshal(n.Value)
	return err != nil || bytes.HasPrefix(text, []byte(`"`))
}

// page is what people read: lines and tables. Writing it can't fail, since it
// goes to memory first.
type page struct {
	out             io.Writer
	now             time.Time
	noHeaders, bold bool
}

// line writes one line.
func (p *page) line(format string, args ...any) {
	fmt.Fprintln(p.out, clean(fmt.Sprintf(format, args...)))
}

// at says when something was; empty if it was never.
func (p *page) at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return text.Ago(p.now, t) + " (" + t.Local().Format(time.DateTime) + ")"
}

// gap writes an empty line.
func (p *page) gap() { fmt.Fprintln(p.out) }

// table writes a head and rows in columns that line up. Without rows it says so
// with the line none.
func (p *page) table(none string, head []string, rows [][]string) {
	switch {
	case p.noHeaders:
		p.columns(rows)
		return
	case len(rows) == 0:
		p.line("%s", none)
		return
	}
	var b bytes.Buffer
	(&page{out: &b}).columns(append([][]string{head}, rows...))
	text := b.String()
	if first, rest, _ := strings.Cut(text, "\n"); p.bold {
		text = "\x1b[1m" + first + "\x1b[0m\n" + rest
	}
	fmt.Fprint(p.out, text)
}

// columns writes rows in columns that line up.
func (p *page) columns(rows [][]string) {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = clean(cell); cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush()
}

// clean takes out what would do something to a terminal: runs, steps and labels
// come from users.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// progress reports progress: in one line that is overwritten on a terminal, and elsewhere
// in a line for each change.
type progress struct {
	out   io.Writer
	what  string // that goes
	line  bool   // it is a terminal
	width func() int
	last  string
}

// newProgress returns the progress of a run.
func newProgress(c *cli.Context, id string) *progress {
	return &progress{
		out: c.App.ErrWriter, what: "berth: run " + id + ": ",
		line: isatty.IsTerminal(os.Stderr.Fd()) && os.Getenv("TERM") != "dumb", width: terminalWidth,
	}
}

func (p *progress) report(text string) {
	if text == p.last {
		return
	}
	p.last = text
	text = clean(p.what + text)
	if !p.line {
		fmt.Fprintln(p.out, text)
		return
	}
	// A line that wraps could not be written over.
	if most := p.width() - 1; most > 1 && utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most-1]) + "…"
	}
	fmt.Fprint(p.out, "\r\x1b[K"+text)
}

// end leaves the terminal to others.
func (p *progress) end() {
	if p.line && p.last != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// terminalWidth is that of stderr in columns, 0 if it is not known.
func terminalWidth() int {
	size, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// are is the verb of so many.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// sortedNames returns the keys of a map in order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// usageError is the error of a command line that is not valid.
type usageError struct {
	message string
	command string // whose help says how to write it
}

// Error returns what is wrong, and where to read how to write it.
func (e *usageError) Error() string {
	see := "; see"
	if strings.HasSuffix(e.message, "?") {
		see = " See"
	}
	return e.message + see + " '" + cmp.Or(e.command, "berth") + " --help'"
}

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// ofCommand returns an error with the command that it is about, if it is a usage error.
func ofCommand(err error, command string) error {
	var usage *usageError
	if errors.As(err, &usage) && usage.command == "" {
		usage.command = command
	}
	return err
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

// ofLine returns the error of a command line with the exit code of usage errors, if it says that a flag or an
// argument is not valid. Mistakes in a file that the line names are not of the line.
func ofLine(err error) error {
	var in *manifest.Problems
	var own *statusError
	if problem.CodeOf(err) == problem.Invalid && !errors.As(err, &in) && !errors.As(err, &own) {
		return &statusError{problem.ExitUsage, err}
	}
	return err
}

// refusedPool returns an error with the exit code of a refusal if the request names a pool
// that does not exist. A command that is about the pool itself fails with 1.
func refusedPool(err error) error {
	if problem.CodeOf(err) == problem.PoolNotFound {
		return &statusError{problem.ExitRefused, err}
	}
	return err
}

// report writes the one line about an error and returns the exit code.
func report(w io.Writer, err error) int {
	prefix := "berth:"
	if w == os.Stderr && hasColor(os.Stderr) {
		prefix = "\x1b[31m" + prefix + "\x1b[0m"
	}
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
		fmt.Fprintf(w, "%s %v\n", prefix, err)
		return problem.ExitUsage
	case errors.As(err, &settings):
		fmt.Fprintf(w, "%s %v\n", prefix, err)
		if settings.NoCertificate() {
			return problem.ExitRefused
		}
		return problem.ExitUsage
	}
	fmt.Fprintf(w, "%s %s\n", prefix, explain(err))
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
	problem.EtcdUnavailable: "is etcd running, and are the endpoints right (--endpoints, BERTH_ENDPOINTS)? 'berth dev' starts one for a trial",
	problem.EtcdDenied:      "give a user or a certificate with rights on the prefix (--user, --cert and --key)",
	problem.PoolNotFound:    "'berth pools list' lists the pools, 'berth pools set NAME LIMIT' creates one",
	problem.ClaimNotFound:   "'berth claims list' lists the claims",
	problem.RunNotFound:     "'berth runs list' lists the runs",
	problem.Unauthorized:    "give the token of the sidecar in BERTH_TOKEN or BERTH_TOKEN_FILE, or unset them if it has none",
}

// explain makes one line of an error: what happened, and what to do.
func explain(err error) string {
	text := strings.TrimSuffix(err.Error(), "\n")
	if strings.Contains(text, "x509: certificate has expired or is not yet valid") {
		return text + "; this is the certificate of the server: replace it there, for example with 'berth certs issue NAME --renew', or correct the clock"
	}
	if todo, ok := advice[problem.CodeOf(err)]; ok && !slices.ContainsFunc(advised, func(part string) bool { return strings.Contains(text, part) }) {
		if strings.HasSuffix(text, "?") {
			return text + " " + todo
		}
		return text + "; " + todo
	}
	return text
}

// advised are parts of messages that say what to do themselves, or for which the advice is wrong: the etcd that another
// process waits for is not in the settings of this one.
var advised = []string{"berth ", "not ready: ", "no secure connection", "set user and password_file", "socket_group"}

// onUsageError words what package flag finds wrong.
func onUsageError(c *cli.Context, err error, _ bool) error {
	said := err.Error()
	flag, unknown := strings.CutPrefix(said, "flag provided but not defined: -")
	bare, needs := strings.CutPrefix(said, "flag needs an argument: -")
	// invalid value "x" for flag -wait: parse error
	value, invalid, _ := strings.Cut(strings.TrimPrefix(said, "invalid value "), " for flag -")
	switch {
	case unknown:
		said = "unknown flag --" + strings.TrimLeft(flag, "-")
		if said == "unknown flag --retain" {
			said += ": " + pool.RetainRemoved
		} else if near := text.Nearest(strings.TrimLeft(flag, "-"), flagNames(c)); near != "" {
			said += ": did you mean --" + near + "?"
		}
	case needs:
		said = "--" + strings.TrimLeft(bare, "-") + " needs a value"
	case invalid != "":
		name, _, _ := strings.Cut(invalid, ":")
		said = badFlag(c, name, value)
	case strings.HasPrefix(said, "invalid boolean value "):
		value, name, _ := strings.Cut(strings.TrimPrefix(said, "invalid boolean value "), " for -")
		name, _, _ = strings.Cut(name, ":")
		said = badFlag(c, name, value)
	}
	return ofCommand(usagef("%s", said), cmp.Or(c.Command.HelpName, "berth"))
}

// badFlag words that the flag of a name has an invalid value, which is quoted.
func badFlag(c *cli.Context, name, quoted string) string {
	f := findFlag(append(slices.Clone(c.Command.Flags), c.App.Flags...), name)
	value, err := strconv.Unquote(quoted)
	if f == nil || err != nil {
		return "--" + name + " can't be " + quoted
	}
	return badValue(f, value)
}

// badValue words that a flag has an invalid value.
func badValue(f cli.Flag, value string) string {
	must := "another value"
	switch f.(type) {
	case *cli.IntFlag, *cli.Uint64Flag:
		must = "a whole number, such as 10"
	case *cli.DurationFlag:
		must = "a duration such as 30s, 5m or 1h30m"
	case *cli.BoolFlag:
		must = "true or false"
	}
	return fmt.Sprintf("--%s must be %s, not %q", f.Names()[0], must, value)
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
