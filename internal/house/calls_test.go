package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// ban is a set of names of a package that code must not use.
type ban struct {
	pkg   string   // import path
	names []string // one that ends in * is the beginning of names
	but   []string // folders where they may be used
	why   string
}

// bans are for code that is not a test.
var bans = []ban{
	{
		"fmt", []string{"Print", "Println", "Printf"}, []string{"cmd/berth"},
		"only commands own standard output",
	},
	{
		"log", []string{"Print*", "Fatal*", "Panic*", "Default", "SetOutput"}, nil,
		"the log is injected: hclog",
	},
	{
		"github.com/hashicorp/go-hclog", []string{"L", "Default", "SetDefault"}, nil,
		"the log is injected: there is no global one",
	},
	{
		"github.com/prometheus/client_golang/prometheus",
		[]string{"MustRegister", "Register", "Unregister", "DefaultRegisterer", "DefaultGatherer"}, nil,
		"the registry is injected: two instances in one process would collide in a global one",
	},
	{
		"github.com/prometheus/client_golang/prometheus/promauto", []string{"New*"}, nil,
		"metrics are made with promauto.With(reg): the bare constructors use the global registry",
	},
	{
		"github.com/prometheus/client_golang/prometheus/promhttp", []string{"Handler"}, nil,
		"promhttp.Handler serves the global registry: use HandlerFor",
	},
	{
		"time", []string{"Sleep"}, nil,
		"a sleep does not see that its context has ended: use a timer and a select",
	},
}

func (b ban) covers(name string) bool {
	return slices.ContainsFunc(b.names, func(pattern string) bool {
		start, many := strings.CutSuffix(pattern, "*")
		return name == pattern || many && strings.HasPrefix(name, start)
	})
}

// uses returns the names of a package that a file uses.
func (f file) uses(path string) []string {
	local, ok := f.imports()[path]
	if !ok {
		return nil
	}
	if local == "go-hclog" {
		local = "hclog" // the one whose name is not the end of its path
	}
	var names []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
				names = append(names, s.Sel.Name)
			}
		}
		return true
	})
	return names
}

func wrongCalls(files []file, bans []ban) []string {
	var found []string
	for _, f := range files {
		for _, b := range bans {
			if f.test || slices.Contains(b.but, f.folder) {
				continue
			}
			for _, name := range f.uses(b.pkg) {
				if b.covers(name) {
					found = append(found, fmt.Sprintf("%s uses %s.%s, but %s", f.path, b.pkg, name, b.why))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestNoCodeUsesWhatIsBanned(t *testing.T) { check(t, wrongCalls(tree(t), bans)) }

// realSleeps returns the test files that sleep in real time. A test that sleeps
// to be right is wrong on a slower machine. Packages that use testing/synctest
// are trusted to sleep in its bubbles, where time is not real.
func realSleeps(files []file) []string {
	fake := map[string]bool{}
	for _, f := range files {
		if _, ok := f.imports()["testing/synctest"]; ok && f.test {
			fake[f.folder] = true
		}
	}
	var found []string
	for _, f := range files {
		if f.test && !fake[f.folder] && slices.Contains(f.uses("time"), "Sleep") {
			found = append(found, f.path+" calls time.Sleep: wait for what the test needs, or use testing/synctest")
		}
	}
	slices.Sort(found)
	return found
}

func TestNoTestSleeps(t *testing.T) { check(t, realSleeps(tree(t))) }

func TestBannedCallsAreCaught(t *testing.T) {
	files := example(t, map[string]string{
		"a/a.go":         `package a; import "fmt"; func f() { fmt.Println(fmt.Sprint()) }`,
		"a/b.go":         `package a; import p "github.com/prometheus/client_golang/prometheus"; var r = p.DefaultRegisterer`,
		"a/c.go":         `package a; import "github.com/hashicorp/go-hclog"; var l = hclog.L()`,
		"a/d.go":         `package a; import "github.com/prometheus/client_golang/prometheus/promauto"; var c = promauto.With(nil).NewCounter(o)`,
		"a/e.go":         `package a; import "github.com/prometheus/client_golang/prometheus/promauto"; var c = promauto.NewCounter(o)`,
		"cmd/berth/a.go": `package main; import "fmt"; func f() { fmt.Println() }`,
		"a/a_test.go":    `package a; import ("fmt"; "time"); func f() { fmt.Println(); time.Sleep(1) }`,
		"b/a_test.go":    `package b; import ("testing/synctest"; "time"); func f() { synctest.Wait(); time.Sleep(1) }`,
	})
	var at []string
	for _, f := range slices.Concat(wrongCalls(files, bans), realSleeps(files)) {
		at = append(at, strings.Fields(f)[0])
	}
	if want := []string{"a/a.go", "a/b.go", "a/c.go", "a/e.go", "a/a_test.go"}; !slices.Equal(at, want) {
		t.Errorf("caught %v, want %v", at, want)
	}
}
