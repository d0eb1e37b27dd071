package house

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// hidden reports whether importers of the Go API can't name, or should not need, the types
// of a package: those of internal packages, and those of the libraries behind the API.
func hidden(path string) bool {
	folder, ok := own(path)
	return ok && strings.HasPrefix(folder, "internal/") || !ok && slices.ContainsFunc([]string{
		"github.com/hashicorp/go-hclog", "go.etcd.io/etcd",
	}, func(lib string) bool { return path == lib || strings.HasPrefix(path, lib+"/") })
}

// hiddenTypes returns the exported declarations of the files of a folder that name a hidden
// type: in a signature, an exported field, or a constant or variable.
func hiddenTypes(files []file, folder string) []string {
	var found []string
	for _, f := range files {
		if f.test || f.folder != folder {
			continue
		}
		locals := map[string]string{}
		for path, local := range f.imports() {
			if hidden(path) {
				locals[strings.TrimPrefix(local, "go-")] = path
			}
		}
		for name, types := range exportedTypes(f.syntax) {
			for _, typ := range types {
				ast.Inspect(typ, func(n ast.Node) bool {
					if x, ok := n.(*ast.SelectorExpr); ok {
						if id, ok := x.X.(*ast.Ident); ok && locals[id.Name] != "" {
							found = append(found, fmt.Sprintf("%s: %s names %s.%s: importers can't", f.path, name, locals[id.Name], x.Sel.Name))
						}
					}
					return true
				})
			}
		}
	}
	slices.Sort(found)
	return found
}

// exportedTypes returns the type expressions that a file shows to importers, by the names of
// their declarations.
func exportedTypes(syntax *ast.File) map[string][]ast.Node {
	all := map[string][]ast.Node{}
	for _, d := range syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv)) {
				all[d.Name.Name] = append(all[d.Name.Name], d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				maps.Copy(all, exportedSpec(spec))
			}
		}
	}
	return all
}

func exportedReceiver(recv *ast.FieldList) bool {
	t := recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	id, ok := t.(*ast.Ident)
	return !ok || id.IsExported()
}

// exportedSpec returns the same of one type, or of constants or variables.
func exportedSpec(spec ast.Spec) map[string][]ast.Node {
	all := map[string][]ast.Node{}
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			break
		}
		fields, ok := s.Type.(*ast.StructType)
		if !ok {
			all[s.Name.Name] = []ast.Node{s.Type}
			break
		}
		for _, field := range fields.Fields.List {
			if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
				all[s.Name.Name] = append(all[s.Name.Name], field.Type)
			}
		}
	case *ast.ValueSpec:
		if s.Type != nil && slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
			all[s.Names[0].Name] = []ast.Node{s.Type}
		}
	}
	return all
}

func TestImportersCanNameEveryTypeOfTheGoAPI(t *testing.T) { check(t, hiddenTypes(tree(t), ".")) }

func TestHiddenTypesAreCaught(t *testing.T) {
	const imports = `import ("github.com/berthhq/berth/internal/store"; "github.com/berthhq/berth/pool"; "github.com/hashicorp/go-hclog"); `
	got := hiddenTypes(example(t, map[string]string{
		"a.go": `package berth; ` + imports + `func F(store.Extra) pool.Reason`,
		"b.go": `package berth; ` + imports + `type T struct { l hclog.Logger; S *store.Client }; func (t *T) M(...func(hclog.Logger)) {}`,
		"c.go": `package berth; ` + imports + `type t struct { S store.Client }; func (t) M(store.Client) {}; func f(store.Client) {}; type u = store.Client; var X = store.New()`,
		"d.go": `package berth; ` + imports + `type A = store.Client; var V hclog.Logger`,
	}), ".")
	var at []string
	for _, f := range got {
		at = append(at, strings.Join(strings.Fields(f)[:2], " "))
	}
	if want := []string{"a.go: F", "b.go: M", "b.go: T", "d.go: A", "d.go: V"}; !slices.Equal(at, want) {
		t.Errorf("caught %q, want %q", at, want)
	}
}
