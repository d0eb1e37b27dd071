package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"
)

// The limits of what makes code hard to hold in mind. Each has a list of exceptions, which only
// shrinks: an exception that is not needed fails the test, and so does a number that is not exact.
const (
	fieldLimit    = 25 // fields of a struct, with those of its embedded and nested unexported structs
	pointerLimit  = 60 // functions of a package that take a pointer to one of its types
	operatorLimit = 3  // && and || in one expression
	writerLimit   = 1  // files that write one field of a component
)

// typed is a package with the types of its code outside tests.
type typed struct {
	folder string
	set    *token.FileSet
	files  []*ast.File
	info   *types.Info
	types  *types.Package
}

// loadTyped reads the module's packages with their types, once.
var loadTyped = sync.OnceValues(func() ([]typed, error) {
	config := &packages.Config{
		Dir:  root,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
	}
	loaded, err := packages.Load(config, "./...")
	if err != nil {
		return nil, err
	}
	var all []typed
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if folder, ok := own(p.PkgPath); ok {
			all = append(all, typed{folder, p.Fset, p.Syntax, p.TypesInfo, p.Types})
		}
	}
	return all, nil
})

func typedTree(t *testing.T) []typed {
	t.Helper()
	tree(t) // so that the test runs again when a file has changed
	all, err := loadTyped()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// typedExample makes packages of the sources of their files.
func typedExample(t *testing.T, folder string, sources ...string) typed {
	t.Helper()
	p := typed{folder: folder, set: token.NewFileSet(), info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	for i, source := range sources {
		f, err := parser.ParseFile(p.set, fmt.Sprintf("%c.go", 'a'+i), source, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, f)
	}
	var err error
	if p.types, err = new(types.Config).Check(folder, p.set, p.files, p.info); err != nil {
		t.Fatal(err)
	}
	return p
}

// excess is what is over a limit, with its number. Names are FOLDER.TYPE, FOLDER.TYPE.FIELD and
// FOLDER.FUNCTION.
type excess map[string]int

// exception is what may be over a limit.
type exception struct {
	why    string
	listed excess
}

// compare returns what is over a limit and not an exception, and the exceptions whose number has
// become smaller.
func (e excess) compare(what string, limit int, exceptions []exception) (found []string) {
	listed := excess{}
	for _, x := range exceptions {
		maps.Copy(listed, x.listed)
	}
	for name, n := range e {
		if n > listed[name] {
			found = append(found, fmt.Sprintf("%s: %d %s, more than %d", name, n, what, max(limit, listed[name])))
		}
	}
	for name, n := range listed {
		if e[name] < n {
			found = append(found, fmt.Sprintf("%s: the exceptions list %d %s, and it has %d (0 is within the limit): correct the list", name, n, what, e[name]))
		}
	}
	slices.Sort(found)
	return found
}

// named returns the type of a package that a type or a pointer to it names, nil if none.
func (p typed) named(t types.Type) *types.TypeName {
	if ptr, ok := types.Unalias(t).(*types.Pointer); ok {
		t = ptr.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() != p.types {
		return nil
	}
	return n.Origin().Obj()
}

func (p typed) structs() map[*types.TypeName]*types.Struct {
	all := map[*types.TypeName]*types.Struct{}
	for _, name := range p.types.Scope().Names() {
		if obj, ok := p.types.Scope().Lookup(name).(*types.TypeName); ok && !obj.IsAlias() {
			if s, ok := obj.Type().Underlying().(*types.Struct); ok {
				all[obj] = s
			}
		}
	}
	return all
}

// isRecord reports whether a struct is a wire record or a table of settings: all its fields are
// exported.
func isRecord(s *types.Struct) bool {
	for f := range s.Fields() {
		if !f.Exported() {
			return false
		}
	}
	return true
}

// fieldCounts returns the structs with more fields than the limit.
func (p typed) fieldCounts() excess {
	over, all, writers := excess{}, p.structs(), p.writers()
	inOneFile := func(of *types.TypeName) bool {
		files := map[string]bool{}
		for w, in := range writers {
			if w.of == of {
				maps.Copy(files, in)
			}
		}
		return len(files) <= 1
	}
	var count func(s *types.Struct) int
	count = func(s *types.Struct) (n int) {
		for f := range s.Fields() {
			n++
			inner := p.named(f.Type())
			if _, pointer := types.Unalias(f.Type()).(*types.Pointer); pointer && !f.Embedded() || inner == nil || inner.Exported() {
				continue
			}
			if nested, ok := all[inner]; ok && !isRecord(nested) && !inOneFile(inner) {
				n += count(nested)
			}
		}
		return n
	}
	for obj, s := range all {
		if n := count(s); n > fieldLimit && !isRecord(s) {
			over[p.folder+"."+obj.Name()] = n
		}
	}
	return over
}

// pointerCounts returns the types with more functions that take a pointer to them than the limit.
func (p typed) pointerCounts() excess {
	counts := map[*types.TypeName]int{}
	for _, f := range p.files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			sig := p.info.Defs[fn.Name].Type().(*types.Signature)
			takes := map[*types.TypeName]bool{}
			take := func(v *types.Var) {
				if v == nil {
					return
				}
				if _, ok := types.Unalias(v.Type()).(*types.Pointer); ok {
					takes[p.named(v.Type())] = true
				}
			}
			take(sig.Recv())
			for v := range sig.Params().Variables() {
				take(v)
			}
			for obj := range takes {
				counts[obj]++
			}
		}
	}
	over := excess{}
	for obj, n := range counts {
		if obj != nil && n > pointerLimit {
			over[p.folder+"."+obj.Name()] = n
		}
	}
	return over
}

// operatorCounts returns the functions with an expression of more boolean operators than the
// limit, and the most that one has.
func (p typed) operatorCounts() excess {
	over := excess{}
	for _, f := range p.files {
		for _, d := range f.Decls {
			most := 0
			ast.Inspect(d, func(n ast.Node) bool {
				if e, ok := n.(*ast.BinaryExpr); ok {
					most = max(most, operators(e))
				}
				return true
			})
			if most > operatorLimit {
				over[p.folder+"."+declName(d)] = most
			}
		}
	}
	return over
}

// operators counts the boolean operators of an expression. Those in a function literal or an
// argument within it are of another expression.
func operators(e ast.Expr) int {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			return 1 + operators(e.X) + operators(e.Y)
		}
		return operators(e.X) + operators(e.Y)
	case *ast.ParenExpr:
		return operators(e.X)
	case *ast.UnaryExpr:
		return operators(e.X)
	}
	return 0
}

