package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// wrongComments returns the folders that have no package comment, or several. A
// reader should find the story of a package in one place.
func wrongComments(files []file) []string {
	with := map[string][]string{}
	for _, f := range files {
		if strings.HasSuffix(f.syntax.Name.Name, "_test") || f.test && f.syntax.Doc == nil {
			continue
		}
		if with[f.folder] == nil {
			with[f.folder] = []string{}
		}
		if f.syntax.Doc != nil {
			with[f.folder] = append(with[f.folder], f.path)
		}
	}
	var found []string
	for folder, paths := range with {
		slices.Sort(paths)
		switch len(paths) {
		case 0:
			found = append(found, fmt.Sprintf("%s: no file has a package comment", folder))
		case 1:
		default:
			found = append(found, fmt.Sprintf("%s: several files have a package comment: %s", folder, strings.Join(paths, ", ")))
		}
	}
	slices.Sort(found)
	return found
}

func TestEveryPackageHasOneComment(t *testing.T) { check(t, wrongComments(tree(t))) }

func TestWrongPackageCommentsAreCaught(t *testing.T) {
	got := wrongComments(example(t, map[string]string{
		"none/a.go":       "package none",
		"one/a.go":        "// Package one is good.\npackage one",
		"one/b.go":        "// not a comment of the package\n\npackage one",
		"one/a_test.go":   "package one",
		"two/a.go":        "// Package two is described.\npackage two",
		"two/b.go":        "// Package two is described again.\npackage two",
		"tests/a_test.go": "// Package tests_test is an outside test.\npackage tests_test",
	}))
	want := []string{
		"none: no file has a package comment",
		"two: several files have a package comment: two/a.go, two/b.go",
	}
	if !slices.Equal(got, want) {
		t.Errorf("caught %q, want %q", got, want)
	}
}
