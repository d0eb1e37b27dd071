package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// packageRow is a row of the table of packages: the name, files, lines, and the rest.
var packageRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| (\\d+) \\| (\\d+) \\| (\\S.*) \\|$")

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

// The figures may be off by 10 %; go test ./docs -update corrects them.
func TestTheArchitectureListsEveryPackage(t *testing.T) {
	type size struct{ files, lines int }
	sizes := map[string]size{}
	for _, path := range goFiles(t) {
		folder := strings.TrimPrefix(strings.Replace(filepath.Dir(path), "..", "berth", 1), "berth/")
		sizes[folder] = size{sizes[folder].files + 1, sizes[folder].lines + strings.Count(read(t, path), "\n")}
	}
	text := packageRow.ReplaceAllStringFunc(read(t, "../ARCHITECTURE.md"), func(row string) string {
		m := packageRow.FindStringSubmatch(row)
		files, _ := strconv.Atoi(m[2])
		lines, _ := strconv.Atoi(m[3])
		now := sizes[m[1]]
		if delete(sizes, m[1]); !*update && (10*max(files-now.files, now.files-files) > max(now.files, 10) || 10*max(lines-now.lines, now.lines-lines) > max(now.lines, 200)) {
			t.Errorf("ARCHITECTURE.md says that %s has %d files and %d lines; it has %d and %d", m[1], files, lines, now.files, now.lines)
		}
		return fmt.Sprintf("| `%s` | %d | %d | %s |", m[1], now.files, now.lines, m[4])
	})
	for folder := range sizes {
		t.Errorf("ARCHITECTURE.md does not list %s", folder)
	}
	if *update {
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
