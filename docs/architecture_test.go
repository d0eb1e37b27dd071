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
	"strconv"
	"strings"
	"testing"
)

// packageRow is a row of the table of packages: the name, files, lines, and what it holds.
var packageRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| (\\d+) \\| (\\d+) \\| (\\S.*) \\|\n")

// allRow is the last row of that table. onlyTests are packages that are in no binary of berth.
var (
	allRow    = regexp.MustCompile(`(?m)^\| all \|.*$`)
	onlyTests = regexp.MustCompile(`^e2e|test$|^internal/(browser|house|testcert)$`)
)

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

// TestTheArchitectureListsEveryPackage allows figures that are 25 % or 300 lines off, so
// that not every change must touch the table. `make docs` writes it, with the first
// sentence of its doc comment for a package that the table does not have.
func TestTheArchitectureListsEveryPackage(t *testing.T) {
	type size struct{ files, lines int }
	sizes, docs := map[string]size{}, map[string]string{}
	for _, path := range goFiles(t) {
		folder := strings.TrimPrefix(strings.Replace(filepath.Dir(path), "..", "berth", 1), "berth/")
		sizes[folder] = size{sizes[folder].files + 1, sizes[folder].lines + strings.Count(read(t, path), "\n")}
		if m := packageDoc.FindStringSubmatch(read(t, path)); m != nil {
			docs[folder] = strings.ReplaceAll(m[1], "\n//", "")
		}
	}
	text, holds := read(t, "../ARCHITECTURE.md"), map[string]string{}
	for _, m := range packageRow.FindAllStringSubmatch(text, -1) {
		files, _ := strconv.Atoi(m[2])
		lines, _ := strconv.Atoi(m[3])
		now, ok := sizes[m[1]]
		holds[m[1]] = m[4]
		switch {
		case *update:
		case !ok:
			t.Errorf("ARCHITECTURE.md lists %s, which is gone; `make docs` corrects it", m[1])
		case 4*max(files-now.files, now.files-files) > max(now.files, 20) || 4*max(lines-now.lines, now.lines-lines) > max(now.lines, 1200):
			t.Errorf("ARCHITECTURE.md says that %s has %d files and %d lines; it has %d and %d; `make docs` corrects it", m[1], files, lines, now.files, now.lines)
		}
	}
	var table strings.Builder
	var all, tests size
	for _, folder := range slices.Sorted(maps.Keys(sizes)) {
		all = size{all.files + sizes[folder].files, all.lines + sizes[folder].lines}
		if onlyTests.MatchString(folder) {
			tests.lines += sizes[folder].lines
		}
		if holds[folder] == "" && !*update {
			t.Errorf("ARCHITECTURE.md does not list %s; `make docs` adds it", folder)
		}
		fmt.Fprintf(&table, "| `%s` | %d | %d | %s |\n", folder, sizes[folder].files, sizes[folder].lines, cmp.Or(holds[folder], docs[folder], "…"))
	}
	if at := packageRow.FindAllStringIndex(text, -1); *update {
		text = text[:at[0][0]] + table.String() + text[at[len(at)-1][1]:]
		text = allRow.ReplaceAllString(text, fmt.Sprintf("| all | %d | %d | %d of these lines are for tests and measurements only |", all.files, all.lines, tests.lines))
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
