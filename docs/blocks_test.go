package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a page. A comment on the line before, which readers do
// not see, says what the tests do with it:
//
//	(nothing)               sh and python run and must succeed
//	<!-- served -->         sh runs in the background until the page ends, as in another terminal
//	<!-- not run: WHY -->   it is for reading only
//
// A block of text is the complete output of the sh or python block before it, with … for
// anything in a line, and a line of … alone for any lines.
type block struct {
	line   int
	lang   string
	text   string
	served bool
	notRun string // why not
}

// page is a file of documentation.
type page struct {
	name string
	// serve is a server that runs while the page does, as the page tells its reader.
	serve bool
	// variables are those that the page tells its reader to export.
	variables []string
	blocks    []block
}

// A page tells its reader with these words to start a server and to export variables. Comments, which the
// reader does not see, must not prepare anything.
const serveWords = "To try the commands of this page, run [`bin/berth dev`]("

var exportWords = regexp.MustCompile("`export (PATH|PYTHONPATH)=([^`]+)`")

// comments are those that may be on a page: besides the marks of blocks, they delimit generated tables.
var comments = regexp.MustCompile(`^(served|not run: .+|(end of )?(reports|settings|roles))$`)

// languages of blocks. sh and python are run, text is compared with its output, and go with the
// examples of the Go API; do not use another language to avoid that.
var languages = []string{"sh", "python", "text", "go", "yaml", "crontab", "ini", "promql", "groovy"}

// mark is a comment of one line.
var mark = regexp.MustCompile(`^<!-- (.*) -->$`)

