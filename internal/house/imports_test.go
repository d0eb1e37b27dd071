package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// layer is a folder, and which folders of the module its files may import, tests
// aside. A pattern that ends in /... means the folders below as well.
type layer struct {
	folder string
	may    []string
	why    string
}

// everywhere may be imported by every layer but each other.
var everywhere = []string{"internal/text", "internal/problem", "internal/grace", "internal/access", "internal/lograte", "internal/own"}

// layers are the directions of imports. Folders that are for tests only are
// not in the table: see testHelpers.
var layers = []layer{
	{
		"internal/text", nil,
		"it writes values for people and knows none of berth's types",
	},
	{
		"internal/dial", []string{"internal/text"},
		"why a connection to etcd fails is the same for all clients of etcd",
	},
	{
		"internal/own", nil,
		"whose a file is has nothing to do with what is in it",
	},
	{
		"internal/problem", []string{"internal/text"},
		"it is the table of errors, and every package uses it",
	},
	{
		"internal/strict", nil,
		"what files may not leave open depends on nothing that they are about",
	},
	{
		"internal/lograte", nil,
		"how often lines are logged does not depend on what they say",
	},
	{
		"internal/access", []string{"internal/problem"},
		"who may do what is decided without knowing what it is done to: every edge that serves callers asks it",
	},
	{
		"internal/trace", []string{"internal/problem"},
		"spans are made at the edges, of what a caller knows: it knows nothing of what they are about",
	},
	{
		"internal/trace/otlp", []string{"internal/trace", "internal/text"},
		"where spans go is set up by the program, and by nothing else",
	},
	{
		"internal/grace", nil,
		"the times that holders get to stop depend on each other, and every package that stops one uses them",
	},
	{
		"config", []string{"internal/strict"},
		"settings are texts and numbers: what they are for is glued in cmd",
	},
	{
		"internal/store", []string{"internal/dial", "internal/text"},
		"the connection to etcd decides nothing, and so needs no other package",
	},
	{
		"internal/store/embed", nil,
		"the embedded server knows etcd and nothing of berth",
	},
	{
		"pool/admit", nil,
		"who may have slots is decided from numbers alone",
	},
	{
		"pool/slots", nil,
		"which slots a claim takes is decided from what was read, without a clock or etcd",
	},
	{
		"pool/wire", []string{"internal/problem", "internal/store", "pool", "pool/slots"},
		"what etcd holds of pools is spelled and read without a connection to it",
	},
	{
		"pool/owner", []string{"internal/problem", "internal/store", "pool", "pool/list", "pool/slots", "pool/wire"},
		"the claims of an instance are a state machine: what it sends and hears is the engine's",
	},
	{
		"pool/dispatch", []string{"internal/problem", "internal/store", "pool", "pool/admit", "pool/slots", "pool/wire"},
		"what is offered to whom is decided in memory: what is read and sent is the engine's",
	},
	{
		"pool/engine", []string{"internal/problem", "internal/store", "pool", "pool/dispatch", "pool/list", "pool/owner", "pool/wire"},
		"the engine connects state machines to etcd, and decides nothing about slots",
	},
	{
		"pool/list", []string{"internal/problem", "internal/store", "pool", "pool/admit", "pool/slots", "pool/wire"},
		"what is shown of pools is found out from what was read, whatever instance has put it",
	},
	{
		"pool/revoke", []string{"internal/problem", "internal/store", "pool", "pool/list", "pool/wire"},
		"operators end claims by what etcd holds, whatever instance has put it",
	},
	{
		"pool", []string{"internal/store", "pool/admit"},
		"pool asks for leases through its own two-method interface: it can be tested and read without lease",
	},
	{
		"pool/registry", []string{"internal/store", "pool", "pool/wire"},
		"specs are changed without the claims that depend on them",
	},
	{
		"lease", []string{"internal/store"},
		"a lease does not know what hangs on it: it can be tested and read without pool",
	},
	{
		"internal/instance", []string{"internal/audit", "internal/proc", "internal/trace", "pool", "pool/engine", "pool/list", "pool/registry", "pool/revoke", "pool/wire", "lease", "internal/store"},
		"an instance joins pool and lease, for the Go API and for berth's own processes",
	},
	{
		".", []string{"internal/instance", "pool"},
		"the Go API shows what importers need of an instance, in types that they can name",
	},
	{
		"internal/proc", []string{"lease"},
		"processes of the host are identified by the boot clock, and stopped before a lease ends",
	},
	{
		"internal/election", []string{"lease", "internal/store"},
		"an election needs the presence lease of a process, and does not know what its leader does",
	},
	{
		"coordinator/run", []string{"internal/election", "pool", "pool/registry", "internal/store"},
		"records of runs are shared by the coordinator, the workers and the API",
	},
	{
		"coordinator/step", []string{"coordinator/run", "internal/strict", "pool", "pool/registry", "internal/store"},
		"steps are records of runs, which several packages plan and run",
	},
	{
		"coordinator", []string{"internal/election", "coordinator/run", "coordinator/step", "pool", "pool/engine", "pool/list", "pool/registry", "pool/revoke", "pool/wire", "lease", "internal/store"},
		"the coordinator admits and plans, and does not depend on who runs the steps",
	},
	{
		"internal/audit", []string{"internal/trace", "pool", "internal/store"},
		"every caller of an operator's verb records it, the Go API too",
	},
	{
		"internal/inspect", []string{"internal/audit", "coordinator/run", "coordinator/step", "pool", "pool/list", "pool/registry", "pool/revoke", "lease", "internal/store"},
		"the read model reads records and the state of the pools, and does not know who shows them",
	},
	{
		"internal/manifest", []string{"internal/strict", "sidecar/source", "coordinator/run", "coordinator/step", "pool"},
		"files that people write are read to the types of what they are about, with no connection to anything",
	},
	{
		"sidecar", []string{"internal/audit", "internal/inspect", "internal/proc", "internal/trace", "sidecar/...", "coordinator/run", "coordinator/step", "internal/instance", "pool", "lease", "internal/store"},
		"the sidecar serves an instance over HTTP",
	},
	{
		"sidecar/api", []string{"internal/inspect", "internal/strict", "sidecar/source", "coordinator/run", "coordinator/step", "pool", "lease"},
		"wire types are those of the read model, for servers and clients",
	},
	{
		"sidecar/claims", []string{"internal/proc", "internal/instance", "pool", "lease", "internal/store"},
		"who holds a claim and whether they live is the same however they ask: no wire types, no HTTP",
	},
	{
		"sidecar/client", []string{"internal/inspect", "internal/trace", "sidecar/api", "sidecar/server", "lease"},
		"a client knows the wire types, and nothing of how a server does what it asks for",
	},
	{
		"sidecar/executor", []string{"internal/trace", "sidecar/claims", "coordinator/run", "coordinator/step", "internal/instance", "pool", "lease", "internal/store"},
		"who runs an attempt and whether they live is the same however they ask: no wire types, no HTTP",
	},
	{
		"sidecar/server", []string{"internal/proc", "internal/trace", "lease"},
		"how HTTP is served is no matter of what is served: wire types and endpoints are its owner's",
	},
	{
		"sidecar/worker", []string{"internal/trace", "sidecar/worker/child", "coordinator/run", "coordinator/step", "internal/instance", "pool", "lease", "internal/store"},
		"a worker takes steps by itself: it needs no server",
	},
	{
		"sidecar/worker/child", []string{"internal/proc", "lease", "internal/store"},
		"a command is kept alive whatever it belongs to; all it needs to know is the clock of validity",
	},
	{
		"sidecar/source", []string{"internal/election", "internal/proc", "internal/strict", "coordinator/run", "coordinator/step", "lease", "pool/registry", "internal/store"},
		"a source submits runs as anybody does: who does them is no concern of it",
	},
	{
		"sidecar/ui", []string{"internal/audit", "internal/inspect", "sidecar/server", "coordinator/run", "coordinator/step", "internal/instance", "pool", "pool/list", "pool/revoke", "lease", "internal/store"},
		"pages show what the Go API and the records tell: whatever serves them is no concern of theirs",
	},
	{
		"internal/certs", nil,
		"certificates know nothing of what they protect",
	},
	{
		"internal/cluster", []string{"internal/dial", "internal/store/embed"},
		"members of etcd are formed and maintained without what berth keeps in it",
	},
	{
		"internal/bench", []string{"internal/instance", "internal/proc", "config", "pool", "pool/registry", "internal/store"},
		"it measures claims as users make them, what they cost the processes, and what that needs to be started by a command; what the queue and steps need is in e2e/bench",
	},
	{
		"e2e/bench", []string{"internal/bench", "config", "coordinator/...", "internal/instance", "sidecar/worker", "internal/store"},
		"the project's own measurements drive coordinator and workers in one process",
	},
	{
		"cmd/berth",
		[]string{
			"internal/audit", "internal/inspect", "internal/proc", "internal/trace", "internal/trace/otlp", "sidecar/...", "coordinator/...", "internal/instance", "config", "pool", "pool/list", "pool/registry", "lease",
			"internal/bench", "internal/certs", "internal/cluster", "internal/manifest", "internal/store", "internal/store/embed",
		},
		"commands glue settings to parts, and print in the words of the Go API: those of pool and lease",
	},
}

