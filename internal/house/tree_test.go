package house

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the import path of the root folder.
const module = "github.com/berthhq/berth"

// file is a Go file of the module, whatever system it is for.
type file struct {
	path   string // from the root, with slashes
	folder string // "." is the root
	test   bool
	set    *token.FileSet
	syntax *ast.File
}

// imports returns the paths that a file imports, and the names it has for them.
func (f file) imports() map[string]string {
	all := map[string]string{}
	for _, spec := range f.syntax.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has refused it
		}
		name := filepath.Base(path)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		all[path] = name
	}
	return all
}

// own returns the folder of an import path of this module.
func own(path string) (folder string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func parse(path string, source []byte) (file, error) {
	path = filepath.ToSlash(path)
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, path, source, parser.ParseComments)
	return file{
		path:   path,
		folder: filepath.ToSlash(filepath.Dir(path)),
		test:   strings.HasSuffix(path, "_test.go"),
		set:    set,
		syntax: syntax,
	}, err
}

// root is the module's folder, seen from this package's.
const root = "../.."

// readTree reads all Go files of the module, once.
var readTree = sync.OnceValues(func() ([]file, error) {
	var all []file
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (name == "testdata" || strings.ContainsAny(name[:1], "._")):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, err := parse(rel, source)
		all = append(all, f)
		return err
	})
	if err == nil && len(all) < 10 {
		err = errors.New("the module's files were not found")
	}
	return all, err
})

func tree(t *testing.T) []file {
	t.Helper()
	all, err := readTree()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// example makes files of a small tree out of their texts.
func example(t *testing.T, texts map[string]string) []file {
	t.Helper()
	var all []file
	for path, text := range texts {
		f, err := parse(path, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// check reports what a rule has found.
func check(t *testing.T, found []string) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}