func declName(d ast.Decl) string {
	fn, ok := d.(*ast.FuncDecl)
	if !ok {
		return "declaration"
	}
	if fn.Recv == nil {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	return types.ExprString(t) + "." + fn.Name.Name
}

// written is a field of a struct.
type written struct {
	of    *types.TypeName
	field string
}

// writers returns the files that write the unexported fields of each struct outside its
// constructors. A constructor returns the struct or a pointer to it.
func (p typed) writers() map[written]map[string]bool {
	all := map[written]map[string]bool{}
	for _, f := range p.files {
		name := p.set.Position(f.Pos()).Filename
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			makes := map[*types.TypeName]bool{}
			for v := range p.info.Defs[fn.Name].Type().(*types.Signature).Results().Variables() {
				makes[p.named(v.Type())] = true
			}
			for _, target := range targets(fn.Body) {
				w, ok := p.field(target)
				if !ok || makes[w.of] {
					continue
				}
				if all[w] == nil {
					all[w] = map[string]bool{}
				}
				all[w][name] = true
			}
		}
	}
	return all
}

// targets returns the expressions that statements assign to, and the maps that they delete from.
func targets(body ast.Node) (all []ast.Expr) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				all = append(all, n.Lhs...)
			}
		case *ast.IncDecStmt:
			all = append(all, n.X)
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") {
				all = append(all, n.Args[0])
			}
		}
		return true
	})
	return all
}

// field returns the field that an assignment to an expression writes: of x.f and x.f[i].
func (p typed) field(e ast.Expr) (written, bool) {
	switch e := e.(type) {
	case *ast.IndexExpr:
		return p.field(e.X)
	case *ast.ParenExpr:
		return p.field(e.X)
	case *ast.SelectorExpr:
		sel, ok := p.info.Selections[e]
		if !ok || sel.Kind() != types.FieldVal || sel.Obj().Exported() {
			return written{}, false
		}
		of := p.ownerOf(sel)
		return written{of, sel.Obj().Name()}, of != nil
	}
	return written{}, false
}

// ownerOf returns the struct that declares a selected field, which an embedded one can be.
func (p typed) ownerOf(sel *types.Selection) *types.TypeName {
	at := p.named(sel.Recv())
	for _, i := range sel.Index()[:len(sel.Index())-1] {
		if at == nil {
			return nil
		}
		at = p.named(at.Type().Underlying().(*types.Struct).Field(i).Type())
	}
	return at
}

// isComponentFolder reports whether a folder holds components: structs with a state of their own.
func isComponentFolder(folder string) bool {
	return slices.ContainsFunc([]string{"pool/...", "pool", "coordinator", "sidecar/...", "lease"}, func(pattern string) bool { return matches(pattern, folder) })
}

// writerCounts returns the fields of components that more files write than the limit.
func (p typed) writerCounts() excess {
	over := excess{}
	if !isComponentFolder(p.folder) {
		return over
	}
	for w, files := range p.writers() {
		if len(files) > writerLimit {
			over[p.folder+"."+w.of.Name()+"."+w.field] = len(files)
		}
	}
	return over
}

func collect(all []typed, count func(typed) excess) excess {
	over := excess{}
	for _, p := range all {
		maps.Copy(over, count(p))
	}
	return over
}

