package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// word is a word of berth's own that readers had to learn, with what to write instead.
type word struct {
	refused *regexp.Regexp
	write   string
}

func refuse(pattern, write string) word {
	return word{regexp.MustCompile(`(?i)\b(` + pattern + `)\b`), write}
}

// words are refused in comments and texts. Those that are a single word are refused in the
// names of declarations too. A line of text and a trusted certificate are no such words.
var words = []word{
	refuse(`in\s+line|stands? in (a|the) line|(leaves?|left|out of|behind|ahead of) the line`, "wait queue"),
	refuse(`rooms?`, "capacity, free slots, space; of keys on a lease: key reservation"),
	refuse(`trust|trusts|trusted (for|until)`, "validity, valid"),
	refuse(`askers?`, "client, caller, request"),
	refuse(`doors?`, "server, API; in etcd: to fence earlier writes"),
	refuse(`doubts?`, "outcome unknown, pending write"),
	refuse(`settle[sd]?|settling`, "resolve"),
	refuse(`tidings`, "events"),
	refuse(`told|heard`, "notified, reported, received"),
	refuse(`looks? at|looked at|looking at`, "poll, check, read, follow"),
	refuse(`anew`, "again"),
	refuse(`whoever|whomever|somebody`, "any process that, the operator, another process"),
	refuse(`gather(s|ed|ing)?`, "collect, batch"),
	refuse(`beside`, "next to, in addition to, asynchronously"),
	refuse(`hand(s|ed|ing)?[- ]?overs?`, "transfer"),
	refuse(`farewells?|partings?`, "combined release"),
	refuse(`(ask(s|ed|ing)?|tak(e|es|ing)|took) ((it|them|the claim|a claim) )?back`, "revoke"),
	refuse(`strangers?|leftovers?`, "orphaned"),
	refuse(`stands? for|stood for`, "represent, belong to; of a coordinator: candidate"),
	refuse(`deeds?`, "action"),
}

// wordLists are files that list refused words: this one, and those of pages and of messages.
var wordLists = []string{"internal/house/words_test.go", "docs/blocks_test.go", "cmd/berth/words_test.go"}

// usage is one refused word.
type usage struct {
	path string
	line int
	text string
	word
}

func (u usage) String() string {
	return fmt.Sprintf("%s:%d: %q: write %s", u.path, u.line, u.text, u.write)
}

// namePart is one word of a name such as theWordsOfAName.
var namePart = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// usages returns the refused words of a file.
func (f file) usages() (found []usage) {
	note := func(text string, pos token.Pos) {
		for _, w := range words {
			for _, at := range w.refused.FindAllStringIndex(text, -1) {
				line := f.set.Position(pos).Line + strings.Count(text[:at[0]], "\n")
				found = append(found, usage{f.path, line, text[at[0]:at[1]], w})
			}
		}
	}
	for _, group := range f.syntax.Comments {
		note(group.Text(), group.Pos()) // as one text: a word may be at the end of a line
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				note(text, n.Pos())
			}
		case *ast.Field:
			for _, id := range n.Names {
				noteName(note, id)
			}
		case *ast.FuncDecl:
			noteName(note, n.Name)
		case *ast.TypeSpec:
			noteName(note, n.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				noteName(note, id)
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					noteName(note, id)
				}
			}
		}
		return true
	})
	return found
}

func noteName(note func(string, token.Pos), id *ast.Ident) {
	for _, p := range namePart.FindAllString(id.Name, -1) {
		note(p, id.Pos())
	}
}

// refusedWords returns the usages of all files.
func refusedWords(files []file) (found []string) {
	for _, f := range files {
		if slices.Contains(wordLists, f.path) {
			continue
		}
		for _, u := range f.usages() {
			found = append(found, u.String())
		}
	}
	slices.Sort(found)
	return found
}

func TestWordsArePlain(t *testing.T) { check(t, refusedWords(tree(t))) }

func TestRefusedWordsAreCaught(t *testing.T) {
	got := refusedWords(example(t, map[string]string{
		"a/a.go": "// Package a waits in\n// line.\npackage a\n",
		"a/b.go": "package a; var theDoor = 1; func f(tolds int) { askerID := \"take it back\"; _ = askerID }",
		"a/c.go": "// Package a prints a line of text about trusted certificates in a headroom.\npackage a; import _ \"b/door\"; var doorway = x.Doors",
		"b/a.go": "package b // anew",
	}))
	want := []string{
		`a/a.go:1: "in\nline": write wait queue`,
		`a/b.go:1: "Door": write server, API; in etcd: to fence earlier writes`,
		`a/b.go:1: "asker": write client, caller, request`,
		`a/b.go:1: "take it back": write revoke`,
		`b/a.go:1: "anew": write again`,
	}
	if len(got) != len(want) {
		t.Errorf("caught %q", got)
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("caught %s, want %s", got[i], want[i])
		}
	}
}
