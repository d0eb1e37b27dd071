package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
)

var update = flag.Bool("update", false, "write the tables of the pages anew")

// checkTable compares a table in a page, between <!-- NAME --> and
// <!-- end of NAME -->, with what the program says.
func checkTable(t *testing.T, path, name, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	head, rest, ok := strings.Cut(string(data), begin)
	got, tail, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no %q", path, begin)
	}
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("%s is out of date, go test ./docs -update mends it:\n%s", path, d)
	}
}

func TestTheSettingsArePagedAsTheyAre(t *testing.T) {
	var b strings.Builder
	b.WriteString("| in the file | flag | variable | default | what it is |\n|---|---|---|---|---|\n")
	for _, f := range config.Fields() {
		flagText := "none"
		if f.Flag() != "" {
			flagText = "`--" + f.Flag() + "`"
		}
		usage := strings.ReplaceAll(f.Usage, "`", "")
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s. Must be %s |\n",
			f.Name, flagText, f.Env(), cmp.Or(f.DefaultText(), "–"), usage, f.Must)
	}
	checkTable(t, "settings.md", "settings", b.String())
}

func TestTheCodesArePagedAsTheyAre(t *testing.T) {
	codes := problem.Codes()
	slices.SortFunc(codes, func(a, b problem.Code) int {
		return cmp.Or(cmp.Compare(a.Status(), b.Status()), cmp.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString("| status | code | meaning | exit code of the commands |\n|---|---|---|---|\n")
	for _, c := range codes {
		fmt.Fprintf(&b, "| %d | `%s` | %s | %d |\n", c.Status(), c, c.Title(), c.Exit())
	}
	checkTable(t, "http.md", "codes", b.String())
}

// metricName is a metric's name as code has it, and pages.
var metricName = regexp.MustCompile("[\"`](berth_[a-z_]+)[\"`{]")

func TestTheMetricsArePagedAsTheyAre(t *testing.T) {
	var sources []string
	for _, folder := range []string{"..", "../pool", "../lease", "../sidecar", "../sidecar/worker", "../coordinator", "../internal/store"} {
		paths, err := filepath.Glob(folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, slices.DeleteFunc(paths, func(path string) bool { return strings.HasSuffix(path, "_test.go") })...)
	}
	if d := gocmp.Diff(metricNames(t, sources...), metricNames(t, "metrics.md")); d != "" {
		t.Errorf("metrics.md does not tell what there is (- in the code, + on the page):\n%s", d)
	}
}

func metricNames(t *testing.T, paths ...string) []string {
	t.Helper()
	var all []string
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metricName.FindAllStringSubmatch(string(data), -1) {
			all = append(all, m[1])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// link is one to a file of the repository.
var link = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(pages, "../README.md") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}