// limits are the rules, with their exceptions.
var limits = []struct {
	what       string
	limit      int
	count      func(typed) excess
	exceptions []exception
}{
	{"fields", fieldLimit, typed.fieldCounts, manyFields},
	{"functions that take a pointer to it", pointerLimit, typed.pointerCounts, manyFunctions},
	{"boolean operators in one expression", operatorLimit, typed.operatorCounts, manyOperators},
	{"files that write it", writerLimit, typed.writerCounts, manyWriters},
}

func TestNothingIsOverTheLimits(t *testing.T) {
	all := typedTree(t)
	for _, l := range limits {
		check(t, collect(all, l.count).compare(l.what, l.limit, l.exceptions))
	}
}

func TestEveryExceptionHasAReason(t *testing.T) {
	for _, l := range limits {
		for _, x := range l.exceptions {
			if x.why == "" || len(x.listed) == 0 {
				t.Errorf("%s: an exception has no reason or lists nothing: %v", l.what, x)
			}
		}
	}
}

func TestExceptionsOnlyShrink(t *testing.T) {
	exceptions := []exception{{"a reason", excess{"a.grown": 30, "a.same": 30, "a.shrunk": 30, "a.mended": 30}}}
	got := excess{"a.grown": 31, "a.same": 30, "a.shrunk": 29, "a.new": 26}.compare("fields", fieldLimit, exceptions)
	var at []string
	for _, f := range got {
		name, _, _ := strings.Cut(f, ":")
		at = append(at, name)
	}
	if want := []string{"a.grown", "a.mended", "a.new", "a.shrunk"}; !slices.Equal(at, want) {
		t.Errorf("found %q, want %q", at, want)
	}
}

// numbered repeats a text N times, with %d for the number.
func numbered(n int, text string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, text, i)
	}
	return b.String()
}

func TestStructsOfManyFieldsAreCaught(t *testing.T) {
	got := typedExample(t, "pool",
		"package pool; type wide struct {"+numbered(26, "f%d int;")+"}; type good struct {"+numbered(25, "f%d int;")+"}",
		"package pool; type Record struct {"+numbered(40, "F%d int;")+"}",
		"package pool; type packed struct { a int; part; b *part; c one }; type part struct {"+numbered(23, "g%d int;")+"}; type one struct {"+numbered(30, "h%d int;")+"}",
		"package pool; func (p *part) x() { p.g1++ }; func (o *one) x() { o.h1 = 2 }; func (p *packed) y() { p.a = 2 }",
		"package pool; func (p *packed) z() { p.g2 = 3 }",
	).fieldCounts()
	// one has too many fields of its own, and counts as one in packed: one file writes it.
	if want := (excess{"pool.wide": 26, "pool.packed": 27, "pool.one": 30}); !maps.Equal(got, want) {
		t.Errorf("caught %v, want %v", got, want)
	}
}

func TestTypesThatManyFunctionsTakeAreCaught(t *testing.T) {
	got := typedExample(t, "pool", "package pool; type t struct{}; type u struct{};"+
		numbered(40, "func (*t) m%d() {};")+numbered(21, "func f%d(a, b *t, c u) {};")+numbered(60, "func (*u) m%d() {};")).pointerCounts()
	if want := (excess{"pool.t": 61}); !maps.Equal(got, want) {
		t.Errorf("caught %v, want %v", got, want)
	}
}

func TestLongConditionsAreCaught(t *testing.T) {
	got := typedExample(t, "pool", `package pool
func f(a, b bool) bool { return a && (b || !(a && b)) || b }
func g(a, b bool) bool { return a && b && a && h(a || b) }
func h(a bool) bool { return a }
type t struct{}
func (*t) m(a bool) { if a || a || a && a && a { _ = a } }`).operatorCounts()
	if want := (excess{"pool.f": 4, "pool.t.m": 4}); !maps.Equal(got, want) {
		t.Errorf("caught %v, want %v", got, want)
	}
}

func TestFieldsThatSeveralFilesWriteAreCaught(t *testing.T) {
	sources := []string{
		"package pool; type c struct { part; a, b, d int; m map[int]int; Open int }; type part struct { e int }; func newC() *c { x := &c{}; x.a, x.b = 1, 2; return x }",
		"package pool; func (x *c) one() { x.a = 1; x.m[1]++; x.e = 1; x.Open = 1; local := x.b; local++ }",
		"package pool; func two(x *c) { x.a++; delete(x.m, 1); x.part.e++; x.d = 1; x.Open = 2 }",
	}
	got := typedExample(t, "pool", sources...).writerCounts()
	if want := (excess{"pool.c.a": 2, "pool.c.m": 2, "pool.part.e": 2}); !maps.Equal(got, want) {
		t.Errorf("caught %v, want %v", got, want)
	}
	if got := typedExample(t, "config", sources...).writerCounts(); len(got) > 0 {
		t.Errorf("caught %v in a folder that holds no components", got)
	}
}
