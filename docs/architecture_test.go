package docs_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packageRow is a row of the table of packages: the name, and what it holds.
var packageRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| (\\S.*) \\|\n")

// packageDoc is the first sentence of a package's doc comment.
var packageDoc = regexp.MustCompile(`(?s)^// Package \w+ ([^.]+)\.\s`)

// goFiles returns the paths of the module's Go files outside tests.
func goFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "/testdata/") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTheArchitectureListsEveryPackage compares the table with the folders that hold Go
// files. `make docs` adds a package with the first sentence of its doc comment.
func TestTheArchitectureListsEveryPackage(t *testing.T) {
	docs := map[string]string{}
	for _, path := range goFiles(t) {
		folder := strings.TrimPrefix(strings.Replace(filepath.Dir(path), "..", "berth", 1), "berth/")
		docs[folder] = cmp.Or(docs[folder], "…")
		if m := packageDoc.FindStringSubmatch(read(t, path)); m != nil {
			docs[folder] = strings.ReplaceAll(m[1], "\n//", "")
		}
	}
	text, holds := read(t, "../ARCHITECTURE.md"), map[string]string{}
	for _, m := range packageRow.FindAllStringSubmatch(text, -1) {
		holds[m[1]] = m[2]
		if _, ok := docs[m[1]]; !ok && !*update {
			t.Errorf("ARCHITECTURE.md lists %s, which is not a package; `make docs` removes it", m[1])
		}
	}
	var table strings.Builder
	for _, folder := range slices.Sorted(maps.Keys(docs)) {
		if holds[folder] == "" && !*update {
			t.Errorf("ARCHITECTURE.md does not list %s; `make docs` adds it", folder)
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", folder, cmp.Or(holds[folder], docs[folder]))
	}
	if at := packageRow.FindAllStringIndex(text, -1); *update {
		text = text[:at[0][0]] + table.String() + text[at[len(at)-1][1]:]
		if err := os.WriteFile("../ARCHITECTURE.md", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesThatTheArchitectureNamesExist(t *testing.T) {
	designs, err := filepath.Glob("design/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(designs, "../ARCHITECTURE.md") {
		for _, m := range regexp.MustCompile("`([a-z0-9_/]+\\.go)`").FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat("../" + m[1]); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