// markdown returns the paths of the pages in this folder and below.
func markdown(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// pages reads README.md and the pages in this folder and below.
func pages(t *testing.T) []page {
	t.Helper()
	var all []page
	for _, path := range append([]string{"../README.md"}, markdown(t)...) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := parsePage(path, string(data))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func parsePage(path, text string) (page, error) {
	p := page{name: path}
	var open *block
	comment := "" // of the line before
	paragraph, before := "", ""
	for i, line := range strings.Split(text, "\n") {
		switch {
		case open != nil && line == "```":
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			b, err := newBlock(i+1, line[3:], comment)
			if err != nil {
				return p, fmt.Errorf("%s:%d: %w", path, i+1, err)
			}
			open = &b
		}
		comment = ""
		if open != nil {
			continue
		}
		if m := mark.FindStringSubmatch(line); m != nil {
			comment = m[1]
		}
		if strings.Contains(line, "<!--") && !comments.MatchString(comment) {
			return p, fmt.Errorf("%s:%d: readers do not see %s", path, i+1, line)
		}
		if comment == "served" && !strings.Contains(paragraph, "terminal") {
			return p, fmt.Errorf("%s:%d: the paragraph before does not say in which terminal to start it", path, i+1)
		}
		p.serve = p.serve || strings.HasPrefix(line, serveWords)
		for _, m := range exportWords.FindAllStringSubmatch(line, -1) {
			p.variables = append(p.variables, m[1]+"="+m[2])
		}
		if line != "" && before == "" && comment == "" {
			paragraph = ""
		}
		paragraph, before = paragraph+line+"\n", line
	}
	if open != nil {
		return p, fmt.Errorf("%s:%d: the block does not end", path, open.line)
	}
	return p, nil
}

func newBlock(line int, lang, comment string) (block, error) {
	b := block{line: line, lang: lang, served: comment == "served"}
	if !slices.Contains(languages, lang) {
		return b, fmt.Errorf("a block of %q: there are %s", lang, strings.Join(languages, ", "))
	}
	if why, ok := strings.CutPrefix(comment, "not run:"); ok {
		if b.notRun = strings.TrimSpace(why); b.notRun == "" {
			return b, fmt.Errorf("a block is not run, without a reason")
		}
	}
	return b, nil
}

// The lines of Go on a page are in the examples, in that order.
func TestGoOnThePagesIsInTheExamples(t *testing.T) {
	examples := read(t, "../example_test.go")
	for _, p := range pages(t) {
		rest := examples
		for _, b := range p.blocks {
			for line := range strings.Lines(b.text) {
				if b.lang != "go" || strings.TrimSpace(line) == "" {
					continue
				}
				_, after, ok := strings.Cut(rest, strings.TrimRight("\t"+line, "\n")+"\n")
				if rest = after; !ok {
					t.Fatalf("%s:%d: example_test.go does not go on with %s", p.name, b.line, line)
				}
			}
		}
	}
}

func TestMarksAreUnderstood(t *testing.T) {
	p, err := parsePage("x.md", serveWords+"x).\n```sh\na\n```\n<!-- not run: no -->\n```sh\nb\n```\nIn another terminal, `export PATH=$PWD/bin:$PATH`:\n<!-- served -->\n```sh\nc\n```\n```text\nd\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{line: 2, lang: "sh", text: "a\n"},
		{line: 6, lang: "sh", text: "b\n", notRun: "no"},
		{line: 11, lang: "sh", text: "c\n", served: true},
		{line: 14, lang: "text", text: "d\n"},
	}
	if !p.serve || !slices.Equal(p.variables, []string{"PATH=$PWD/bin:$PATH"}) || !slices.Equal(p.blocks, want) {
		t.Errorf("got %+v", p)
	}
	for _, bad := range []string{
		"```\n```\n", "```shell\n```\n", "```sh\n", "<!-- not run: -->\n```sh\n```\n",
		"<!-- serve: berth dev --pool db=3 -->\n", "Text. <!-- run: berth pools set db 3 -->\n", "<!--\nberth pools set db 3\n-->\n",
		"Start it:\n\n<!-- served -->\n```sh\nc\n```\n",
	} {
		if _, err := parsePage("x.md", bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestPagesOutsideThisFolderHaveNoOtherComments(t *testing.T) {
	for _, path := range []string{"../deploy/README.md", "../deploy/compose/README.md", "../deploy/kubernetes/README.md", "../clients/python/README.md", "../CONTRIBUTING.md", "../SECURITY.md"} {
		if _, err := parsePage(path, read(t, path)); err != nil {
			t.Error(err)
		}
	}
}

// privateWords have a standard word instead, which the message names.
var privateWords = map[string]string{
	`asker`:                     "client token",
	`anew|once more`:            "again",
	`whoever|somebody|anybody`:  "any process that, the operator",
	`tidings|is told of|hears?`: "is notified, reported",
	`in doubt|doubts?`:          "outcome unknown",
	`ask(s|ed)? back|tak(e|es|en) back|g[ia]ve[sn]? back`: "revoke, release",
	`trusts? (it|them|a claim|for)|trusted (for|until)`:   "validity",
	`in line|line of waiters`:                             "wait queue",
	`room`:                                                "capacity, free slots",
	`strange|leftovers`:                                   "orphaned",
	`deeds?|boards?`:                                      "action, run cache",
	`farewell|parting`:                                    "combined release",
	`beside`:                                              "asynchronously",
	`looks?`:                                              "poll, check, read, follow",
}

// notProse are code, output, text in quotes, and a table that is generated.
var notProse = regexp.MustCompile("(?s)<!-- settings -->.*<!-- end|```.*?```|`[^`]*`|\\]\\([^)]*\\)|\"[^\"]*\"|(?m)^    .*$")

func TestPagesHaveNoPrivateWords(t *testing.T) {
	for _, path := range append(markdown(t), "../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../deploy/README.md", "../deploy/compose/README.md", "../deploy/kubernetes/README.md") {
		text := notProse.ReplaceAllString(read(t, path), "")
		for words, instead := range privateWords {
			for _, found := range regexp.MustCompile(`(?i).*\b(`+words+`)\b.*`).FindAllString(text, -1) {
				t.Errorf("%s: write %q in\n%s", path, instead, found)
			}
		}
	}
}

// A reader types the commands of page after page in one shell: a variable that a page leaves there changes what the
// commands of the next pages do.
func TestCommandsLeaveNoExportedVariablesInTheShellOfTheReader(t *testing.T) {
	exported := regexp.MustCompile(`(?m)^export (.+)$`)
	name := regexp.MustCompile(`(?:^| )([A-Z_]+)=`)
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.lang != "sh" || b.notRun != "" {
				continue
			}
			for _, line := range exported.FindAllStringSubmatch(b.text, -1) {
				for _, m := range name.FindAllStringSubmatch(line[1], -1) {
					if !regexp.MustCompile(`(?m)^unset .*\b` + m[1] + `\b`).MatchString(b.text) {
						t.Errorf("%s:%d: %s stays in the shell of the reader: set it for one command, or unset it at the end", p.name, b.line, m[1])
					}
				}
			}
		}
	}
}