// testHelpers are folders that only tests may import.
var testHelpers = []string{
	"internal/store/embed/embedtest", "internal/store/storetest", "internal/testcert", "internal/testlog", "internal/access/accesstest", "internal/browser", "internal/house", "pool/enginetest", "e2e", "e2e/campaign",
}

// wrongImports returns the imports that the tables do not allow.
func wrongImports(files []file, layers []layer) []string {
	var found []string
	for _, f := range files {
		if f.test || slices.Contains(testHelpers, f.folder) {
			continue
		}
		at := slices.IndexFunc(layers, func(l layer) bool { return l.folder == f.folder })
		if at < 0 {
			found = append(found, fmt.Sprintf("%s: folder %s is in no layer: give it a row in the table", f.path, f.folder))
			continue
		}
		for imported := range f.imports() {
			folder, ok := own(imported)
			if ok && !layers[at].allows(folder) {
				found = append(found, fmt.Sprintf("%s imports %s, but %s", f.path, folder, layers[at].why))
			}
		}
	}
	return found
}

func (l layer) allows(folder string) bool {
	return slices.Contains(everywhere, folder) && !slices.Contains(everywhere, l.folder) || slices.ContainsFunc(l.may, func(pattern string) bool {
		return matches(pattern, folder)
	})
}

