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
	"github.com/berthhq/berth/internal/store"
)

var update = flag.Bool("update", false, "update the tables of ARCHITECTURE.md and the pages")

// checkTable compares a table in a page, between <!-- NAME --> and
// <!-- end of NAME -->, with the one generated from the code.
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
		t.Errorf("%s is out of date, `make docs` corrects it:\n%s", path, d)
	}
}

func TestSettingsPageListsTheSettings(t *testing.T) {
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
	checkTable(t, "reference/settings.md", "settings", b.String())
}

func TestEtcdPageListsTheRoles(t *testing.T) {
	keys := store.NewKeys(store.DefaultPrefix)
	var b strings.Builder
	b.WriteString("| role | who needs it | reads | reads and writes |\n|---|---|---|---|\n")
	list := func(ranges []store.KeyRange) string {
		texts := make([]string, len(ranges))
		for i, r := range ranges {
			if r == keys.DispatcherRange() {
				texts[i] = "the range from `offers/` to the end of `pools/`"
				continue
			}
			texts[i] = "`" + cmp.Or(strings.TrimPrefix(r.Key, keys.Prefix()), r.Key) + "`"
		}
		return cmp.Or(strings.Join(texts, ", "), "–")
	}
	for _, r := range store.RoleKinds {
		role, err := keys.Role(r.String())
		if err != nil {
			t.Fatal(err)
		}
		reads, writes := list(role.Reads), list(role.Writes)
		if role.Name == store.RootRole {
			reads, writes = "everything", "everything"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r, r.For, reads, writes)
	}
	checkTable(t, "how-to/etcd.md", "roles", b.String())
}

func TestEveryErrorCodeHasACauseAndARemedy(t *testing.T) {
	page := read(t, "reference/errors.md")
	for _, c := range problem.Codes() {
		row := fmt.Sprintf(`(?m)^\| %s \| %d \| %d \| [^|]+\. \| [^|]+\. \|$`, "`"+string(c)+"`", c.Status(), c.Exit())
		if n := len(regexp.MustCompile(row).FindAllString(page, -1)); n != 1 {
			t.Errorf("reference/errors.md has %d rows of `%s` with the status %d, the exit code %d, a cause and a remedy", n, c, c.Status(), c.Exit())
		}
	}
	if n := len(regexp.MustCompile("(?m)^\\| `").FindAllString(page, -1)); n != len(problem.Codes()) {
		t.Errorf("reference/errors.md has %d rows, and there are %d codes", n, len(problem.Codes()))
	}
}

// operation is a path of the OpenAPI document, and method one of its methods.
var (
	operation = regexp.MustCompile(`^  (/\S+):$`)
	method    = regexp.MustCompile(`^    (get|put|post|patch|delete):$`)
)

func TestHTTPPageListsTheEndpoints(t *testing.T) {
	page, path, found := read(t, "reference/http.md"), "", 0
	for line := range strings.Lines(read(t, "openapi.yaml")) {
		line = strings.TrimRight(line, "\n")
		if m := operation.FindStringSubmatch(line); m != nil {
			path = m[1]
		}
		if m := method.FindStringSubmatch(line); m != nil {
			found++
			if want := "`" + strings.ToUpper(m[1]) + " " + path + "`"; !strings.Contains(page, want) {
				t.Errorf("reference/http.md does not list %s", want)
			}
		}
	}
	if found < 40 {
		t.Errorf("found %d operations", found)
	}
}

// keyPrefix is the first part of a key, as store.Keys spells it.
var keyPrefix = regexp.MustCompile(`prefix \+ "([a-z]+/?)`)

func TestKeysPageListsTheKeys(t *testing.T) {
	page := read(t, "reference/etcd-keys.md")
	for _, m := range keyPrefix.FindAllStringSubmatch(read(t, "../internal/store/keys.go"), -1) {
		if !strings.Contains(page, "`"+m[1]) {
			t.Errorf("reference/etcd-keys.md does not list %s", m[1])
		}
	}
}

// metricName is the name of a metric, in code and on pages.
var metricName = regexp.MustCompile("[\"`](berth_[a-z_]+)[\"`{]")

func TestMetricsPageListsTheMetrics(t *testing.T) {
	var sources []string
	for _, path := range goFiles(t) {
		if !strings.HasPrefix(path, "../sidecar/source/") && !strings.HasPrefix(path, "../e2e/") {
			sources = append(sources, path)
		}
	}
	if d := gocmp.Diff(metricNames(t, sources...), metricNames(t, "reference/metrics.md")); d != "" {
		t.Errorf("reference/metrics.md does not list the metrics of the code (- in the code, + on the page):\n%s", d)
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

// link is a link to a file of the repository, to a heading, or both.
var (
	link    = regexp.MustCompile(`\]\(([^):#]*)(#[^)]*)?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// anchors returns the fragments that lead to the headings of a page, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, "#"+strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

func TestLinksLeadSomewhere(t *testing.T) {
	for _, path := range append(markdown(t), "../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../deploy/README.md", "../deploy/compose/README.md", "../deploy/kubernetes/README.md") {
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if m[2] != "" && !slices.Contains(anchors(read(t, to)), m[2]) {
				t.Errorf("%s: %s has no heading %s", path, to, m[2])
			}
		}
	}
}

func TestTheIndexLeadsToEveryPage(t *testing.T) {
	for _, path := range markdown(t) {
		if folder, name := filepath.Split(path); folder != "" {
			index := "README.md"
			if folder == "design/" && name != index {
				index, path = "design/README.md", name
			}
			if !strings.Contains(read(t, index), "("+path+")") {
				t.Errorf("%s has no link to %s", index, path)
			}
		}
	}
}