// matches takes a path, or with /... at its end those below it as well.
func matches(pattern, path string) bool {
	parent, below := strings.CutSuffix(pattern, "/...")
	return path == parent || below && strings.HasPrefix(path, parent+"/")
}

func TestImportsFollowTheLayers(t *testing.T) { check(t, wrongImports(tree(t), layers)) }

// withoutHTTP are folders of which the rules do not depend on how they are asked.
var withoutHTTP = []string{"sidecar/claims", "sidecar/executor", "coordinator", "coordinator/run", "coordinator/step", "pool", "lease"}

func TestRulesKnowNoHTTP(t *testing.T) {
	for _, f := range tree(t) {
		if f.test || !slices.Contains(withoutHTTP, f.folder) {
			continue
		}
		for imported := range f.imports() {
			if imported == "net/http" || strings.HasPrefix(imported, "github.com/danielgtaylor/huma/") {
				t.Errorf("%s imports %s, but its rules are the same however they are asked", f.path, imported)
			}
		}
	}
}

// wrongTracing returns the files outside internal/trace that import OpenTelemetry. Only the setup
// imports its SDK and exporters.
func wrongTracing(files []file) []string {
	const lib = "go.opentelemetry.io/"
	var found []string
	for _, f := range files {
		if f.test || f.folder == "internal/trace/otlp" {
			continue
		}
		for imported := range f.imports() {
			heavy := strings.HasPrefix(imported, lib+"otel/sdk") || strings.HasPrefix(imported, lib+"otel/exporters")
			if strings.HasPrefix(imported, lib) && (f.folder != "internal/trace" || heavy) {
				found = append(found, fmt.Sprintf("%s imports %s, but spans are made by internal/trace and sent by internal/trace/otlp", f.path, imported))
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestOnlyPackageTraceImportsOpenTelemetry(t *testing.T) { check(t, wrongTracing(tree(t))) }

func TestWrongTracingIsCaught(t *testing.T) {
	got := wrongTracing(example(t, map[string]string{
		"pool/a.go":                `package pool; import _ "go.opentelemetry.io/otel/trace"`,
		"internal/trace/a.go":      `package trace; import _ "go.opentelemetry.io/otel/trace"`,
		"internal/trace/b.go":      `package trace; import _ "go.opentelemetry.io/otel/sdk/trace"`,
		"internal/trace/otlp/a.go": `package otlp; import _ "go.opentelemetry.io/otel/sdk/trace"`,
		"sidecar/a_test.go":        `package sidecar; import _ "go.opentelemetry.io/otel/sdk/trace"`,
	}))
	var at []string
	for _, f := range got {
		at = append(at, strings.Fields(f)[0])
	}
	if want := []string{"internal/trace/b.go", "pool/a.go"}; !slices.Equal(at, want) {
		t.Errorf("caught %q, want %q", at, want)
	}
}

func TestNoTwoLayersImportEachOther(t *testing.T) {
	for _, a := range layers {
		for _, b := range layers {
			if a.folder < b.folder && a.allows(b.folder) && b.allows(a.folder) {
				t.Errorf("the table lets %s and %s import each other", a.folder, b.folder)
			}
		}
	}
}

func TestWrongImportsAreCaught(t *testing.T) {
	files := example(t, map[string]string{
		"pool/a.go":       `package pool; import _ "github.com/berthhq/berth/lease"`,
		"pool/b.go":       `package pool; import _ "github.com/berthhq/berth/internal/store"`,
		"pool/c_test.go":  `package pool; import _ "github.com/berthhq/berth/lease"`,
		"config/a.go":     `package config; import _ "github.com/berthhq/berth"`,
		"cmd/berth/a.go":  `package main; import _ "github.com/berthhq/berth/sidecar/worker"`,
		"lease/a.go":      `package lease; import _ "github.com/berthhq/berth/internal/store/storetest"`,
		"internal/x/a.go": `package x`,
	})
	var at []string
	for _, f := range wrongImports(files, layers) {
		file, _, _ := strings.Cut(strings.ReplaceAll(f, ":", " "), " ")
		at = append(at, file)
	}
	slices.Sort(at)
	if want := []string{"config/a.go", "internal/x/a.go", "lease/a.go", "pool/a.go"}; !slices.Equal(at, want) {
		t.Errorf("caught %v, want %v", at, want)
	}
}

// barred are packages that a program must not carry, with what it builds on.
var barred = []struct {
	program  string
	packages []string
	why      string
}{
	{
		"./cmd/berth",
		[]string{
			// go-cmp is not among them: etcd's server uses it.
			"testing", "go.uber.org/goleak", "pgregory.net/rapid",
			"github.com/anishathalye/porcupine", "github.com/rogpeppe/go-internal/testscript",
			module + "/internal/store/embed/embedtest", module + "/internal/store/storetest", module + "/internal/testcert",
			module + "/internal/browser", "github.com/chromedp/...", "github.com/prometheus/prometheus/...",
		},
		"it is for tests only",
	},
	{
		".",
		[]string{
			"go.etcd.io/etcd/server/v3/...", "github.com/urfave/cli/...", "net/http/pprof",
			"github.com/danielgtaylor/huma/...", "github.com/chromedp/...",
			"go.opentelemetry.io/otel/sdk/...", "go.opentelemetry.io/otel/exporters/...",
			module + "/config", module + "/sidecar/...", module + "/internal/store/embed/...",
		},
		"importers of the Go API should not pay for it",
	},
}

func TestProgramsCarryNothingTheyShouldNot(t *testing.T) {
	for _, b := range barred {
		deps := dependencies(t, b.program)
		for _, dep := range deps {
			for _, pattern := range b.packages {
				if matches(pattern, dep) {
					t.Errorf("%s depends on %s, but %s", b.program, dep, b.why)
				}
			}
		}
	}
}
